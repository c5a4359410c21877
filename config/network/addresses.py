"""IP addresses as text: their family, canonical spelling and form in URIs, sockets for them, and keys of peers."""

from __future__ import annotations

import re
import socket
import sys
from ipaddress import IPv6Address, ip_address
from typing import Any, Literal

Family = Literal["IP4", "IP6"]
"""An address family, by its name in SDP (RFC 8866 section 5.7)."""
SOCKETS: dict[Family, socket.AddressFamily] = {"IP4": socket.AF_INET, "IP6": socket.AF_INET6}
ANYWHERE: dict[Family, str] = {"IP4": "0.0.0.0", "IP6": "::"}
LOCALHOST: dict[Family, str] = {"IP4": "127.0.0.1", "IP6": "::1"}
_REGISTRAR = re.compile(
    r"(?:(sips?):)?(?:[^@]*@)?([^@:;>\[\]\s]+|\[[0-9a-f.]*:[0-9a-f:.]*\])(?::([0-9]{1,5}))?(?:;transport=(udp|tcp|tls))?",
    re.IGNORECASE,
)


def family_of(address: str) -> Family:
    """The family of an address; a host name counts as IPv4."""
    return "IP6" if ":" in address else "IP4"


def canonical(address: str) -> str:
    """The canonical spelling, in which the sources of packets are also given. Raises ValueError if it is no address."""
    family = SOCKETS[family_of(address)]
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, address))
    except OSError:
        raise ValueError(f"not an IP address: {address[:80]!r}") from None


def bracketed(host: str) -> str:
    """The host as a URI contains it, with IPv6 in brackets (RFC 3986 section 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def bound_udp(host: str, port: int, family: Family = "IP4") -> socket.socket:
    """A non-blocking UDP socket at this address. An IPv6 socket excludes IPv4, where another socket may have the port.

    Raises OSError, OverflowError beyond port 65535.
    """
    sock = socket.socket(SOCKETS[family], socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if family == "IP6":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except (OSError, OverflowError):
        sock.close()
        raise
    return sock


def bound_tcp(host: str, port: int) -> socket.socket:
    """A non-blocking TCP socket that listens at this address; `::` covers IPv4 as well. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def socket_address(address: str, port: int) -> bytes:
    """struct sockaddr_in (16 bytes) or sockaddr_in6 (28 bytes)."""
    family = SOCKETS[family_of(address)]
    head = int(family).to_bytes(2, sys.byteorder) + port.to_bytes(2, "big")
    packed = socket.inet_pton(family, address)
    return head + packed + bytes(8) if family == socket.AF_INET else head + bytes(4) + packed + bytes(4)


def peer_key(peer: str) -> str:
    """The key under which limits count a peer: its IPv4 address, or its IPv6 /64, since a household has a whole /64."""
    if ":" not in peer:
        return peer
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(getattr(address, "ipv4_mapped", None) or address)


def split_address(text: str) -> tuple[str, int]:
    """`192.0.2.1:5060` or `[2001:db8::1]:5060` → address and port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def parse_tcp(text: str) -> tuple[str, int]:
    """`tcp://engines.example:9095` or `tcp://[2001:db8::1]:9095` → name or address, and port. Raises ValueError."""
    scheme, _, rest = text.partition("://")
    host, port = split_address(rest)
    if scheme != "tcp" or not host or any(each in host for each in "/?#@ ") or not 0 < port < 65536:
        raise ValueError(f"expected tcp://HOST:PORT: {text[:80]!r}")
    return host, port


def parse_registrar(text: str) -> tuple[str, int, Literal["", "udp", "tcp", "tls"]]:
    """`sip:HOST[:PORT][;transport=udp|tcp|tls]`, with or without the scheme → host, port and transport, 0 and "" where
    it has none; `sips:` is TLS. Raises ValueError."""
    found = _REGISTRAR.fullmatch(text.strip())
    transport: Any = (found[4] or "").lower() if found else ""
    secure = found and (found[1] or "").lower() == "sips"
    if not found or (secure and transport in ("udp", "tcp")) or int(found[3] or 0) > 65535:
        raise ValueError("expected sip:HOST[:PORT][;transport=udp|tcp|tls]")
    host = canonical(found[2][1:-1]) if found[2].startswith("[") else found[2]
    return host, int(found[3] or 0), "tls" if secure else transport


def is_loopback(host: str) -> bool:
    """`localhost`, or an address of this machine's loopback (IPv4-mapped IPv6 too)."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
