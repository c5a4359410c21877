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
"""How far ahead of the VAD a client is read; beyond it TCP holds the client back."""

SessionFactory = Callable[[float], Session[Any]]
"""Opens the session of an admitted upgrade; the argument is `now`."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A WebSocket upgrade request before it is answered."""

    path: str
    """Without the query."""
    headers: tuple[tuple[str, str], ...]
    """Names in any case; a repeated header appears as often as it was sent."""
    peer: str
    """The peer's IP address; empty on a Unix socket."""
    direct: bool = True
    """The result of `local_trust.is_direct` for the connection."""

    def header(self, name: str) -> str:
        """The value; empty if the header is missing or repeated."""
        values = [value for key, value in self.headers if key.lower() == name]
        return values[0] if len(values) == 1 else ""


class MediaEndpoint(Protocol):
    """Serves a path."""

    subprotocols: tuple[str, ...]
    """The subprotocols it speaks; the answer names the first of them that the client offers."""
    text_as_bytes: bool
    """The session takes text messages undecoded, like binary ones, which saves a copy."""

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Raises `calls.registry.CallRefused` with the HTTP status to answer."""
