"""The settings of the HTTP port, of the media port, of the keys for them, and of the streams of programs."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from config.errors import ConfigError
from config.sections.checks import check_tls, check_unique
from config.sections.section import Name, Port, Positive, Scope, Seconds, Secret, Section, Switch, Switched

_ORIGIN = re.compile(r"https?://[^\s/?#@*]+")
_KEY = re.compile(r"[A-Za-z0-9._~-]{8,}")


class Http(Section, frozen=True, kw_only=True):
    """The HTTP port: the routes, `/v1/events`, the page, and the media WebSockets for users with a single tunnel."""

    host: str = ""
    """The HTTP port listens on this address. If it is empty, that is 0.0.0.0 (every IPv4 address) when API keys are
    configured, and 127.0.0.1 otherwise. An address other than loopback is an error without keys."""
    port: Port = 8080
    """This TCP port serves the HTTP routes, `/v1/events` and the page; 0 takes any free port."""
    tls_cert: Switch[str] = ""
    """With this PEM file, the certificate and its chain, the port speaks HTTPS. The file is read again at every
    reload."""
    tls_key: Switched[str] = ""
    """This PEM file contains the certificate's private key; if it is empty, the key is expected in the file of
    `http.tls_cert`."""
    max_connections: Positive = 4096
    """The port accepts at most this many connections, or a third of the limit on open files if that is less, and
    answers further ones with 503. One IPv4 address or IPv6 /64 may hold half of them; a proxy counts as one."""
    cors_origins: tuple[str, ...] = ()
    """Web pages from these origins may call the HTTP routes from a browser: `https://crm.example`, or `*` for any. They
    still need a key. WebSockets are not affected (docs/reference/events.md)."""
    header_timeout_s: Annotated[float, Meta(gt=0)] = 10.0
    """A request whose head is not complete after this many seconds is answered with 408."""
    transfer_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """The connection is closed when a request body arrives at less than 1 kB/s, or a response is not read, for this
    many seconds."""

    def check(self, key: str) -> None:
        for index, origin in enumerate(self.cors_origins):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"{key}.cors_origins[{index}]", origin, "expected https://host[:port], or *")
        check_tls(key, self.tls_cert, self.tls_key)


class Media(Section, frozen=True, kw_only=True):
    """The media port: Twilio and other media over WebSocket."""

    host: str = ""
    """The media port listens on this address. If it is empty, that is 0.0.0.0 (every IPv4 address) when API keys or
    `twilio.auth_token` are configured, and 127.0.0.1 otherwise. An address other than loopback is an error without
    either."""
    port: Port = 8081
    """This TCP port serves the media WebSockets; 0 takes any free port."""
    tls_cert: Switch[str] = ""
    """With this PEM file, the certificate and its chain, the media port speaks `wss` without a proxy. The file is read
    again at every reload."""
    tls_key: Switched[str] = ""
    """This PEM file contains the certificate's private key; if it is empty, the key is expected in the file of
    `media.tls_cert`."""
    silence_after_s: Seconds = 2.0
    """A leg on a TCP transport that sends nothing for this many seconds is continued as silence. A Twilio stream on
    which nothing comes at all is waited for 15 seconds at least, because Twilio sends silence too."""
    start_timeout_s: Seconds = 5.0
    """A media connection that has not introduced itself after this many seconds is closed."""
    max_message_bytes: Positive = 65536
    """A WebSocket message larger than this many bytes closes its connection with 1009."""
    max_connections: Positive = 4096
    """The media port accepts at most this many connections, or a third of the limit on open files if that is less, and
    answers further ones with 503. One IPv4 address or IPv6 /64 may hold half of them; a proxy counts as one."""

    def check(self, key: str) -> None:
        check_tls(key, self.tls_cert, self.tls_key)


class Stream(Section, frozen=True, kw_only=True):
    """Programs and browsers that send audio and receive text: `/ws/asr` and `/ws/transcribe`, on both ports."""

    max_sessions: Positive = 100
    """At most this many sessions may be open; further upgrades are answered with 503. Each session also counts as a
    call (`max_calls`)."""
    max_sessions_per_key: Positive = 50
    """At most this many sessions may be open with one API key; further upgrades are answered with 429."""
    idle_s: Annotated[float, Meta(gt=0)] = 3600.0
    """A session that sends neither audio nor a command for this many seconds, such as one whose speaker is muted, is
    ended after its finals have been sent. A client that has vanished is found by its missing pongs, long before."""
    max_s: Annotated[float, Meta(gt=0)] = 14400.0
    """A session is ended after this many seconds, once its finals have been sent."""


class ApiKey(Section, frozen=True, kw_only=True):
    name: Name
    """Logs and limits refer to the key by this name."""
    key: Secret
    """The key consists of at least 8 of `A-Z a-z 0-9 . _ ~ -`, because it must fit into a WebSocket subprotocol (RFC
    6455 section 4.1)."""
    scopes: tuple[Scope, ...]
    """The key gives access to the routes of these scopes."""


class Auth(Section, frozen=True, kw_only=True):
    api_keys: tuple[ApiKey, ...] = ()

    def check(self, key: str) -> None:
        for index, entry in enumerate(self.api_keys):
            if not _KEY.fullmatch(entry.key):
                wanted = "expected at least 8 of A-Z a-z 0-9 . _ ~ -"
                raise ConfigError(f"{key}.api_keys[{index}].key", entry.key, wanted)
        check_unique(f"{key}.api_keys[].name", [entry.name for entry in self.api_keys], "two keys have this name")
        check_unique(f"{key}.api_keys[].key", [entry.key for entry in self.api_keys], "another name has the same key")
