"""Where an account registers: the registrars of its list, their servers, which one is next, and how long to wait."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from config.addresses import SOCKETS, Family, bracketed, canonical, family_of, parse_registrar
from sip.pjsip.server_location import Location, SipServer, default_port, locate

_BASE_S = 4.0
_REFUSED_S = 30.0
_MAX_S = 120.0
_NEXT_S = 0.5
MAX_RETRY_AFTER_S = 3600


@dataclass(frozen=True, slots=True)
class Registrar:
    """Where an account registers, or the proxy by which it does."""

    host: str
    port: int
    """0: it has none, and the DNS or the transport's default decides."""
    transport: Literal["", "udp", "tcp", "tls"]
    """"": it has none, and the DNS decides."""

    @classmethod
    def parse(cls, text: str) -> Registrar:
        host, port, transport = parse_registrar(text)
        return cls(host, port, transport)

    def __str__(self) -> str:
        port = f":{self.port}" if self.port else ""
        name = f"sip:{bracketed(self.host)}{port}"
        return name + (f";transport={self.transport}" if self.transport not in ("", "udp") else "")

    def route(self, server: SipServer) -> str:
        """The name stays beside the address where a certificate is held to it."""
        port = f":{server.port}" if server.port != default_port(server.transport) else ""
        if server.transport == "tls":
            # PJSIP takes an IPv6 address here without brackets only, and this is not sent to anybody.
            return f"<sip:{bracketed(self.host)}{port};lr;hide;maddr={server.address};transport=tls>"
        return f"<sip:{bracketed(server.address)}{port};lr;hide;transport={server.transport}>"

    async def locate(self, families: Sequence[Family], transports: Collection[str] = ("udp", "tcp")) -> Location:
        """The servers of a registrar: those of a name by RFC 3263, the addresses of each with IPv4 first and sorted, so
        that the choice is stable. None when there are none, or nobody to ask.

        `transports`: those that can be used.
        """
        try:
            literal = canonical(self.host)
        except ValueError:
            look_up = partial(self._look_up, families)
            return await locate(self.host, self.port, self.transport, transports=transports, look_up=look_up)
        transport = self.transport or "udp"
        port = self.port or default_port(transport)
        return Location((SipServer(transport, literal, port),) if family_of(literal) in families else ())

    async def _look_up(self, families: Sequence[Family], host: str) -> list[str]:
        family = SOCKETS[families[0]] if len(families) == 1 else socket.AF_UNSPEC
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        return in_order([str(entry[4][0]) for entry in found], families)


def in_order(addresses: Iterable[str], families: Sequence[Family]) -> list[str]:
    """Each once, of these families; without those of one interface ("%"), which no URI can name."""
    usable = {each for each in addresses if family_of(each) in families and "%" not in each}
    return sorted(usable, key=lambda each: (":" in each, each))


@dataclass(frozen=True, slots=True)
class RegistrarTarget:
    """A registrar at one of its servers, or at one of the proxy's by which it is reached."""

    registrar: Registrar
    server: SipServer
    proxy: Registrar | None = None

    @property
    def route(self) -> str:
        return (self.proxy or self.registrar).route(self.server)

    def __str__(self) -> str:
        hop, server = self.proxy or self.registrar, self.server
        transport = hop.transport or "udp"
        where = "" if hop.host == server.address else server.address
        if server.port != (hop.port or default_port(transport)) or server.transport != transport:
            where = f"{bracketed(server.address)}:{server.port};transport={server.transport}"
        by = f"by {self.proxy}" if self.proxy is not None else ""
        beside = ", ".join(filter(None, (by, where)))
        return f"{self.registrar} ({beside})" if beside else str(self.registrar)


class Rotation:
    """Which target is tried, and when, as registrations fail. No I/O.

    The one that works is kept. After a failure the next of the list has its turn at once; when all have failed, the
    wait doubles with every round, between half of it and all of it by chance, so that workers that have lost their
    registrar together do not come back together (after RFC 5626 section 4.5).
    """

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._targets: tuple[RegistrarTarget, ...] = ()
        self._failures = 0
        self.current: RegistrarTarget | None = None

    def found(self, targets: Sequence[RegistrarTarget]) -> bool:
        """These there are now; whether `current` is another one than before. None at all: `current` stays."""
        if not targets:
            return False
        self._targets = tuple(targets)
        if self.current in self._targets:
            return False
        self.current = self._targets[0]
        return True

    def registered(self) -> None:
        self._failures = 0

    def failed(self, code: int, retry_after_s: int = 0) -> float:
        """Goes on to the next target; returns after how many seconds it may be tried.

        code: SIP status of the answer, 0 for none; 408 and 5xx are a registrar in trouble, another 4xx or 6xx is a
        refusal, which one does not repeat quickly.
        """
        self._failures += 1
        if self.current in self._targets:
            at = self._targets.index(self.current)
            self.current = self._targets[(at + 1) % len(self._targets)]
        rounds, rest = divmod(self._failures, max(1, len(self._targets)))
        if rest:
            return _NEXT_S
        refused = code // 100 in (4, 6) and code != 408
        limit_s = min(_MAX_S, (_REFUSED_S if refused else _BASE_S) * 2.0 ** min(rounds - 1, 10))
        wait_s = self._uniform(limit_s / 2, limit_s)
        return max(wait_s, min(retry_after_s, MAX_RETRY_AFTER_S)) if len(self._targets) <= 1 else wait_s
