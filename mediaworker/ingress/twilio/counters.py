"""Counters of Twilio's streams, for `/metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from config.counters import counter, counter_by
from mediaworker.ingress.counters import IngressCounters


@dataclass(slots=True)
class TwilioCounters(IngressCounters):
    """Over all streams, since the start of the worker. Plain integers for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Streams refused by reason")
    messages: int = counter("Messages received")
    media: int = counter("Media messages")
    dtmf: int = 0
    marks: int = 0
    started: int = counter("Streams that became a call")
    stopped: int = counter("Streams ended by stop")
    disconnected: int = counter("Streams whose socket was lost")
    silent: int = 0
    """Calls ended because no message came for `twilio.session.SILENT_S`."""
    malformed: int = counter("Messages that are not what Twilio sends")
    unknown: int = counter("Messages of an unknown event")
    unexpected: int = counter("Messages in the wrong state")
    """A second `start`, or media after `stop`."""
    wrong_stream: int = counter("Messages of another stream")
    wrong_track: int = counter("Media of a track that was not announced")
    implausible: int = counter("Chunks with an impossible timestamp, digits faster than any phone")
    withheld: int = 0
    """Messages not sent because the stream is unidirectional or not open."""
    webhooks: int = counter("Voice webhooks answered")
    forbidden: int = counter("Requests of Twilio's routes without a valid signature")
    """Or from elsewhere, when there is no auth token; upgrades included."""
