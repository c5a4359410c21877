"""One life of an engine server elsewhere, as far as this worker sees it: a connection to `mediaworker engine`.

TLS with a certificate on both sides (RFC 8446), or a token on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from asr import messages
from asr.client.servers.link_shell import LinkShell, Owner
from asr.link.client import RemoteLink
from asr.link.watchdog import Watchdog
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
