"""The addresses on which the worker listens, and those by which peers reach it."""

from __future__ import annotations

import socket

from config.network.addresses import ANYWHERE, LOCALHOST, SOCKETS, Family, canonical, family_of
from config.settings import Sip
from sip.media.nat import Nat

_ANYBODY: dict[Family, str] = {"IP4": "192.0.2.1", "IP6": "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849), to which packets would leave by the default route."""


class OwnAddresses:
    """Our addresses by family. `nat` knows the public IPv4 address from a STUN server."""

    def __init__(self, settings: Sip) -> None:
        hosts: dict[Family, str] = {"IP4": settings.host, "IP6": settings.host6}
        self.hosts = {family: canonical(host) for family, host in hosts.items() if host}
        """The addresses on which the endpoint listens."""
        public: dict[Family, str] = {"IP4": settings.public_address, "IP6": settings.public_address6}
        self._configured = {family: canonical(address) if address else "" for family, address in public.items()}
        self.nat = Nat(settings.stun if "IP4" in self.hosts else "", host=self.hosts.get("IP4", ""))

    @property
    def families(self) -> tuple[Family, ...]:
        return tuple(self.hosts)

    def public(self, family: Family) -> str:
        """The public address, configured or from the STUN server; "" without NAT."""
        return self._configured.get(family, "") or (self.nat.address if family == "IP4" else "")

    def facing(self, family: Family, peer: str) -> str:
        """The address for SDP: the public one, the one listened on, or the one that faces `peer`, if known."""
        if public := self.public(family):
            return public
        host = self.hosts[family]
        return host if host != ANYWHERE[family] else facing(peer or _ANYBODY[family])


def facing(peer: str) -> str:
    """The local address, of the same family, from which packets to `peer` leave. Nothing is sent."""
    family = family_of(peer)
    with socket.socket(SOCKETS[family], socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return LOCALHOST[family]
        return str(probe.getsockname()[0]).partition("%")[0]
