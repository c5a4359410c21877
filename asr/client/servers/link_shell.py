"""Moves the bytes of one link between a recognizer and an engine, whether that is a child process or a connection."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import structlog

from asr import messages
from asr.link.client import ClientLink, LinkOwner
from config.tasks import end_tasks

RECEIVE_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 256 * 1024
"""The most that the transport holds; further audio waits in the utterances themselves."""

log = structlog.get_logger("asr")


class Owner(LinkOwner, Protocol):
    """Whose link it is."""

    def on_message(self, message: messages.FromEngine) -> None:
        """A message has come."""


class LinkShell(ABC):
    """One life of an engine. `run` is awaited once; everything else may be called at any time."""

    def __init__(self, link: ClientLink, owner: Owner) -> None:
        self.link = link
        self.pid: int | None = None
        """Of a process of this machine, while it exists."""
        self._owner = owner
        self._changed = asyncio.Event()

    @abstractmethod
    async def run(self) -> str:
        """Serve the link until it ends; returns the reason of its end."""

    def attach(self, attach: messages.Attach, link: socket.socket) -> None:
        """Pass on the end of a link of a worker. Raises OSError."""
        raise AssertionError("an engine elsewhere")

    def wake(self) -> None:
        """There may be something to send."""
        self._changed.set()

    def retire(self) -> None:
        """Send nothing more and let it end."""
        self.link.retired = True
        self._changed.set()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, end_s: float, end: Callable[[], None]
    ) -> None:
        """Send and receive until there are no more answers. `end` cuts off what has not ended `end_s` after it was
        asked to."""
        self.link.begin(asyncio.get_running_loop().time())
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        tasks = [
            asyncio.create_task(self._send(writer, end_s, end), name="asr-sender"),
            asyncio.create_task(self._watch(end), name="asr-watcher"),
        ]
        try:
            await self._receive(reader)
        finally:
            await end_tasks(*tasks)

    async def _send(self, writer: asyncio.StreamWriter, end_s: float, end: Callable[[], None]) -> None:
        """Send until it is retired or nothing can be sent any more; then make sure that it ends."""
        try:
            while not self.link.retired:
                self._changed.clear()
                while not self.link.retired and (data := self.link.data_to_send()):
                    writer.write(data)
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

    async def _watch(self, end: Callable[[], None]) -> None:
        """End it when it hangs."""
        loop = asyncio.get_running_loop()
        while not self.link.hung:
            await asyncio.sleep(self.link.deadline - loop.time())
            self.link.check(loop.time())
            self._wake_if_due()
        end()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Until the other side closes the link, or is of no use."""
        loop = asyncio.get_running_loop()
        try:
            while not self.link.over and (data := await reader.read(RECEIVE_BYTES)):
                self.link.receive_data(data, loop.time())
                self._wake_if_due()
                for message in self.link.events_received():
                    self._owner.on_message(message)
        except OSError:
            pass  # it has died with unread requests

    def _wake_if_due(self) -> None:
        if self.link.due:
            self._changed.set()
