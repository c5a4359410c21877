"""Events: who reads them, where they are posted, how long they are kept, and the log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.sections.section import Name, Positive, Secret, Section


class Events(Section, frozen=True, kw_only=True):
    heartbeat_s: Annotated[float, Meta(ge=1)] = 20.0
    """A subscriber gets a WebSocket ping, and a reader of server-sent events a comment when there is nothing else,
    every so many seconds."""
    queue: Annotated[int, Meta(ge=16)] = 1000
    """This many events may wait for one subscriber before it is closed with 4008; 256 may come at once, so fewer makes
    no sense."""
    max_subscribers: Positive = 2000
    """A subscriber beyond this many is refused with 503."""


class EventWebhook(Section, frozen=True, kw_only=True):
    """Durable events for who has no WebSocket: each is posted to `url`, in order within its call, until it is taken."""

    name: Name
    """Under this name the worker keeps how far the webhook has come, over restarts."""
    url: Annotated[str, Meta(min_length=1)]
    """Events are posted to this URL."""
    secret: Secret
    """Each request is signed with this secret (Standard Webhooks), which has at least 24 characters, or is `whsec_` and
    base64 of at least 24 bytes."""
    types: tuple[str, ...] = ()
    """Events of these durable types are posted; empty means all of them."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """An event is tried again for this many hours; then it is given up, and the call's next one follows."""


class Retention(Section, frozen=True, kw_only=True):
    """What happens to the events of calls that ended long ago. Erased is overwritten, and the file shrinks."""

    max_age_days: Annotated[float, Meta(ge=0)] = 0.0
    """Calls that ended more than this many days ago are erased. 0 erases none and is the default, because transcripts
    should not disappear unless somebody has asked for it."""
    max_bytes: Annotated[int, Meta(ge=0)] = 20_000_000_000
    """While the store's file is larger than this many bytes, the calls that ended first are erased; 0 erases none. The
    default holds about 400,000 calls of thirty utterances, for a full disk stops the worker from taking calls."""


class Log(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Messages of this level and above are logged."""
    format: Literal["console", "json"] = "console"
    """`console` prints lines for people, `json` one object a line."""
    sip_trace: bool = False
    """Every SIP message is logged, with credentials, media keys and digits masked."""
