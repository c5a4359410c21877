"""The HTTP port, the media port, who may use them, and the streams of programs."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from config.errors import ConfigError
from config.sections.checks import check_tls, check_unique
from config.sections.section import Name, Port, Positive, Scope, Seconds, Secret, Section

_ORIGIN = re.compile(r"https?://[^\s/?#@*]+")
_KEY = re.compile(r"[A-Za-z0-9._~-]{8,}")


class Http(Section, frozen=True, kw_only=True):
    """The HTTP port: routes, `/v1/events`, the page, and the media WebSockets for one-tunnel users."""

    host: str = ""
    """The port listens on this address; empty means 0.0.0.0 (every IPv4 address) when there are API keys, else
    127.0.0.1. Without keys an address that is not loopback is an error."""
    port: Port = 8080
    """The HTTP routes, `/v1/events` and the page are on this TCP port; 0 takes any free one."""
    tls_cert: str = ""
    """A PEM file with the certificate and its chain makes the port speak HTTPS; it is read again at every reload."""
    tls_key: str = ""
    """The certificate's private key is in this PEM file; empty means that it is in the file of `http.tls_cert`."""
    max_connections: Positive = 4096
    """Limits the connections to this port, half of which may come from one IPv4 address or IPv6 /64 (a proxy is one);
    more are answered 503 and closed. A third of what the limit on open files leaves holds instead if it is less."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these other origins may use the HTTP routes from a browser: `https://crm.example`, or `*` for any.
    They need a key as everybody does, and WebSockets are not bound by this list (docs/events.md)."""
    header_timeout_s: Annotated[float, Meta(gt=0)] = 10.0
    """A request whose head has not come after this many seconds is answered 408."""
    transfer_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """A body that comes more slowly than 1 kB/s, or an answer that is not read, is given up after this many seconds."""

    def check(self, key: str) -> None:
        for index, origin in enumerate(self.cors_origins):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"{key}.cors_origins[{index}]", origin, "expected https://host[:port], or *")
        check_tls(key, self.tls_cert, self.tls_key)


class Media(Section, frozen=True, kw_only=True):
    """The media listener: Twilio and other WebSocket media, without a web framework in between."""

    host: str = ""
    """The port listens on this address; empty means 0.0.0.0 (every IPv4 address) when there are API keys or
    `twilio.auth_token`, else 127.0.0.1. Without either an address that is not loopback is an error."""
    port: Port = 8081
    """The media WebSockets are on this TCP port; 0 takes any free one."""
    tls_cert: str = ""
    """A PEM file with the certificate and its chain makes the media port speak `wss` without a proxy in front; it is
    read again at every reload."""
    tls_key: str = ""
    """The certificate's private key is in this PEM file; empty means that it is in the file of `media.tls_cert`."""
    silence_after_s: Seconds = 2.0
    """A leg on a TCP transport that sends nothing for this many seconds goes on as silence."""
    start_timeout_s: Seconds = 5.0
    """A media WebSocket that has not said who it is after this many seconds is closed."""
    max_message_bytes: Positive = 65536
    """A WebSocket message larger than this many bytes closes its connection with 1009."""
    max_connections: Positive = 4096
    """Limits the connections to the media port, half of which may come from one IPv4 address or IPv6 /64 (a proxy is
    one); more are answered 503 and closed. A third of what the limit on open files leaves holds instead if it is
    less."""

    def check(self, key: str) -> None:
        check_tls(key, self.tls_cert, self.tls_key)


class Stream(Section, frozen=True, kw_only=True):
    """Programs and browsers that send audio and read its words: `/ws/asr` and `/ws/transcribe`, on both ports."""

    max_sessions: Positive = 100
    """An upgrade beyond this many open sessions is answered 503; each session counts as a call as well
    (`max_calls`)."""
    max_sessions_per_key: Positive = 50
    """An upgrade beyond this many open sessions of one API key is answered 429."""
    idle_s: Annotated[float, Meta(gt=0)] = 60.0
    """A session without audio or a command for this many seconds is ended, its finals sent."""
    max_s: Annotated[float, Meta(gt=0)] = 14400.0
    """A session that has lasted this many seconds is ended, its finals sent."""


class ApiKey(Section, frozen=True, kw_only=True):
    name: Name
    """Logs and limits know the key by this name."""
    key: Secret
    """The key has at least 8 of `A-Z a-z 0-9 . _ ~ -`, for it must fit into a WebSocket subprotocol (RFC 6455 section
    4.1)."""
    scopes: tuple[Scope, ...]
    """The key opens the routes of these scopes."""


class Auth(Section, frozen=True, kw_only=True):
    api_keys: tuple[ApiKey, ...] = ()

    def check(self, key: str) -> None:
        for index, entry in enumerate(self.api_keys):
            if not _KEY.fullmatch(entry.key):
                wanted = "expected at least 8 of A-Z a-z 0-9 . _ ~ -"
                raise ConfigError(f"{key}.api_keys[{index}].key", entry.key, wanted)
        check_unique(f"{key}.api_keys[].name", [entry.name for entry in self.api_keys], "two keys have this name")
        check_unique(f"{key}.api_keys[].key", [entry.key for entry in self.api_keys], "another name has the same key")
