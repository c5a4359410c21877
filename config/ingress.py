"""Where calls come from besides SIP and programs: Twilio and Asterisk."""

from __future__ import annotations

from typing import Literal

from config.errors import ConfigError
from config.section import Port, Positive, Seconds, Secret, Section


class Twilio(Section, frozen=True, kw_only=True):
    auth_token: Secret = Secret("")
    """Signs webhooks and upgrades. Empty: only programs on this machine that run as the worker's user may connect."""
    auth_token_next: Secret = Secret("")
    """A second accepted token, for rotation."""
    public_url: str = ""
    """The URL that Twilio posts to, as Twilio sees it, without the path: `https://host`."""
    stream_url: str = ""
    """The media URL as Twilio sees it: `wss://host/twilio/stream`. Empty: derived from `public_url`."""
    mode: Literal["start", "connect"] = "start"
    """`start` forks the call and goes on with `then`; `connect` hands the call to the worker."""
    then: str = '<Pause length="3600"/>'
    """TwiML after `<Start>`; without a next verb Twilio hangs up. Agent assist wants `<Dial>…</Dial>` here."""
    token_ttl_s: Seconds = 60.0
    """How long the call-bound token of a webhook answer is accepted."""
    require_token: bool = False
    """A stream becomes a call only with the token of a webhook answer (`mw_token`), so a signed upgrade that somebody
    repeats opens nothing. Off: TwiML that the worker has not written may lead here as well."""

    def check(self, key: str) -> None:
        for name, url, schemes in (
            ("public_url", self.public_url, ("https://", "http://")),
            ("stream_url", self.stream_url, ("wss://", "ws://")),
        ):
            if url and not url.startswith(schemes):
                raise ConfigError(f"{key}.{name}", url, f"must start with {' or '.join(schemes)}")
        if self.auth_token and not self.public_url:
            raise ConfigError(
                f"{key}.public_url", "", f"is required with {key}.auth_token: signatures are made over it"
            )


class AudioSocket(Section, frozen=True, kw_only=True):
    """Asterisk's AudioSocket (docs/asterisk.md): a TCP port without TLS or credentials."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Port = 9092
    allow: tuple[str, ...] = ()
    """Addresses or networks (CIDR) that may connect, beside loopback. `host` has to be one that they can reach."""
    max_connections: Positive = 512
    """Each is a call. A fourth of what the limit on open files leaves, if less."""
    send_audio: Literal["silence", "none"] = "silence"
    """`silence`: 20 ms at a time, of the kind that comes. Asterisk's application gives up after 2 s of nothing."""
    silent_s: Seconds = 3600.0
    """A call without a frame from Asterisk for so long is ended; 0: never. Nothing comes while a caller holds."""


class Asterisk(Section, frozen=True, kw_only=True):
    """Asterisk's WebSocket channels (docs/asterisk.md), at `/asterisk/media` on both ports."""

    answer: bool = True
    """Answer a channel that Asterisk has not answered itself (option `n` of the dial string)."""
