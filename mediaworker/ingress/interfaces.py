"""The interfaces of media connections: opening a call, the session of a connection, and the endpoint of a path.

A session is protocol logic without I/O, a subclass of `ingress.session.Session`. Three shells run it: the media
listener (`ingress.listener`), the HTTP port (`ingress.runner.websocket_routes`) and TCP ports (`ingress.tcp`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.ingress.outbox import Outbox


class CallOpener(Protocol):
    """`CallRegistry.open`: a new call, or `CallRefused` when full or draining."""

    def __call__(
        self,
        *,
        source: str,
        legs: Sequence[LegSpec],
        external_id: str = "",
        from_: str = "",
        to: str = "",
        direction: str = "inbound",
        account: str = "",
        custom: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> Call: ...


class MediaSession(Protocol):
    """One connection. No input raises: a wrong message is counted, answered, or ends the connection."""

    outbox: Outbox
    """What the session sends, and how it closes the connection."""

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""

    @property
    def deadline(self) -> float | None:
        """When to call `expire`. If it has moved later by then, `expire` does nothing."""

    @property
    def streaming(self) -> bool:
        """Whether messages are audio that needs no answer, and may be passed in batches."""

    def is_ahead(self) -> bool:
        """Whether the client is too far ahead of the VAD: the shell reads no further for now."""

    def receive(self, message: str | bytes, now: float) -> None: ...

    def resume(self, now: float) -> None:
        """The client is no longer ahead: take what the session has kept of its messages."""

    def expire(self, now: float) -> None: ...

    def connection_lost(self, now: float, *, broken: bool = False) -> None:
        """The socket is gone; `broken`: by a fault. Idempotent."""


MAX_AHEAD_S = 5.0
"""How far ahead of the VAD a client is read; beyond it TCP holds the client back."""

SessionFactory = Callable[[float], MediaSession]
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
