"""IP addresses as text: which family, in one spelling, how they stand in a URI, and who is one peer. No I/O."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address
from typing import Literal

Family = Literal["IP4", "IP6"]
"""As SDP names it (RFC 8866 section 5.7)."""
SOCKETS: dict[Family, socket.AddressFamily] = {"IP4": socket.AF_INET, "IP6": socket.AF_INET6}
ANYWHERE: dict[Family, str] = {"IP4": "0.0.0.0", "IP6": "::"}
LOCALHOST: dict[Family, str] = {"IP4": "127.0.0.1", "IP6": "::1"}


def family_of(address: str) -> Family:
    """Of an address; a name counts as IPv4."""
    return "IP6" if ":" in address else "IP4"


def canonical(address: str) -> str:
    """The one spelling, which sources of packets have too. Raises ValueError when it is no address."""
    family = SOCKETS[family_of(address)]
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, address))
    except OSError:
        raise ValueError(f"not an IP address: {address[:80]!r}") from None


def bracketed(host: str) -> str:
    """As a URI has it (RFC 3986 section 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def peer_key(peer: str) -> str:
    """What counts as one peer: an IPv4 address, or an IPv6 network of /64, which every household has."""
    if ":" not in peer:
        return peer
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(getattr(address, "ipv4_mapped", None) or address)
