"""One life of the inference process: it is started, sent the outstanding requests, watched, and waited for.

`asr.client.recognizer` decides when to start the next one and what its messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Callable

import structlog

from asr import messages
from asr.client.watchdog import Watchdog, WatchdogVerdict
from config import child_process, framing

RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""The most that the transport holds; further audio waits in the utterances themselves."""

log = structlog.get_logger("asr")


class EngineProcess:
    """One life of the inference process.

    Args:
        configure: the first message.
        next_message: returns the next message to send, or None if there is none until `wake` is called.
        needed: whether anybody waits for the engine; the watchdog then expects signs of life.
        on_message: takes each message that arrives.
    """

    def __init__(
        self,
        configure: messages.Configure,
        *,
        next_message: Callable[[], messages.ToEngine | None],
        needed: Callable[[], bool],
        on_message: Callable[[messages.FromEngine], None],
    ) -> None:
        self._configure, self._next_message = configure, next_message
        self._needed, self._on_message = needed, on_message
        self._changed = asyncio.Event()
        self._signs = 0
        """How many messages have arrived."""
        self._raised: str | None = None
        """The error that its engine raised."""
        self.pid: int | None = None
        """Set while the process exists."""
        self.answered = False
        """It has answered a request."""
        self.ready_s: float | None = None
        """When it reported that it was ready, on the loop's clock."""
        self.retired = False
        """It has been asked to end."""
        self.unusable: str | None = None
        """Why no attempt can give an engine."""
        self.hung: str | None = None
        """Why the watchdog killed it."""

    def wake(self) -> None:
        """There may be something to send."""
        self._changed.set()

    def retire(self) -> None:
        """Send nothing more and let the process end."""
        self.retired = True
        self._changed.set()

    async def run(self) -> str:
        """Start the process and serve it until it ends; returns the reason of its end."""
        try:
            how = child_process.how(await self._serve())
        except OSError as error:  # no process, memory or file descriptor to be had just now
            return f"the inference process cannot be started ({error.strerror or error})"
        return self.unusable or self.hung or f"the inference process died ({self._raised or how})"

    async def _serve(self) -> int:
        """Until there are no more answers; its exit status. Raises OSError."""
        try:
            async with child_process.running("asr.server.process") as child:
                self.pid = child.process.pid
                child.writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
                sender = asyncio.create_task(self._send(child.writer, child.process), name="asr-sender")
                watcher = asyncio.create_task(self._watch(child.writer, child.process), name="asr-watcher")
                try:
                    await self._receive(child.reader)
                finally:
                    sender.cancel()
                    watcher.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.gather(sender, watcher, return_exceptions=True)
        finally:
            self.pid = None
        assert child.code is not None
        return child.code

    async def _send(self, writer: asyncio.StreamWriter, process: Process) -> None:
        """Send until the process is retired or nothing can be sent any more; then make sure that it ends."""
        try:
            writer.write(framing.encode(self._configure))
            while not self.retired:
                self._changed.clear()
                while (message := self._next_message()) is not None:
                    writer.write(framing.encode(message))
                    await writer.drain()
                await self._changed.wait()
        except ConnectionError:
            pass  # it has died with unread requests
        except Exception as error:
            log.error("could not send to the engine", exc_info=error)
        # A process whose requests are closed ends by itself, unless it hangs.
        writer.close()
        await asyncio.sleep(child_process.END_S)
        child_process.kill(process)

    async def _watch(self, writer: asyncio.StreamWriter, process: Process) -> None:
        """Kill the process when it hangs."""
        asr = self._configure.asr
        watchdog = Watchdog(hang_s=asr.hang_s, start_s=asr.start_timeout_s)
        while True:
            await asyncio.sleep(watchdog.period_s)
            ready = self.ready_s is not None
            match watchdog.check(self._signs, ready=ready, needed=self._needed()):
                case WatchdogVerdict.ASK:
                    writer.write(framing.encode(messages.Ping()))
                case WatchdogVerdict.HUNG:
                    self.hung = watchdog.reason(ready=ready)
                    child_process.kill(process)
                    return

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Until the process closes the channel, or writes something that is no message."""
        frames = framing.Frames()
        try:
            while data := await reader.read(RECEIVE_BYTES):
                for body in frames.feed(data):
                    self._receive_message(messages.decode_from_engine(body))
        except framing.FrameError as error:
            log.error("unreadable answer", error=str(error))
        except ConnectionError:
            pass  # it has died with unread requests

    def _receive_message(self, message: messages.FromEngine) -> None:
        self._signs += 1
        match message:
            case messages.EngineReady():
                self.ready_s = asyncio.get_running_loop().time()
            case messages.EngineFailed():
                self.unusable = message.reason
            case messages.EngineCrashed():
                self._raised = message.reason
            case messages.Heard() | messages.Words():
                self.answered = True
        self._on_message(message)
