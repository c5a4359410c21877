"""The HTTP port, the media port, who may use them, and the streams of programs."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from config.checks import check_tls, check_unique
from config.errors import ConfigError
from config.section import Name, Port, Positive, Scope, Seconds, Secret, Section

_ORIGIN = re.compile(r"https?://[^\s/?#@*]+")
_KEY = re.compile(r"[A-Za-z0-9._~-]{8,}")


class Http(Section, frozen=True, kw_only=True):
    """The HTTP port: routes, `/v1/events`, the page, and the media WebSockets for one-tunnel users."""

    host: str = ""
    """Address to listen on. Empty: 0.0.0.0 (every IPv4 address) when there are API keys, else 127.0.0.1. Without keys
    an address that is not loopback is an error."""
    port: Port = 8080
    tls_cert: str = ""
    """PEM file with the certificate and its chain: the port then speaks HTTPS. Read again at every reload."""
    tls_key: str = ""
    """PEM file with the certificate's private key; empty: it is in the same file."""
    max_connections: Positive = 4096
    """Beyond it a connection is answered 503 and closed. A third of what the limit on open files leaves, if less."""
    max_per_peer: Positive = 2048
    """Of these, from one IPv4 address or one IPv6 /64. A proxy in front is one peer."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of other origins that may use the HTTP routes from a browser: `https://crm.example`, or `*` for any.
    They need a key as everybody does. WebSockets are not bound by it (docs/events.md)."""
    header_timeout_s: Annotated[float, Meta(gt=0)] = 10.0
    """A request whose head has not come by then is answered 408."""
    transfer_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """A body that comes more slowly than 1 kB/s, or an answer that is not read, is given up after so long."""

    def check(self, key: str) -> None:
        for index, origin in enumerate(self.cors_origins):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"{key}.cors_origins[{index}]", origin, "expected https://host[:port], or *")
        check_tls(key, self.tls_cert, self.tls_key)


class Media(Section, frozen=True, kw_only=True):
    """The media listener: Twilio and other WebSocket media, without a web framework in between."""

    host: str = ""
    """Address to listen on. Empty: 0.0.0.0 (every IPv4 address) when there are API keys or `twilio.auth_token`, else
    127.0.0.1. Without either an address that is not loopback is an error."""
    port: Port = 8081
    tls_cert: str = ""
    """As `http.tls_cert`, for `wss` without a proxy in front."""
    tls_key: str = ""
    silence_after_s: Seconds = 2.0
    """TCP media: how long a silent leg waits before its timeline goes on as silence."""
    start_timeout_s: Seconds = 5.0
    """A media WebSocket that has not said who it is by then is closed."""
    max_message_bytes: Positive = 65536
    shed_lag_ms: Annotated[int, Meta(ge=32)] = 100
    """Overload: when the media tick is so late on average over two seconds, no partials are asked for."""
    refuse_lag_ms: Annotated[int, Meta(ge=32)] = 500
    """And from here on no call is taken (503) until it has fallen to half."""
    max_connections: Positive = 4096
    max_per_peer: Positive = 2048
    """As those of `http`."""

    def check(self, key: str) -> None:
        check_tls(key, self.tls_cert, self.tls_key)


class Stream(Section, frozen=True, kw_only=True):
    """Programs and browsers that send audio and read its words: `/ws/asr` and `/ws/transcribe`, on both ports."""

    max_sessions: Positive = 100
    """Open at once; beyond it an upgrade is answered 503. Each is a call as well (`max_calls`)."""
    max_sessions_per_key: Positive = 50
    """Of these, with one API key; beyond it 429."""
    idle_s: Annotated[float, Meta(gt=0)] = 60.0
    """A session without audio or a command for so long is ended, its finals sent."""
    max_s: Annotated[float, Meta(gt=0)] = 14400.0
    """The longest that a session lasts; it is then ended in the same way."""


class ApiKey(Section, frozen=True, kw_only=True):
    name: Name
    key: Secret
    """At least 8 of `A-Z a-z 0-9 . _ ~ -`: it must fit into a WebSocket subprotocol (RFC 6455 section 4.1)."""
    scopes: tuple[Scope, ...]


class Auth(Section, frozen=True, kw_only=True):
    api_keys: tuple[ApiKey, ...] = ()

    def check(self, key: str) -> None:
        for index, entry in enumerate(self.api_keys):
            if not _KEY.fullmatch(entry.key):
                wanted = "expected at least 8 of A-Z a-z 0-9 . _ ~ -"
                raise ConfigError(f"{key}.api_keys[{index}].key", entry.key, wanted)
        check_unique(f"{key}.api_keys[].name", [entry.name for entry in self.api_keys], "two keys have this name")
        check_unique(f"{key}.api_keys[].key", [entry.key for entry in self.api_keys], "another name has the same key")
