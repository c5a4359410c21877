"""One life of the inference process: it is started, sent what is outstanding, watched, and waited for.

When to start the next one, and what its messages mean, `asr.client.recognizer` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import Callable

import structlog

from asr import messages
from asr.client.watchdog import Watchdog, WatchdogVerdict
from config import child_process, framing

RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""What the transport holds at most; what is beyond it waits in the utterances themselves."""

log = structlog.get_logger("asr")


class EngineProcess:
    """One life of the inference process.

    Args:
        configure: the first message.
        next_message: gives the next message to send, or None when there is none until `wake` is called.
        needed: says whether anybody waits for the engine; if so, the process has to show that it lives.
        on_message: takes each message that comes.
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
        """Messages that have come."""
        self._raised: str | None = None
        """What its engine raised."""
        self.pid: int | None = None
        """Set while the process exists."""
        self.answered = False
        """It has answered a request."""
        self.ready_s: float | None = None
        """When it said that it was ready, on the loop's clock."""
        self.retired = False
        """It was asked to end."""
        self.unusable: str | None = None
        """Why there is no engine, whatever is tried."""
        self.hung: str | None = None
        """Why the watchdog killed it."""

    def wake(self) -> None:
        """There may be something to send."""
        self._changed.set()

    def retire(self) -> None:
        """Let the process end: it is sent nothing more."""
        self.retired = True
        self._changed.set()

    async def run(self) -> str:
        """Start the process and stay with it to its end; the reason of the end."""
        try:
            how = child_process.how(await self._live())
        except OSError as error:  # no process, memory or file descriptor to be had just now
            return f"the inference process cannot be started ({error.strerror or error})"
        return self.unusable or self.hung or f"the inference process died ({self._raised or how})"

    async def _live(self) -> int:
        """Its exit status. Raises OSError."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            channels = []
            for _ in ("requests", "answers"):
                one, other = socket.socketpair()
                channels.append((ours.enter_context(one), theirs.enter_context(other)))
            (requests, reads), (answers, writes) = channels
            process = await child_process.spawn("asr.server.process", (reads.fileno(), writes.fileno()))
            self.pid = process.pid
            theirs.close()
            try:
                await self._converse(requests, answers, process)
            finally:
                requests.close()
                code = await child_process.end(process)
                self.pid = None
        return code

    async def _converse(self, requests: socket.socket, answers: socket.socket, process: Process) -> None:
        """Until there are no more answers."""
        # There is one channel each way: when the process dies with requests unread, writing fails at once, and what it
        # sent before, above all what it was working on, must still be read.
        reader, answers_stream = await asyncio.open_connection(sock=answers)
        _, writer = await asyncio.open_connection(sock=requests)
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sender = asyncio.create_task(self._send(writer, process), name="asr-sender")
        watcher = asyncio.create_task(self._watch(writer, process), name="asr-watcher")
        try:
            await self._receive(reader)
        finally:
            sender.cancel()
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(sender, watcher, return_exceptions=True)
            for stream in (writer, answers_stream):
                stream.close()
                with contextlib.suppress(ConnectionError):
                    await stream.wait_closed()

    async def _send(self, writer: asyncio.StreamWriter, process: Process) -> None:
        """Send until the process is retired or nothing can be sent any more; then see that it ends."""
        try:
            writer.write(framing.encode(self._configure))
            while not self.retired:
                self._changed.clear()
                while (message := self._next_message()) is not None:
                    writer.write(framing.encode(message))
                    await writer.drain()
                await self._changed.wait()
        except ConnectionError:
            pass  # it has died with data of ours unread
        except Exception as error:
            log.error("could not tell the engine", exc_info=error)
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
        """Until the process closes the channel, or writes what is no message."""
        frames = framing.Frames()
        try:
            while data := await reader.read(RECEIVE_BYTES):
                for body in frames.feed(data):
                    self._receive_message(messages.decode_from_engine(body))
        except framing.FrameError as error:
            log.error("unreadable answer", error=str(error))
        except ConnectionError:
            pass  # it has died with data of ours unread

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
