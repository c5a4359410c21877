"""What the transcribers of all legs count."""

from __future__ import annotations

from dataclasses import dataclass

from config.counters import counter


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
