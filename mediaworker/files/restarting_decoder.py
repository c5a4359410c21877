"""A file, read to its end though its reader is killed: the next one goes on where that one was."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from config.settings import Files
from mediaworker.files.decoder_process import DecoderProcess, FileRefused, ReadingPlan
from mediaworker.files.messages import Chunk, Ended, Opened


class RestartingDecoder:
    """As many readings of one file as it takes.

    Args:
        allowed: so often in a row may a reader be killed without a new chunk in between; then the file is to blame.
    """

    def __init__(self, file: int, name: str, plan: ReadingPlan, settings: Files, *, allowed: int) -> None:
        """`file`: a descriptor, seekable; it stays the caller's."""
        self._file, self._name, self._plan, self._settings = file, name, plan, settings
        self._allowed = allowed
        self._came = set[int]()
        self._granted = 0
        """Grants that no chunk has used."""
        self._reading = DecoderProcess(file, name, plan, settings)

    @property
    def opened(self) -> Opened | None:
        return self._reading.opened

    @property
    def ended(self) -> Ended | None:
        return self._reading.ended

    @property
    def position_s(self) -> float:
        """All speech before it has come."""
        return self._reading.position_s

    @property
    def pid(self) -> int | None:
        """Of the reader, while there is one."""
        return self._reading.pid

    def grant(self, chunks: int) -> None:
        """So many more may come."""
        self._granted += chunks
        self._reading.grant(chunks)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """To the end of the file; a reading after the first says again, without samples, what had come. Raises Refused,
        OSError when no process is to be had."""
        crashes = 0
        while True:
            came = len(self._came)
            try:
                async with self._reading as reading:
                    async for message in reading.messages():
                        if isinstance(message, Chunk):
                            self._granted -= bool(message.audio)
                            self._came.add(message.index)
                            yield message
                return
            except FileRefused as refused:
                crashes = crashes + 1 if came == len(self._came) else 1
                if refused.fault != "crashed" or crashes >= self._allowed:
                    raise
            self._begin_again()

    def _begin_again(self) -> None:
        before, plan = self._reading, replace(self._plan, skip=self._came.union(self._plan.skip))
        self._reading = DecoderProcess(self._file, self._name, plan, self._settings)
        self._reading.opened, self._reading.position_s = before.opened, before.position_s
        self._reading.grant(self._granted)
