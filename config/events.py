"""Events: who reads them, where they are posted, how long they are kept, and the log."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.section import Name, Positive, Secret, Section


class Events(Section, frozen=True, kw_only=True):
    heartbeat_s: Annotated[float, Meta(ge=1)] = 20.0
    """Seconds between WebSocket pings to a subscriber, and between comments to an idle reader of server-sent events."""
    queue: Annotated[int, Meta(ge=16)] = 1000
    """Events that may wait for one subscriber before it is closed with 4008. 256 may come at once: not fewer."""
    max_subscribers: Positive = 2000
    metrics_s: Annotated[float, Meta(gt=0)] = 5.0


class EventWebhook(Section, frozen=True, kw_only=True):
    """Durable events for who has no WebSocket: each is posted to `url`, in order within its call, until it is taken."""

    name: Name
    """Under it the worker keeps how far this webhook has come, over restarts."""
    url: Annotated[str, Meta(min_length=1)]
    secret: Secret
    """Signs each request (Standard Webhooks): at least 24 characters, or `whsec_` and base64 of at least 24 bytes."""
    types: tuple[str, ...] = ()
    """Of the durable event types; none: all of them."""
    parallel: Annotated[int, Meta(ge=1, le=256)] = 16
    """Calls whose events are under way at once."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """So long an event is tried again; then it is given up, and the call's next one follows."""


class Retention(Section, frozen=True, kw_only=True):
    """What happens to the events of calls that ended long ago. Erased is overwritten, and the file shrinks."""

    max_age_days: Annotated[float, Meta(ge=0)] = 0.0
    """Calls that ended longer ago are erased; 0: never. Off, because nobody's transcripts should go unasked."""
    max_bytes: Annotated[int, Meta(ge=0)] = 20_000_000_000
    """While the store's file is larger the calls that ended first are erased; 0: never. On, because a full disk stops
    the worker from taking calls; about 400,000 calls of thirty utterances."""
    every_s: Annotated[float, Meta(gt=0)] = 60.0
    """How often the store is looked through."""


class Log(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
    sip_trace: bool = False
    """Log every SIP message, with credentials, media keys and digits masked."""
