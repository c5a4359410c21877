"""One life of an engine server elsewhere, as far as this worker sees it: a connection to `mediaworker engine`.

TLS with a certificate on both sides (RFC 8446), or a token on loopback. The frames are those between the media process
and the inference process; the greeting is in `asr.messages`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from asr import greeting, messages
from asr.client.servers.engine_life import EngineLife, Owner
from asr.client.servers.watchdog import Watchdog, WatchdogVerdict
from config import framing
from config.errors import ConfigError

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


class EngineConnection(EngineLife):
    """See the module.

    Args:
        worker: its name, for the server's log.
        token: what both sides know where there are no certificates.
        context: makes the client's side of TLS; called for each connection, so that a renewed certificate is used.
        accepts: says why the server's welcome is of no use, or "".
        timeout_s: how long the server may give no sign of life.
    """

    what = "the engine server"
    beginning = "connecting to the engine server"

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
        super().__init__(owner, Watchdog(hang_s=timeout_s, start_s=timeout_s))
        self._address, self._worker, self._token = address, worker, token
        self._context, self._accepts = context, accepts
        self._timeout_s = timeout_s
        self._draining = False

    @property
    def had_engine(self) -> bool:
        return self.ready_s is not None

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
        try:
            abort, first = writer.transport.abort, await self._greet(reader, writer)
            await self._exchange(reader, writer, first, end_s=CLOSE_S, end=abort)
        except _NotKnown as error:
            return str(error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CLOSE_S):
                    await writer.wait_closed()
            writer.transport.abort()
        self.retired = self.retired or self._draining
        return self.unusable or self.turned_away or self.hung or self.raised or self._how()

    def on_message(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Welcome() if why := _other_version(message.version, self._protocol):
                self.turned_away = why
                return
            case messages.Welcome() if why := self._accepts(message):
                self.unusable = why
                return
            case messages.Refused() if self.ready_s is None:
                self.turned_away = f"it refuses this worker: {message.reason}"
                return
            case messages.Refused():
                self.unusable = f"it refuses this worker: {message.reason}"
                return
            case messages.Draining():
                self._draining = True
        super().on_message(message)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> messages.ToEngine:
        """-> the first message of the exchange. Nothing that matters is sent to a server before it has shown a
        certificate, or that it knows the token. Raises _NotKnown."""
        nonce = b"" if self._address.tls else greeting.nonce()
        hello = messages.Hello(self._protocol, self._worker, nonce, self._address.engine)
        if self._address.tls:
            return hello
        try:
            async with asyncio.timeout(self._timeout_s):
                welcome = await self._prove(hello, reader, writer)
        except (EOFError, OSError):
            raise _NotKnown(self._how()) from None
        except (TimeoutError, framing.FrameError) as error:
            raise _NotKnown(f"the server does not answer the greeting ({error or 'it says nothing'})") from None
        self.on_message(welcome)
        return messages.Ping()

    async def _prove(
        self, hello: messages.Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> messages.FromEngine:
        """-> `Welcome` of a server that knows the token, or `Refused`. Raises _NotKnown, EOFError, FrameError."""
        writer.write(framing.encode(hello))
        answer = await _message(reader)
        if not isinstance(answer, messages.Challenge):
            return _refused(answer, self._protocol)
        ends = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        known = greeting.Greeting(self._token, hello.nonce, answer.nonce, *ends)
        writer.write(framing.encode(messages.Proof(known.proof("worker"))))
        answer = await _message(reader)
        if isinstance(answer, messages.Welcome) and not known.proves("server", answer.proof):
            raise _NotKnown("whoever listens there does not know cluster.token: it is told nothing")
        return answer if isinstance(answer, messages.Welcome) else _refused(answer, self._protocol)

    @property
    def _protocol(self) -> int:
        return messages.protocol(tls=self._address.tls)

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

    def _check(self) -> WatchdogVerdict:
        """A server says something from the beginning, and whether it is needed or not: a connection that leads
        nowhere any more takes no utterances."""
        return self._watchdog.check(self._signs, ready=True, needed=True)

    def _how(self) -> str:
        if self._signs == 0:
            # With TLS 1.3 the server reads our certificate after the handshake, and says nothing if it is no good.
            return "the server has closed the connection without a word: it trusts neither certificate nor token"
        return "the server has closed the connection"


class _NotKnown(Exception):
    """The server has not shown that it is one."""


async def _message(reader: asyncio.StreamReader) -> messages.FromEngine:
    """One message of a server that is not known yet, and not a byte more. Raises EOFError, FrameError."""
    length = int.from_bytes(await reader.readexactly(4), "big")
    if not 0 < length <= greeting.MAX_BYTES:
        raise framing.FrameError(f"a frame of {length} bytes")
    return messages.decode_from_engine(await reader.readexactly(length))


def _refused(answer: messages.FromEngine, protocol: int) -> messages.Refused:
    """Raises _NotKnown for what no greeting is answered with."""
    if isinstance(answer, messages.Refused):
        return answer
    if isinstance(answer, messages.Welcome) and (why := _other_version(answer.version, protocol)):
        raise _NotKnown(why)
    raise _NotKnown("whoever listens there does not ask for a proof of cluster.token: it is told nothing")


def _other_version(theirs: int, ours: int) -> str:
    if theirs == ours:
        return ""
    return (
        f"it speaks version {theirs} of the protocol between workers and engine servers, and this worker version {ours}"
    )
