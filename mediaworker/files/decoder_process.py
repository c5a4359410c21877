"""The worker's side of the child that decodes a file: chunks as they are granted, or a `FileRefused`.

A `DecoderProcess` is one child. A `RestartingDecoder` reads a file to its end though children are killed: the next one
goes on where the last one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass, replace

import structlog

from config import Endpointing, child_process
from config.framing import FrameError, Frames, encode
from config.settings import Files
from mediaworker.files.messages import (
    Begin,
    Channels,
    Chunk,
    Ended,
    Failed,
    Fault,
    FromReader,
    Grant,
    Opened,
    Progress,
    decode_from_reader,
)

RECEIVE_BYTES = 256 * 1024
MB = 1024 * 1024
ENVIRONMENT = frozenset(("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV"))
"""What the child sees of ours, with Python's own."""
log = structlog.get_logger()


class FileRefused(Exception):
    """There is no text of this file; `reason` is for whoever has sent it."""

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(f"{fault}: {reason}")


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How a file is read."""

    channels: Channels
    endpointing: Endpointing
    skip: Collection[int] = ()
    """Chunks whose samples are not wanted."""


@dataclass(slots=True)
class FileFacts:
    """What is known of a file so far."""

    opened: Opened | None = None
    ended: Ended | None = None
    position_s: float = 0.0
    """All speech before it has come."""


class DecoderProcess:
    """One reading of one file: once, by one child. `async with`; iterate to its end, granting chunks."""

    def __init__(
        self, file: int, name: str, plan: ReadingPlan, settings: Files, facts: FileFacts | None = None
    ) -> None:
        """`file`: a descriptor, seekable; it stays the caller's. `facts`: of earlier readings."""
        self._file, self._name, self._plan, self._settings = file, name, plan, settings
        self.facts = facts or FileFacts()
        self._granted = self._came = 0
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> DecoderProcess:
        """Raises OSError when no process is to be had."""
        async with contextlib.AsyncExitStack() as stack:
            theirs = stack.enter_context(contextlib.ExitStack())
            ends = []
            for _ in ("requests", "answers"):
                one, other = socket.socketpair()
                ends.append((stack.enter_context(one), theirs.enter_context(other)))
            (requests, reads), (answers, writes) = ends
            # A description of its own: the child seeks in it.
            file = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, file)
            self._process = await _spawn(file, reads, writes, self._name)
            stack.push_async_callback(self._end, self._process)
            theirs.close()
            self._reader, listening = await asyncio.open_connection(sock=answers)
            _, self._writer = await asyncio.open_connection(sock=requests)
            for stream in (self._writer, listening):
                stack.push_async_callback(_close, stream)
            self._stack = stack.pop_all()
        settings, plan = self._settings, self._plan
        self._send(
            Begin(
                plan.channels,
                plan.endpointing,
                max_s=settings.max_hours * 3600,
                memory_bytes=settings.memory_mb * MB,
                cpu_s=settings.cpu_s,
                skip=tuple(plan.skip),
            )
        )
        if self._granted:
            self._send(Grant(self._granted))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def grant(self, chunks: int) -> None:
        """So many more may come; before it has begun, too."""
        self._granted += chunks
        self._send(Grant(chunks))

    async def messages(self) -> AsyncIterator[Opened | Chunk | Progress | Ended]:
        """What the child sends, to its end. Raises FileRefused."""
        frames = Frames()
        while True:
            try:
                async with asyncio.timeout(self._timeout_s) as deadline:
                    data = await self._reader.read(RECEIVE_BYTES)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise FileRefused(
                    "stalled", f"decoding it stood still for {self._settings.decoder_timeout_s:g} s"
                ) from None
            except ConnectionError:
                data = b""
            try:
                messages = [decode_from_reader(body) for body in frames.feed(data)]
            except FrameError as error:
                raise FileRefused("internal", f"the reader of the file went wrong ({error})") from None
            for message in messages:
                yield self._on_message(message)
                if isinstance(message, Ended):
                    return
            if not data:
                raise await self._died()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def _timeout_s(self) -> float | None:
        """None while it waits for us: it has used up what it was granted."""
        return self._settings.decoder_timeout_s if self._granted > self._came else None

    def _on_message(self, message: FromReader) -> Opened | Chunk | Progress | Ended:
        match message:
            case Failed():
                if message.detail:
                    log.error("the reader of a file failed", file=self._name, detail=message.detail)
                raise FileRefused(message.fault, message.reason)
            case Opened():
                self.facts.opened = message
            case Chunk():
                self._came += bool(message.audio)
            case Progress():
                self.facts.position_s = max(self.facts.position_s, message.position_s)
            case Ended():
                self.facts.ended, self.facts.position_s = message, message.duration_s
        return message

    async def _died(self) -> FileRefused:
        assert self._process is not None
        code = await child_process.end(self._process)
        log.warning("the reader of a file died", how=child_process.how(code), file=self._name)
        if code == -signal.SIGXCPU:
            limit_s = self._settings.cpu_s
            return FileRefused("too_large", f"decoding it takes more than {limit_s} s of processor time (files.cpu_s)")
        if code < 0:  # by the file, or by somebody who wanted its memory
            return FileRefused("crashed", f"decoding it ended the decoder ({child_process.how(code)})")
        return FileRefused(
            "internal", f"the reader of the file failed ({child_process.how(code)}); the worker's log says why"
        )

    def _send(self, message: Begin | Grant) -> None:
        # It may not have begun; or it has ended, or is about to be found dead.
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(encode(message))

    async def _end(self, process: Process) -> None:
        child_process.kill(process)
        await child_process.end(process)


class RestartingDecoder:
    """As many readings of one file as it takes.

    Args:
        allowed: so often in a row may a child be killed without a new chunk in between; then the file is to blame.
    """

    def __init__(self, file: int, name: str, plan: ReadingPlan, settings: Files, *, allowed: int) -> None:
        """`file`: a descriptor, seekable; it stays the caller's."""
        self.facts = FileFacts()
        self._file, self._name, self._plan, self._settings = file, name, plan, settings
        self._allowed = allowed
        self._came = set[int]()
        self._granted = 0
        """Grants that no chunk has used."""
        self._process = DecoderProcess(file, name, plan, settings, self.facts)

    @property
    def pid(self) -> int | None:
        """Of the child, while there is one."""
        return self._process.pid

    def grant(self, chunks: int) -> None:
        """So many more may come."""
        self._granted += chunks
        self._process.grant(chunks)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """To the end of the file. A reading after the first brings what had come again, without samples.

        Raises FileRefused, OSError when no process is to be had.
        """
        crashes = 0
        while True:
            came = len(self._came)
            try:
                async with self._process as process:
                    async for message in process.messages():
                        if isinstance(message, Chunk):
                            self._granted -= bool(message.audio)
                            self._came.add(message.index)
                            yield message
                return
            except FileRefused as refused:
                crashes = crashes + 1 if came == len(self._came) else 1
                if refused.fault != "crashed" or crashes >= self._allowed:
                    raise
            plan = replace(self._plan, skip=self._came.union(self._plan.skip))
            self._process = DecoderProcess(self._file, self._name, plan, self._settings, self.facts)
            self._process.grant(self._granted)


async def _spawn(file: int, reads: socket.socket, writes: socket.socket, name: str) -> Process:
    descriptors = (file, reads.fileno(), writes.fileno())
    shown = name.encode("utf-8", "replace").decode().replace("\0", "")
    return await child_process.spawn("mediaworker.files.decoder", descriptors, shown, env=_environment())


def _environment() -> dict[str, str]:
    """Without our settings and anybody's tokens: it reads what strangers send."""
    kept = {name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith("PYTHON")}
    return kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


async def _close(stream: asyncio.StreamWriter) -> None:
    stream.close()
    with contextlib.suppress(ConnectionError):
        await stream.wait_closed()
