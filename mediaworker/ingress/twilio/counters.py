"""Counters of Twilio's streams, for `/metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from config.metrics.counters import counter, counter_by
from mediaworker.ingress.counters import IngressCounters


@dataclass(slots=True)
class TwilioCounters(IngressCounters):
    """The totals over all streams since the start of the worker, for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Counts refused Twilio streams by reason.")
    messages: int = counter("Counts messages received on Twilio's streams.")
    media: int = counter("Counts media messages of Twilio.")
    dtmf: int = 0
    marks: int = 0
    started: int = counter("Counts Twilio streams that became a call or joined one.")
    joined: int = counter("Counts Twilio streams that joined a call which another stream had opened.")
    replaced: int = counter("Counts tracks that a newer Twilio stream of the same call has taken over.")
    stopped: int = counter("Counts Twilio streams that ended with a stop message.")
    disconnected: int = counter("Counts Twilio streams whose connection was lost.")
    silent: int = 0
    """Calls that were ended because no message arrived for `twilio.session.SILENT_S`."""
    malformed: int = counter("Counts messages on Twilio's streams that are malformed.")
    unknown: int = counter("Counts messages of unknown events on Twilio's streams.")
    unexpected: int = counter("Counts messages in the wrong state on Twilio's streams.")
    """For example a second `start`, or media after `stop`."""
    wrong_stream: int = counter("Counts messages on a Twilio stream that belong to another stream.")
    wrong_track: int = counter("Counts Twilio media messages of a track that was not announced.")
    implausible: int = counter(
        "Counts Twilio chunks with an impossible timestamp and digits that came faster than any phone sends them."
    )
    withheld: int = 0
    """Messages that were not sent because the stream is unidirectional or not open."""
    webhooks: int = counter("Counts voice webhooks of Twilio that were answered.")
    forbidden: int = counter("Counts requests to Twilio's routes without a valid signature.")
    """Without an auth token this counts requests from other machines. Upgrades are included."""
