"""The endpoint of a path, and the upgrades that it admits.

A session is protocol logic without I/O, a subclass of `ingress.session.Session`. Three shells run it: the media
listener (`ingress.listener`), the HTTP port (`ingress.runner.websocket_routes`) and the AudioSocket port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mediaworker.ingress.session import Session

MAX_AHEAD_S = 5.0
"""How far a client's audio is read ahead of the VAD; beyond it TCP's flow control slows the client."""

SessionFactory = Callable[[float], Session[Any]]
"""Opens the session of an admitted upgrade; the argument is `now`."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A WebSocket upgrade request before it is answered."""

    path: str
    """The path without the query."""
    headers: tuple[tuple[str, str], ...]
    """The headers, with names in any case; a repeated header appears as often as it was sent."""
    peer: str
    """The peer's IP address; empty on a Unix socket."""
    direct: bool = True
    """The result of `local_trust.is_direct` for the connection."""

    def header(self, name: str) -> str:
        """The value; empty if the header is missing or repeated."""
        values = [value for key, value in self.headers if key.lower() == name]
        return values[0] if len(values) == 1 else ""


class MediaEndpoint(Protocol):
    """Serves the media WebSockets of a path."""

    subprotocols: tuple[str, ...]
    """The supported subprotocols; the response names the first of them that the client offers."""
    text_as_bytes: bool
    """Whether the session accepts text messages as undecoded bytes, which saves a copy."""

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Check an upgrade, and return what opens its session.

        Raises `calls.registry.CallRefused` with the HTTP status of the response.
        """
