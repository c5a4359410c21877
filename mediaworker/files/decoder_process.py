"""The worker's side of the child process that decodes a file. It yields chunks as they are granted, or raises
`FileRefused`.

A `DecoderProcess` is one child. A `RestartingDecoder` reads a file to its end even if children are killed: the next
child continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass, replace

import structlog

from config import Endpointing
from config.process import child_process
from config.process.framing import FrameError, Frames, decode, encode
from config.settings import Files
from mediaworker.errors import MediaworkerError
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
    from_reader,
)

RECEIVE_BYTES = 256 * 1024
MB = 1024 * 1024
MEMORY_BYTES = 1536 * MB
"""The limit of the child's address space, of which it uses about 60 MB."""
CPU_S = 3600
"""The limit of the child's processor time. An hour of audio with one channel takes about 6 s."""
STALLED_S = 60.0
"""A child that sends nothing for this long is killed."""
ENVIRONMENT = frozenset(("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV"))
"""The variables of the worker's environment that the child inherits, besides Python's own."""
log = structlog.get_logger()


class FileRefused(MediaworkerError):
    """The file cannot be transcribed; `reason` is a sentence for the client that sent it."""

    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(f"{fault}: {reason}")


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How a file is decoded and cut."""

    channels: Channels
    endpointing: Endpointing
    skip: Collection[int] = ()
    """Indices of chunks that are known already; they are sent without samples."""


@dataclass(slots=True)
class FileFacts:
    """Facts about a file, as its readings find them; a later reading keeps those of the earlier ones."""

    opened: Opened | None = None
    ended: Ended | None = None
    position_s: float = 0.0
    """All speech before this position has arrived."""


class DecoderProcess:
    """One reading of a file by one child. Enter it with `async with`, grant chunks, and iterate over `messages`."""

    def __init__(
        self, file: int, name: str, plan: ReadingPlan, settings: Files, facts: FileFacts | None = None
    ) -> None:
        """`file`: a seekable descriptor, which stays the caller's. `facts`: those of earlier readings."""
        self._file, self._name, self._plan, self._settings = file, name, plan, settings
        self.facts = facts or FileFacts()
        self._granted = self._came = 0
        self._child: child_process.ChildProcess | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> DecoderProcess:
        """Raises OSError when no process can be started."""
        shown = self._name.encode("utf-8", "replace").decode().replace("\0", "")
        # The child has an open file description of its own: seeking in a shared one would move the caller's position.
        file = os.open(f"/proc/self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            running = child_process.running("mediaworker.files.decoder", shown, descriptors=(file,), env=_environment())
            self._child = await self._stack.enter_async_context(running)
        finally:
            os.close(file)
        self._stack.callback(child_process.kill, self._child.process)
        plan, max_s = self._plan, self._settings.max_hours * 3600
        self._send(Begin(plan.channels, plan.endpointing, max_s, MEMORY_BYTES, CPU_S, tuple(plan.skip)))
        if self._granted:
            self._send(Grant(self._granted))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def grant(self, chunks: int) -> None:
        """Allow the child to send this many more chunks; it may be called before the child starts."""
        self._granted += chunks
        self._send(Grant(chunks))

    async def messages(self) -> AsyncIterator[Opened | Chunk | Progress | Ended]:
        """Yield the child's messages up to `Ended`. Raises FileRefused."""
        assert self._child is not None
        frames = Frames()
        while True:
            try:
                async with asyncio.timeout(self._timeout_s) as deadline:
                    data = await self._child.reader.read(RECEIVE_BYTES)
            except TimeoutError:
                if not deadline.expired():
                    raise
                raise FileRefused("stalled", f"decoding it made no progress for {STALLED_S:g} s") from None
            except ConnectionError:
                data = b""
            try:
                messages = [decode(from_reader, body) for body in frames.feed(data)]
            except FrameError as error:
                raise FileRefused("internal", f"the decoder of the file sent a malformed message ({error})") from None
            for message in messages:
                yield self._on_message(message)
                if isinstance(message, Ended):
                    return
            if not data:
                raise await self._died()

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    @property
    def _timeout_s(self) -> float | None:
        """The longest wait for the child's next message; None while it has no grants left and may send nothing."""
        return STALLED_S if self._granted > self._came else None

    def _on_message(self, message: FromReader) -> Opened | Chunk | Progress | Ended:
        match message:
            case Failed():
                if message.detail:
                    log.error("the decoder of a file failed", file=self._name, detail=message.detail)
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
        assert self._child is not None
        code = await child_process.end(self._child.process)
        log.warning("the decoder of a file died", how=child_process.how(code), file=self._name)
        if code == -signal.SIGXCPU:
            return FileRefused("too_large", f"decoding it takes more than {CPU_S} s of processor time")
        if code < 0:  # killed by a flaw that the file triggers, or by the system for lack of memory
            return FileRefused("crashed", f"decoding it ended the decoder ({child_process.how(code)})")
        return FileRefused(
            "internal", f"the decoder of the file failed ({child_process.how(code)}); see the worker's log"
        )

    def _send(self, message: Begin | Grant) -> None:
        if self._child is not None and not self._child.writer.transport.is_closing():
            self._child.writer.write(encode(message))


class RestartingDecoder:
    """Reads a file to its end with as many children as are needed.

    Args:
        allowed: the number of children in a row that may crash without a new chunk before the file is refused.
    """

    def __init__(self, file: int, name: str, plan: ReadingPlan, settings: Files, *, allowed: int) -> None:
        """`file`: a seekable descriptor, which stays the caller's."""
        self.facts = FileFacts()
        self._file, self._name, self._plan, self._settings = file, name, plan, settings
        self._allowed = allowed
        self._came = set[int]()
        self._granted = 0
        """The number of grants that no chunk has used yet."""
        self._process = DecoderProcess(file, name, plan, settings, self.facts)

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is a child."""
        return self._process.pid

    def grant(self, chunks: int) -> None:
        """Allow this many more chunks."""
        self._granted += chunks
        self._process.grant(chunks)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks up to the end of the file. After a crash, the chunks that have arrived come once more,
        without samples.

        Raises FileRefused, and OSError when no process can be started.
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


def _environment() -> dict[str, str]:
    """Return the child's environment, without the worker's settings and tokens: the child decodes files that strangers
    send, and a flaw in a decoder must not leak them."""
    kept = {name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith("PYTHON")}
    return kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
