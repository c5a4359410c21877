"""The settings of events (subscribers, webhooks, retention) and of what operators see (log and traces)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.sections.checks import check_url
from config.sections.section import Name, Positive, Probability, Reloadable, Secret, Section


class Events(Section, frozen=True, kw_only=True):
    heartbeat_s: Annotated[float, Meta(ge=1)] = 20.0
    """The WebSockets of both ports receive a ping, and idle streams of server-sent events a comment, every this many
    seconds."""
    queue: Annotated[int, Meta(ge=16)] = 1000
    """At most this many events wait for one subscriber before it is closed with 4008; values below 256 make no sense,
    because so many may arrive at once."""
    max_subscribers: Reloadable[Positive] = 2000
    """The worker serves at most this many subscribers and refuses further ones with 503."""


class EventWebhook(Section, frozen=True, kw_only=True):
    """Durable events by HTTP: each is posted to `url`, in order within its call, until the receiver accepts it."""

    name: Name
    """The worker remembers across restarts, under this name, which events the webhook has received."""
    url: Annotated[str, Meta(min_length=1)]
    """Events are posted to this URL."""
    secret: Secret
    """Each request is signed with this secret (Standard Webhooks), which has at least 24 characters, or is `whsec_`
    followed by base64 of at least 24 bytes."""
    secret_next: Secret = Secret("")
    """Requests carry a signature with this second secret as well, so that the secret can be rotated."""
    types: tuple[str, ...] = ()
    """Only events of these durable types are posted; if the list is empty, all of them are."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """An event is retried for this many hours; then it is given up, and the next event of the call follows. An event
    that the receiver refuses as such (400, 405, 406, 411, 413, 414, 415, 422, 431) is given up after four tries."""


class Retention(Section, frozen=True, kw_only=True):
    """How long the events of ended calls are kept. Erased events are overwritten, and the file shrinks."""

    max_age_days: Annotated[float, Meta(ge=0)] = 0.0
    """Calls that ended more than this many days ago are erased. 0, the default, erases none, because transcripts should
    not disappear unless somebody asks for it."""
    max_bytes: Annotated[int, Meta(ge=0)] = 20_000_000_000
    """While the store is larger than this many bytes, the calls that ended first are erased; 0 erases none. The default
    holds about 400,000 calls of thirty utterances and keeps the disk from filling up, which would stop the worker from
    accepting calls."""


class Log(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Messages of this level and above are logged."""
    format: Literal["console", "json"] = "console"
    """`console` prints lines for people to read, `json` one object per line."""
    sip_trace: bool = False
    """Every SIP message is logged, with credentials, media keys and digits masked."""


class Tracing(Section, frozen=True, kw_only=True):
    """Where the time of a call goes, for OpenTelemetry (docs/how-to/monitoring.md). Install the extra `tracing`."""

    url: str = ""
    """Spans are sent to this URL of a collector by OTLP over HTTP, such as `http://collector:4318/v1/traces`; if it is
    empty, nothing is traced."""
    share: Probability = 1.0
    """The worker traces this share of its calls, from 0 for none to 1 for all; an engine server follows the workers."""

    def check(self, key: str) -> None:
        if self.url:
            check_url(f"{key}.url", self.url)
