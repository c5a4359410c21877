"""The registrars of an account: their URIs, their servers, and the rotation among them after failures."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from config.network.addresses import SOCKETS, Family, bracketed, canonical, family_of, parse_registrar
from sip.pjsip.server_location import Location, SipServer, default_port, locate

_BASE_S = 4.0
_REFUSED_S = 30.0
_MAX_S = 120.0
_NEXT_S = 0.5
MAX_RETRY_AFTER_S = 3600


@dataclass(frozen=True, slots=True)
class Registrar:
    """A registrar of an account, or the proxy in front of it."""

    host: str
    port: int
    """The port; with 0, DNS or the transport's default decides."""
    transport: Literal["", "udp", "tcp", "tls"]
    """The transport; with "", DNS decides."""

    @classmethod
    def parse(cls, text: str) -> Registrar:
        host, port, transport = parse_registrar(text)
        return cls(host, port, transport)

    def __str__(self) -> str:
        port = f":{self.port}" if self.port else ""
        name = f"sip:{bracketed(self.host)}{port}"
        return name + (f";transport={self.transport}" if self.transport not in ("", "udp") else "")

    def route(self, server: SipServer) -> str:
        """The loose route to a server. For TLS it contains the name, with which the certificate is compared."""
        port = f":{server.port}" if server.port != default_port(server.transport) else ""
        if server.transport == "tls":
            # PJSIP takes an IPv6 address here without brackets only, and this is not sent to anybody.
            return f"<sip:{bracketed(self.host)}{port};lr;hide;maddr={server.address};transport=tls>"
        return f"<sip:{bracketed(server.address)}{port};lr;hide;transport={server.transport}>"

    async def locate(self, families: Sequence[Family], transports: Collection[str] = ("udp", "tcp")) -> Location:
        """The servers of a registrar: those of a name by RFC 3263, the addresses of each with IPv4 first and sorted, so
        that the choice is stable. None when there are none, or nobody to ask.

        The addresses of a name are sorted, IPv4 first, so that the choice is stable. `transports`: the usable ones.
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
    """The distinct addresses of these families, without scoped ones ("%"), which a URI cannot contain."""
    usable = {each for each in addresses if family_of(each) in families and "%" not in each}
    return sorted(usable, key=lambda each: (":" in each, each))


@dataclass(frozen=True, slots=True)
class RegistrarTarget:
    """A registrar at one of its servers, or at one of its proxy's servers."""

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
    """The choice of the next target, and of its delay, after failed registrations. No I/O.

    A working target is kept. After a failure the next one is tried at once. When all have failed, the delay doubles
    with every round, and is a random value between half of it and all of it, so that workers that have lost their
    registrar together do not return together (after RFC 5626 section 4.5).
    """

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._targets: tuple[RegistrarTarget, ...] = ()
        self._failures = 0
        self.current: RegistrarTarget | None = None

    def found(self, targets: Sequence[RegistrarTarget]) -> bool:
        """Set the present targets; returns whether `current` has changed. Without any target, `current` stays."""
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
        """Move on to the next target; returns the delay in seconds before it may be tried.

        code: the SIP status, 0 without a response. 408 and 5xx mean a registrar in trouble; another 4xx or 6xx is a
        refusal, after which the delay is longer.
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
