"""Moves the bytes of one link between a recognizer and an engine, whether that is a child process or a connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from asr import messages
from asr.client.link import ClientLink, LinkOwner, RemoteLink, Watchdog
from config import child_process, framing
from config.errors import ConfigError
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


class EngineProcess(LinkShell):
    """One life of the inference process.

    Args:
        configure: the first message.
        relays: it is passed links of workers by `attach`.
    """

    def __init__(self, configure: messages.Configure, owner: Owner, *, relays: bool = False) -> None:
        watchdog = Watchdog(hang_s=configure.asr.hang_s, start_s=configure.asr.start_timeout_s)
        super().__init__(ClientLink(owner, configure, watchdog), owner)
        self._relays = relays
        self._links: socket.socket | None = None

    def attach(self, attach: messages.Attach, link: socket.socket) -> None:
        """Pass on the end of a link of a worker. Raises OSError."""
        assert self._links is not None
        socket.send_fds(self._links, [framing.encode(attach)[4:]], [link.fileno()])

    async def run(self) -> str:
        try:
            how = child_process.how(await self._serve())
        except OSError as error:  # no process, memory or file descriptor to be had just now
            return f"the inference process cannot be started ({error.strerror or error})"
        return self.link.end(how)

    async def _serve(self) -> int:
        """Until there are no more answers; its exit status. Raises OSError."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                theirs = []
                if self._relays:
                    self._links, end = map(
                        stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    )
                    self._links.setblocking(False)
                    theirs = [end.fileno()]
                child = await stack.enter_async_context(
                    child_process.running("asr.inference.process", descriptors=theirs)
                )
                self.pid = child.process.pid
                await self._exchange(
                    child.reader,
                    child.writer,
                    end_s=child_process.END_S,
                    end=lambda: child_process.kill(child.process),
                )
        finally:
            self.pid = None
        assert child.code is not None
        return child.code


CLOSE_S = 1.0
"""How long a connection may take to close when it is not needed any more."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where an engine server listens."""

    host: str
    """An IP address, to which it has been resolved."""
    port: int
    name: str
    """As it stands in the configuration, and in the server's certificate: a name, or an IP address."""
    tls: bool
    engine: int = 0
    """Which of its inference processes; see `messages.Welcome.engines`."""


class EngineConnection(LinkShell):
    """See the module.

    Args:
        worker: its name, for the server's log.
        token: what both sides know where there are no certificates.
        context: makes the client's side of TLS; called for each connection, so that a renewed certificate is used.
        accepts: says why the server's welcome is of no use, or "".
        timeout_s: how long the server may give no sign of life.
    """

    link: RemoteLink

    def __init__(
        self,
        address: ServerAddress,
        owner: Owner,
        *,
        worker: str,
        token: str,
        context: Callable[[], ssl.SSLContext],
        accepts: Callable[[messages.Welcome], str],
        timeout_s: float,
    ) -> None:
        link = RemoteLink(
            owner,
            Watchdog(hang_s=timeout_s, start_s=timeout_s),
            worker=worker,
            engine=address.engine,
            token="" if address.tls else token,
            accepts=accepts,
        )
        super().__init__(link, owner)
        self._address, self._context, self._timeout_s = address, context, timeout_s

    async def run(self) -> str:
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await self._connect()
        except TimeoutError:
            return f"no connection within {self._timeout_s:g} s"
        except ssl.SSLCertVerificationError as error:
            return f"the server's certificate is not trusted: {error.verify_message}"
        except ConfigError as error:  # a certificate that is just being renewed may be half written
            return f"no connection ({error})"
        except (OSError, ValueError) as error:
            return f"no connection ({error.strerror or error if isinstance(error, OSError) else error})"
        self.link.ends = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        try:
            await self._exchange(reader, writer, end_s=CLOSE_S, end=writer.transport.abort)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CLOSE_S):
                    await writer.wait_closed()
            writer.transport.abort()
        return self.link.end()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._address
        if not address.tls:
            return await asyncio.open_connection(address.host, address.port)
        return await asyncio.open_connection(
            address.host,
            address.port,
            ssl=self._context(),
            server_hostname=address.name,
            ssl_handshake_timeout=self._timeout_s,
        )
