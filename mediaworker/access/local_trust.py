"""Local trust: the decision whether a client without credentials is a program of this machine and user, not a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from config.network.addresses import is_loopback
from mediaworker.access.socket_owner import Address, is_own

_FORWARDED = frozenset(
    ("forwarded", "via", "x-real-ip", "x-client-ip", "x-original-forwarded-for", "true-client-ip", "cdn-loop",
     "cf-connecting-ip", "cf-ray", "fly-client-ip", "fastly-client-ip", "tailscale-user-login", "x-original-host")
)  # fmt: skip
"""Headers by which a proxy shows, beside `X-Forwarded-*` and `X-Envoy-*`. A proxy on this host makes all its clients
look like loopback."""
_FORWARDED_PREFIXES = ("x-forwarded-", "x-envoy-")


def is_direct(http_version: str, peer: Address | None, here: Address | None) -> bool:
    """Whether the connection was opened by a program of this machine and user that is no proxy.

    A connection with HTTP/1.0 counts as a proxy's: nginx uses it towards its backends, and hardly any client does.
    """
    return http_version != "1.0" and is_own(peer, here)


INCOMING = "mediaworker.incoming"
"""The key of the `ConnectionInfo` in the ASGI scopes of the HTTP port."""


@dataclass(slots=True)
class ConnectionInfo:
    """The connection of a request, as its handler sees it, and the handler's instructions to the server."""

    http_version: str
    peer: Address | None
    here: Address | None
    write_frame: Callable[[bytes], bool]
    """Writes a whole WebSocket frame after the server's own output. It never waits: it returns False and writes nothing
    while the peer has too much unread data, or once the connection is closing."""
    delay_s: float = 0.0
    """How long the server holds the response back."""


def is_direct_asgi(scope: Mapping[str, Any]) -> bool:
    """`is_direct` for a request or an upgrade; True without a connection (in tests)."""
    incoming: ConnectionInfo | None = scope.get(INCOMING)
    return incoming is None or is_direct(incoming.http_version, incoming.peer, incoming.here)


def delay_answer(scope: Mapping[str, Any], delay_s: float) -> None:
    """Hold the response to this request or upgrade back."""
    incoming: ConnectionInfo | None = scope.get(INCOMING)
    if incoming is not None:
        incoming.delay_s = delay_s


def is_local(headers: Iterable[tuple[str, str]], peer: str) -> bool:
    """Whether peer and Host are loopback, there is no proxy header, and Origin is absent or this very host.

    This function judges the headers, and `is_direct` the connection. The conditions on Host and Origin keep out web
    pages: a page from another site has another Origin, and a page whose own name resolves to 127.0.0.1 (DNS rebinding)
    has another Host.
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
    """The host of an authority: `[::1]:8081` → `::1`; empty if it cannot be parsed."""
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _own(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
