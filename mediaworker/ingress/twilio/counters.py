"""What has come over Twilio's streams, for `/metrics`."""

from __future__ import annotations

from dataclasses import dataclass

from mediaworker.ingress.counters import IngressCounters


@dataclass(slots=True)
class TwilioCounters(IngressCounters):
    """Over all streams, since the start of the worker. Plain integers for `/metrics`."""

    messages: int = 0
    media: int = 0
    dtmf: int = 0
    marks: int = 0
    started: int = 0
    stopped: int = 0
    disconnected: int = 0
    silent: int = 0
    """Calls ended because no message came for `twilio_session.SILENT_S`."""
    malformed: int = 0
    unknown: int = 0
    unexpected: int = 0
    """Known messages in a state that has no use for them: a second `start`, media after `stop`."""
    wrong_stream: int = 0
    wrong_track: int = 0
    implausible: int = 0
    """Chunks with a timestamp that cannot be of this stream, and digits faster than any phone; left out."""
    withheld: int = 0
    """Messages not sent because the stream is unidirectional or not open."""
