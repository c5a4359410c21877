"""Decides who may connect without credentials: a program of this machine and user, with no proxy in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from config.addresses import is_loopback
from mediaworker.access.socket_owner import Address, is_own

_FORWARDED = frozenset(
    ("forwarded", "via", "x-real-ip", "x-client-ip", "x-original-forwarded-for", "true-client-ip", "cdn-loop",
     "cf-connecting-ip", "cf-ray", "fly-client-ip", "fastly-client-ip", "tailscale-user-login", "x-original-host")
)  # fmt: skip
"""Beside every `X-Forwarded-*` and `X-Envoy-*`: a proxy on this host makes the whole world look like loopback."""
_FORWARDED_PREFIXES = ("x-forwarded-", "x-envoy-")


def is_direct(http_version: str, peer: Address | None, here: Address | None) -> bool:
    """Whether the connection was opened by a program of this machine and user that is no proxy.

    HTTP/1.0 is what nginx speaks to the servers behind it; no other program in use today does.
    """
    return http_version != "1.0" and is_own(peer, here)


INCOMING = "mediaworker.incoming"
"""The key of the `ConnectionInfo` in the ASGI scopes of the HTTP port."""


@dataclass(slots=True)
class ConnectionInfo:
    """What a handler knows of its connection, and what it asks of the server."""

    http_version: str
    peer: Address | None
    here: Address | None
    write_frame: Callable[[bytes], bool]
    """Writes a whole WebSocket frame behind what the server has written. It never waits: it returns False, having
    written nothing, while the peer has not read enough of what came before, or once the connection is closing."""
    delay_s: float = 0.0
    """How long the server holds the answer back."""


def is_direct_asgi(scope: Mapping[str, Any]) -> bool:
    """`is_direct` for a request or an upgrade; True without a connection (in tests)."""
    incoming: ConnectionInfo | None = scope.get(INCOMING)
    return incoming is None or is_direct(incoming.http_version, incoming.peer, incoming.here)


def delay_answer(scope: Mapping[str, Any], delay_s: float) -> None:
    """Hold the answer to this request or upgrade back."""
    incoming: ConnectionInfo | None = scope.get(INCOMING)
    if incoming is not None:
        incoming.delay_s = delay_s


def is_local(headers: Iterable[tuple[str, str]], peer: str) -> bool:
    """Whether peer and Host are loopback, no proxy header is there, and Origin is absent or this very host.

    This judges the headers, and `is_direct` the connection. The Host and Origin conditions keep out web pages: a page
    elsewhere has another Origin, and one that points its own name at 127.0.0.1 has another Host.
    """
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(value.strip())
    if not is_loopback(peer) or any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES) for name in fields):
        return False
    hosts = fields.get("host", [])
    if len(hosts) != 1 or not is_loopback(_host(hosts[0])):
        return False
    origins = fields.get("origin", [])
    return not origins or (len(origins) == 1 and _own(origins[0], hosts[0]))


def _host(authority: str) -> str:
    """`[::1]:8081` → `::1`; empty if it is no authority."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _own(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
