"""The counters of requests to engines and their answers, in a worker or in an engine server for all its workers."""

from __future__ import annotations

from dataclasses import dataclass, fields

import structlog

from asr.utterance import Alignment
from config.metrics.counters import counter

log = structlog.get_logger("asr")


@dataclass(slots=True)
class RecognizerCounters:
    """Plain integers, which the metrics show."""

    utterances: int = 0
    partials: int = 0
    """The number of partials delivered."""
    finals: int = 0
    """The number of finals delivered, including speculative ones and those with an error."""
    errors: int = counter("Counts finals that the engine answered with an error.")
    alignments: int = counter("Counts utterances whose words were given times.")
    words: int = counter("Counts words that were given times.")
    failed_alignments: int = counter(
        "Counts utterances for which times of words were requested and could not be found."
    )
    refused_alignments: int = counter("Counts utterances whose words were given no times because too much was waiting.")
    stale: int = counter("Counts answers of the engine that came too late to be used.")
    refused_partials: int = counter("Counts partials that were not requested because too much audio was waiting.")
    """The limit is `asr.max_backlog_mb`."""
    shed_partials: int = counter("Counts partials that the scheduler dropped under load.")
    exhausted_steps: int = counter(
        "Counts steps of the engine that ran out of memory and were repeated in smaller parts."
    )
    crashes: int = counter(
        "Counts inference processes that have died, and connections to engine servers that were lost."
    )
    hangs: int = counter("Counts inference processes that were killed because they had stopped answering.")
    spill_failures: int = counter(
        "Counts utterances that were given up because there was no room on disk for their audio."
    )
    replayed: int = counter("Counts utterances that were sent again after the inference process had ended.")

    def on_alignment(self, alignment: Alignment) -> None:
        self.alignments += bool(alignment.words)
        self.words += len(alignment.words)
        self.refused_alignments += alignment.refused
        self.failed_alignments += alignment.error is not None

    def on_dropped(self, server: str, partials: int, exhausted: int) -> None:
        """Count partials that an engine has shed, and steps that it has repeated because it ran out of memory."""
        self.shed_partials += partials
        self.exhausted_steps += exhausted
        if exhausted:
            log.warning("the engine ran out of memory", server=server, steps=exhausted, shed=partials)

    def add(self, now: RecognizerCounters, before: RecognizerCounters) -> None:
        """Add the differences between two readings of another process's counters."""
        for each in fields(self):
            more = getattr(now, each.name) - getattr(before, each.name)
            setattr(self, each.name, getattr(self, each.name) + more)
