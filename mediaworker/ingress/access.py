"""Who may connect without credentials: a program on this machine, talking to this machine, and nobody in between."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

_FORWARDED = ("forwarded", "x-real-ip", "via")
"""Beside every `X-Forwarded-*`: a proxy on this host makes the whole world look like loopback."""


def is_local(headers: Iterable[tuple[str, str]], peer: str) -> bool:
    """True when peer and Host are loopback, no proxy header is there, and Origin is absent or this very host.

    The Host and Origin conditions keep out web pages: a page elsewhere has another Origin, and one that points its own
    name at 127.0.0.1 has another Host.
    """
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(value.strip())
    if not is_loopback(peer) or any(name in _FORWARDED or name.startswith("x-forwarded-") for name in fields):
        return False
    hosts = fields.get("host", [])
    if len(hosts) != 1 or not is_loopback(_host(hosts[0])):
        return False
    origins = fields.get("origin", [])
    return not origins or (len(origins) == 1 and _own(origins[0], hosts[0]))


def is_loopback(host: str) -> bool:
    """`localhost`, or an address of this machine's loopback (IPv4-mapped IPv6 too)."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _host(authority: str) -> str:
    """`[::1]:8081` → `::1`; empty for what is no authority."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _own(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
