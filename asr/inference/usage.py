"""What the links of an engine have there: utterances, files, audio, and how long they wait. No I/O and no clock."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from asr.counters import RecognizerCounters
from asr.inference.served_utterance import ServedUtterance
from asr.messages import Answered, FromEngine, Heard, Usage
from asr.utterance import Alignment, Hypothesis

DELAY_S = 2.0
"""Over about so long the delay of requests is averaged."""


class Delay:
    """How long requests have lately waited: an average that forgets. Time in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._value_s, self._at_s = 0.0, 0.0

    def record(self, waited_s: float, now_s: float) -> None:
        keep = math.exp(-max(0.0, now_s - self._at_s) / DELAY_S) * 0.9
        self._value_s, self._at_s = keep * self._value_s + (1.0 - keep) * waited_s, now_s

    def ms(self, now_s: float) -> int:
        """The delay in steps of 10 ms, so that it is not sent anew with every answer."""
        return round(100 * self._value_s * math.exp(-max(0.0, now_s - self._at_s) / DELAY_S)) * 10


class EngineUsage:
    """The sums, by `Utterance.source` where it matters whose they are."""

    def __init__(self) -> None:
        self.counters = RecognizerCounters()
        self.utterances, self.files = Counter[str](), Counter[str]()
        """Open ones, and those of them that are files."""
        self.audio = Counter[str]()
        """Bytes of open utterances, of the sources that have some."""
        self.delay = Delay()
        """How long requests of calls have lately waited before the engine began with them."""

    def on_open(self, served: ServedUtterance) -> None:
        self.counters.utterances += 1
        self._count(served, 1)

    def on_audio(self, served: ServedUtterance, size: int) -> None:
        self.audio[served.utterance.source] += size

    def on_close(self, served: ServedUtterance) -> None:
        source = served.utterance.source
        self._count(served, -1)
        self.audio[source] -= served.received
        if not self.audio[source]:
            del self.audio[source]

    def refuses_partial(self, served: ServedUtterance, max_bytes: float) -> bool:
        """Whether there is more audio than this, and its source has more than its share of it.

        A source may fill all of the room while it is alone, and an equal share while others have audio there: nobody
        is refused anything for what another one has sent.
        """
        share = max_bytes / max(1, len(self.audio))
        refused = self.audio.total() > max_bytes and self.audio[served.utterance.source] > share
        self.counters.refused_partials += refused
        return refused

    def sum(self, now_s: float) -> Usage:
        """The sums over all sources. What the links know is added there."""
        return Usage(
            open_utterances=self.utterances.total(),
            files=self.files.total(),
            audio_bytes=self.audio.total(),
            delay_ms=self.delay.ms(now_s),
            counters=replace(self.counters),
        )

    def on_hypothesis(self, served: ServedUtterance, hypothesis: Hypothesis, now_s: float) -> list[FromEngine]:
        """-> the message with it, and behind it what a trace is to say of a final that a worker elsewhere traces."""
        if hypothesis.final:
            self.counters.finals += 1
            self.counters.errors += hypothesis.error is not None
        else:
            self.counters.partials += 1
        if served.utterance.live:
            self.delay.record(hypothesis.queue_s, now_s)
        source, span = served.utterance.source, served.utterance.traceparent
        if not (source and span and hypothesis.final):
            return [Heard(hypothesis)]
        failed = hypothesis.error is not None
        return [Heard(hypothesis), Answered(int(source), span, served.final_asked_s, hypothesis.queue_s, failed)]

    def on_alignment(self, alignment: Alignment) -> None:
        self.counters.alignments += bool(alignment.words)
        self.counters.words += len(alignment.words)
        self.counters.failed_alignments += alignment.error is not None

    def _count(self, served: ServedUtterance, change: int) -> None:
        self.utterances[served.utterance.source] += change
        self.files[served.utterance.source] += 0 if served.utterance.live else change
