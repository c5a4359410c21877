"""NAT traversal: the public addresses of the worker's ports, by a STUN server.

A call needs an answer at once, and its SDP must contain the public addresses of its ports. So ports are located before
there is a call: a few spare ones are kept bound, and queried again before the NAT drops their bindings. When they are
used up, or the server does not answer, SDP contains the configured or last known address with the local port. That is
right if the NAT preserves or forwards ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from config.network.addresses import bound_udp
from config.sections.sip import HOST_PORT
from sip.media.latching import Address
from sip.protocol.errors import PortsExhausted
from sip.protocol.stun import PORT, Binding

if TYPE_CHECKING:
    from sip.media.ports import RtpPorts

log = structlog.get_logger("sip")

SPARES = 8
FRESH_S = 15.0
"""The interval of queries. A NAT should keep a binding for two minutes (RFC 4787 section 4.3); some do for 30 s."""
RETRY_S = 15.0
_MAX_BYTES = 2048


@dataclass(slots=True)
class Spare:
    """Ports without a call. Their owner closes them with `RtpPorts.close`."""

    media: socket.socket
    reports: socket.socket | None
    mapped: Address
    """The public address of `media`."""
    mapped_reports: Address | None


class Nat:
    """The STUN server (`sip.stun`), the public address that it has reported, and the located spare ports."""

    def __init__(self, server: str, *, host: str = "") -> None:
        """`host`: the address on which we listen. With an empty `server` no queries are sent."""
        found = HOST_PORT.fullmatch(server)
        self._name = found[1].strip("[]") if found else ""
        self._port = int(found[2] or PORT) if found else 0
        self._host = host
        self._server: Address | None = None
        """The server's address; None if it is unknown, or does not answer."""
        self._spares: deque[Spare] = deque()
        self._popped = asyncio.Event()
        self.address = ""
        """The public address that was learned last; "" before that."""
        self.answered = self.unanswered = 0
        self.held = 0
        """The number of RTP ports without a call: spare ones, and those being located."""

    @property
    def spares(self) -> int:
        return len(self._spares)

    def pop_spare(self) -> Spare | None:
        """Spare ports with known public addresses; None if there are none."""
        self._popped.set()
        if not self._spares:
            return None
        self.held -= 1
        return self._spares.popleft()

    async def find(self, port: int) -> None:
        """Resolve the server, and query from this port (SIP's, before PJSIP binds it), or from any if it is 0."""
        if not self._name:
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._name, self._port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
            server = (str(found[0][4][0]), self._port)
            with bound_udp(self._host, port) as own:
                mapped = await self._query(own.fileno(), server)
        except OSError as error:
            self._failed(str(error))
            return
        if mapped is None:
            self._failed("no answer")
            return
        if self._server is None or mapped[0] != self.address:
            log.info("public address", stun=self._name, public_address=mapped[0], before=self.address or None)
        self._server, self.address = server, mapped[0]

    def _failed(self, problem: str) -> None:
        if self._server is not None or not self.unanswered:
            log.warning("the STUN server does not help", stun=self._name, reason=problem)
        self.unanswered += 1
        self._server = None

    async def follow(self, ports: RtpPorts, *, reports: bool) -> None:
        """Keep spare ports located, with RTCP ports if `reports`, and retry a lost server. Runs until cancelled."""
        try:
            while self._name:
                if self._server is None:
                    self._release(ports)
                    await asyncio.sleep(RETRY_S)
                    await self.find(0)
                    continue
                self._popped.clear()
                await self._fill(ports, reports=reports)
                try:
                    async with asyncio.timeout(FRESH_S / SPARES):
                        await self._popped.wait()
                except TimeoutError:
                    await self._refresh(ports)
        finally:
            self._release(ports)

    async def _fill(self, ports: RtpPorts, *, reports: bool) -> None:
        await asyncio.gather(*(self._add(ports, reports=reports) for _ in range(SPARES - len(self._spares))))

    async def _add(self, ports: RtpPorts, *, reports: bool) -> None:
        try:
            media = ports.open(asyncio.get_running_loop().time())
        except PortsExhausted:
            return
        self.held += 1
        await self._locate(ports, media, ports.above(media) if reports else None)

    async def _refresh(self, ports: RtpPorts) -> None:
        """Locate again the spare ports with the oldest query; the others stay available meanwhile."""
        if self._spares:
            spare = self._spares.popleft()
            await self._locate(ports, spare.media, spare.reports)

    async def _locate(self, ports: RtpPorts, media: socket.socket, reports: socket.socket | None) -> None:
        """Learn where they appear, and keep them at hand; or close them."""
        try:
            above = [self._where(reports.fileno())] if reports is not None else []
            mapped, *more = await asyncio.gather(self._where(media.fileno()), *above)
        except BaseException:
            self._close(ports, media, reports)
            raise
        if mapped is None or self._server is None:
            self._close(ports, media, reports)
            return
        if mapped[0] != self.address:
            log.info("public address", stun=self._name, public_address=mapped[0], before=self.address)
            self.address = mapped[0]
        self._spares.append(Spare(media, reports, mapped, more[0] if more else None))

    def _release(self, ports: RtpPorts) -> None:
        while self._spares:
            spare = self._spares.popleft()
            self._close(ports, spare.media, spare.reports)

    def _close(self, ports: RtpPorts, media: socket.socket, reports: socket.socket | None) -> None:
        if reports is not None:
            reports.close()
        ports.close(media, asyncio.get_running_loop().time())
        self.held -= 1

    async def _where(self, fileno: int) -> Address | None:
        if self._server is None:
            return None
        mapped = await self._query(fileno, self._server)
        if mapped is None:
            self._failed("no answer")
        return mapped

    async def _query(self, fileno: int, server: Address) -> Address | None:
        loop = asyncio.get_running_loop()
        binding, over = Binding(loop.time()), asyncio.Event()
        # A duplicate descriptor: the original may be closed meanwhile, and its number reused.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno)) as own:  # no way there, or none left

            def read() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        binding.receive(own.recv(_MAX_BYTES))
                if binding.over:
                    over.set()

            loop.add_reader(own.fileno(), read)
            try:
                while not binding.over:
                    if request := binding.request(loop.time()):
                        own.sendto(request, server)
                    if not binding.over:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout_at(binding.next_s):
                                await over.wait()
            finally:
                loop.remove_reader(own.fileno())
        self.answered += binding.mapped is not None
        return binding.mapped
