"""Where calls come from besides SIP and programs: Twilio and Asterisk."""

from __future__ import annotations

from typing import Literal

from config.errors import ConfigError
from config.sections.section import Port, Secret, Section


class Twilio(Section, frozen=True, kw_only=True):
    auth_token: Secret = Secret("")
    """Webhooks and upgrades must be signed with this token. While it is empty only programs on this machine that run as
    the worker's user may connect."""
    auth_token_next: Secret = Secret("")
    """A signature with this second token is accepted too, for rotation."""
    public_url: str = ""
    """Twilio posts to this URL, given as Twilio sees it and without the path: `https://host`."""
    stream_url: str = ""
    """Twilio connects to this URL for media: `wss://host/twilio/stream`. Empty means that it is derived from
    `twilio.public_url`."""
    mode: Literal["start", "connect"] = "start"
    """`start` forks the call and goes on with `twilio.then`; `connect` hands the call to the worker."""
    then: str = '<Pause length="3600"/>'
    """This TwiML follows `<Start>`; without a next verb Twilio hangs up. Agent assist wants `<Dial>…</Dial>` here."""
    require_token: bool = False
    """A stream becomes a call only with the token of a webhook answer (`mw_token`), so that a signed upgrade which
    somebody repeats opens nothing. While it is off, TwiML that the worker has not written may lead here as well."""

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
    """The worker listens for AudioSocket connections when this is on."""
    host: str = "127.0.0.1"
    """AudioSocket listens on this address."""
    port: Port = 9092
    """AudioSocket listens on this TCP port."""
    allow: tuple[str, ...] = ()
    """These addresses or networks (CIDR) may connect, beside loopback; `audiosocket.host` has to be an address that
    they can reach."""
    send_audio: Literal["silence", "none"] = "silence"
    """`silence` sends 20 ms of silence at a time, of the kind that comes; `none` sends nothing, and Asterisk's
    application gives up after 2 s of that."""


class Asterisk(Section, frozen=True, kw_only=True):
    """Asterisk's WebSocket channels (docs/asterisk.md), at `/asterisk/media` on both ports."""

    answer: bool = True
    """The worker answers a channel that Asterisk has not answered itself (option `n` of the dial string)."""
