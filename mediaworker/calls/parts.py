"""The parts of calls and their legs: who calls whom, how a leg is transcribed, and the parts that all legs share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from asr.client.recognizer import Recognizer
from config import Endpointing
from config.metrics.counters import counter
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.overload import LoadGuard
from mediaworker.tracing.latency import LatencyParts
from mediaworker.tracing.traces import Traces


@dataclass(slots=True)
class CallInfo:
    """Who calls whom, and through which ingress (`source`)."""

    id: str
    source: str
    external_id: str
    direction: str
    from_: str
    to: str
    account: str = ""
    custom: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TranscriberStats:
    """Counters over all legs, scraped by the metrics."""

    utterances: int = counter("Counts utterances begun.")
    finals: int = counter("Counts finals published.")
    empty_finals: int = counter("Counts finals without words.")
    failed_finals: int = counter("Counts finals with an error.")
    partials: int = counter("Counts partials published.")
    speculative_hits: int = counter("Counts finals whose text was ready when the endpoint was reached.")
    resumed: int = counter("Counts speculative finals after which the speaker went on.")
    crosstalk_finals: int = counter("Counts finals without words because another leg's sound was heard.")


@dataclass(frozen=True, slots=True)
class TranscriberParts:
    """The parts that the transcribers of all legs share."""

    recognizer: Recognizer
    clock: Callable[[], float]
    stats: TranscriberStats = field(default_factory=TranscriberStats)
    latency: LatencyParts = field(default_factory=LatencyParts)
    guard: LoadGuard = field(default_factory=lambda: LoadGuard(shed_s=math.inf, refuse_s=math.inf))
    """Decides whether partials may be requested; the default always allows them."""
    traces: Traces | None = None
    """Records the times of each utterance; None if tracing is off."""


@dataclass(frozen=True, slots=True)
class LegPlan:
    """How a leg is transcribed when it is opened."""

    name: str
    speaker: Speaker
    """The speaker of utterances that begin now; another person may replace them during the call."""
    prefix: str
    """The common beginning of the leg's utterance ids."""
    endpointing: Endpointing
    partial_ms: int
    language: str = ""
    context: str = ""
