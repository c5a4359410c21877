"""The settings of the ingresses Twilio and Asterisk; those of SIP and of programs are in `sip` and `listeners`."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from config.errors import ConfigError
from config.sections.checks import check_network, check_verbs
from config.sections.section import Port, Reloadable, Secret, Section


class Twilio(Section, frozen=True, kw_only=True):
    auth_token: Secret = Secret("")
    """Webhooks and upgrades must be signed with this token. If it is empty, only programs on this machine that run as
    the worker's user may connect."""
    auth_token_next: Secret = Secret("")
    """Signatures with this second token are accepted as well, so that the token can be rotated."""
    public_url: str = ""
    """Twilio posts to this URL, without the path and as Twilio sees it: `https://host`."""
    stream_url: str = ""
    """Twilio connects to this URL for media: `wss://host/twilio/stream`. If it is empty, it is derived from
    `twilio.public_url`."""
    mode: Literal["start", "connect"] = "start"
    """With `start`, the call is forked and goes on with `twilio.then`; with `connect`, the call is handed over to the
    worker."""
    then: str = '<Pause length="3600"/>'
    """This TwiML follows `<Start>`; without a next verb Twilio hangs up. For agent assist use `<Dial>…</Dial>`."""
    require_token: bool = False
    """A stream becomes a call only if it carries the token of a webhook answer (`mw_token`), so that replaying a signed
    upgrade opens nothing. If this is false, TwiML that the worker has not written may lead here as well."""

    def check(self, key: str) -> None:
        for name, url, schemes in (
            ("public_url", self.public_url, ("https://", "http://")),
            ("stream_url", self.stream_url, ("wss://", "ws://")),
        ):
            if url and not url.startswith(schemes):
                raise ConfigError(f"{key}.{name}", url, f"must start with {' or '.join(schemes)}")
            try:
                if url and (not urlsplit(url).hostname or urlsplit(url).port == 0):
                    raise ConfigError(f"{key}.{name}", url, "has no host")
            except ValueError as error:
                raise ConfigError(f"{key}.{name}", url, f"not a URL: {error}") from None
        check_verbs(f"{key}.then", self.then)
        if self.auth_token and not self.public_url:
            raise ConfigError(
                f"{key}.public_url", "", f"is required with {key}.auth_token: signatures are made over it"
            )


class AudioSocket(Section, frozen=True, kw_only=True):
    """Asterisk's AudioSocket (docs/how-to/pbx/asterisk.md): a TCP port without TLS or credentials."""

    enabled: bool = False
    """The worker listens for AudioSocket connections when this is true."""
    host: str = "127.0.0.1"
    """AudioSocket listens on this address."""
    port: Port = 9092
    """AudioSocket listens on this TCP port."""
    allow: Reloadable[tuple[str, ...]] = ()
    """These addresses or networks (CIDR) may connect, in addition to loopback; `audiosocket.host` must be an address
    that they can reach."""
    send_audio: Reloadable[Literal["silence", "none"]] = "silence"
    """With `silence`, the worker sends frames of 20 ms of silence in the format it receives; with `none`, it sends
    nothing, and Asterisk's application gives up after 2 s."""

    def check(self, key: str) -> None:
        for index, network in enumerate(self.allow):
            check_network(f"{key}.allow[{index}]", network)


class Asterisk(Section, frozen=True, kw_only=True):
    """Asterisk's WebSocket channels (docs/how-to/pbx/asterisk.md), at `/asterisk/media` on both ports."""

    answer: bool = True
    """The worker answers a channel that Asterisk has not answered itself (option `n` of the dial string)."""
