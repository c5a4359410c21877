"""One life of an engine server, whether it is a child process or a connection to another machine: it is sent the
outstanding requests, watched, and waited for.

`asr.client.servers.engine_server.EngineServer` decides when to begin the next one and what its messages mean.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import structlog

from asr import messages
from asr.client.servers.watchdog import Watchdog, WatchdogVerdict
from config import framing
from config.tasks import end_tasks

RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""The most that the transport holds; further audio waits in the utterances themselves."""

log = structlog.get_logger("asr")


class Owner(Protocol):
    """Whose life it is."""

    def next_message(self) -> messages.ToEngine | None:
        """The next message to send, or None if there is none until `EngineLife.wake` is called."""

    def on_message(self, message: messages.FromEngine) -> None:
        """A message has come."""

    @property
    def needed(self) -> bool:
        """Whether anybody waits for the engine."""


class EngineLife(ABC):
    """One life. `run` is awaited once; everything else may be asked of it at any time."""

    what: str
    """It, in the reasons of its end."""
    beginning: str
    """What is done until it is ready."""

    def __init__(self, owner: Owner, watchdog: Watchdog) -> None:
        self._owner, self._watchdog = owner, watchdog
        self._changed = asyncio.Event()
        self._signs = 0
        """How many messages have arrived."""
        self.pid: int | None = None
        """Of a process of this machine, while it exists."""
        self.answered = False
        """It has answered a request."""
        self.ready_s: float | None = None
        """When it reported that it was ready, on the loop's clock."""
        self.retired = False
        """It has been asked to end, or has said that it will."""
        self.unusable: str | None = None
        """Why no attempt can give an engine."""
        self.turned_away: str | None = None
        """Why it does not serve this worker now, although it may soon: it is being upgraded."""
        self.hung: str | None = None
        """Why the watchdog ended it."""
        self.raised: str | None = None
        """The error that its engine raised."""

    @property
    def had_engine(self) -> bool:
        """An engine ends with it: a server that was not reached has none, as far as this worker knows."""
        return True

    def attach(self, attach: messages.Attach, link: socket.socket) -> None:
        """Pass on the end of a link of a worker. Raises OSError."""
        raise AssertionError("an engine elsewhere")

    @abstractmethod
    async def run(self) -> str:
        """Serve it until it ends; returns the reason of its end."""

    def wake(self) -> None:
        """There may be something to send."""
        self._changed.set()

    def retire(self) -> None:
        """Send nothing more and let it end."""
        self.retired = True
        self._changed.set()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: messages.ToEngine,
        *,
        end_s: float,
        end: Callable[[], None],
    ) -> None:
        """Send and receive until there are no more answers. `end` cuts off what has not ended `end_s` after it was
        asked to."""
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        tasks = [
            asyncio.create_task(self._send(writer, first, end_s, end), name="asr-sender"),
            asyncio.create_task(self._watch(writer, end), name="asr-watcher"),
        ]
        try:
            await self._receive(reader)
        finally:
            await end_tasks(*tasks)

    async def _send(
        self, writer: asyncio.StreamWriter, first: messages.ToEngine, end_s: float, end: Callable[[], None]
    ) -> None:
        """Send until it is retired or nothing can be sent any more; then make sure that it ends."""
        try:
            writer.write(framing.encode(first))
            while not self.retired:
                self._changed.clear()
                while not self.retired and (message := self._owner.next_message()) is not None:
                    writer.write(framing.encode(message))
                    await writer.drain()
                await self._changed.wait()
        except OSError:
            pass  # it has died with unread requests
        except Exception as error:
            log.error("could not send to the engine", exc_info=error)
        # One whose requests are closed ends by itself, unless it hangs.
        writer.close()
        await asyncio.sleep(end_s)
        end()

    async def _watch(self, writer: asyncio.StreamWriter, end: Callable[[], None]) -> None:
        """End it when it hangs."""
        while True:
            await asyncio.sleep(self._watchdog.period_s)
            match self._check():
                case WatchdogVerdict.ASK:
                    writer.write(framing.encode(messages.Ping()))
                case WatchdogVerdict.HUNG:
                    self.hung = f"{self.what} {self._watchdog.reason(ready=self.ready_s is not None)}"
                    end()
                    return

    def _check(self) -> WatchdogVerdict:
        """Called every `period_s` of the watchdog."""
        return self._watchdog.check(self._signs, ready=self.ready_s is not None, needed=self._owner.needed)

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Until the other side closes the channel, is of no use, or writes something that is no message."""
        frames = framing.Frames()
        try:
            while not (self.unusable or self.turned_away) and (data := await reader.read(RECEIVE_BYTES)):
                for body in frames.feed(data):
                    self._signs += 1
                    self.on_message(messages.decode_from_engine(body))
        except framing.FrameError as error:
            log.error("unreadable answer", error=str(error))
        except OSError:
            pass  # it has died with unread requests

    def on_message(self, message: messages.FromEngine) -> None:
        """A message has come: what it says about this life is kept, and the rest is the owner's."""
        match message:
            case messages.EngineReady():
                self.ready_s = asyncio.get_running_loop().time()
            case messages.EngineFailed():
                self.unusable = message.reason
            case messages.EngineCrashed():
                self.raised = message.reason
            case messages.Heard() | messages.Words():
                self.answered = True
            case messages.Usage(counters=counters) if counters.partials or counters.finals:
                self.answered = True
        self._owner.on_message(message)
