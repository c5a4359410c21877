"""What a media WebSocket session is made of: the call it feeds, the socket that feeds it, and the path that opens it.

A session is protocol logic without I/O. Two shells run it: the media listener (`ingress.listener`) and the HTTP port
(`ingress.runner.websocket_routes`). Both speak in the types of this file, so a further protocol is one session and one
`MediaEndpoint`.
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
    """One connection. Nothing a peer sends raises: what is wrong is counted, answered, or ends the connection."""

    outbox: Outbox
    """What the session sends, and how it closes the connection."""

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""

    @property
    def deadline(self) -> float | None:
        """When `expire` wants to be called; it may move later without notice, and `expire` then does nothing."""

    @property
    def streaming(self) -> bool:
        """It is a call now, and messages are audio: they need no answer."""

    def is_ahead(self) -> bool:
        """What has arrived is more than `MAX_AHEAD_S` ahead of what the VAD has taken: read no further for now."""

    def receive(self, message: str | bytes, now: float) -> None: ...

    def expire(self, now: float) -> None: ...

    def connection_lost(self, now: float) -> None:
        """The socket is gone, for whatever reason. Idempotent."""


MAX_AHEAD_S = 5.0
"""A client this far ahead of the VAD is read no further until it has caught up; TCP then holds the client back."""

SessionFactory = Callable[[float], MediaSession]
"""Opens the session of an admitted upgrade; the argument is `now`."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A WebSocket upgrade request before it is answered."""

    path: str
    """Without the query."""
    headers: tuple[tuple[str, str], ...]
    """Names in any case; a repeated header is there as often as it was sent."""
    peer: str
    """The address at the other end of the TCP connection; empty when there is none (a Unix socket)."""
    direct: bool = True
    """What `access.is_direct` says of the connection."""

    def header(self, name: str) -> str:
        """The value, empty when the header is missing or comes more than once."""
        values = [value for key, value in self.headers if key.lower() == name]
        return values[0] if len(values) == 1 else ""


class MediaEndpoint(Protocol):
    """What serves a path."""

    subprotocols: tuple[str, ...]
    """Those it speaks; the first one offered by the client that is among them is answered."""
    text_as_bytes: bool
    """The session takes text messages undecoded, which saves a copy; binary messages then look the same."""

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Raises `CallRefused` (of `calls.registry`) with the HTTP status to answer; nothing is buffered before."""
