"""What a leg's transcriber keeps of an utterance until its final, and the transcripts that are made of it."""

from __future__ import annotations

from dataclasses import dataclass

from asr.utterance import Hypothesis
from audio import SpeechOffset
from mediaworker.calls.crosstalk import Comparison
from mediaworker.events import schema as events
from mediaworker.tracing.latency import EndpointTimes
from mediaworker.tracing.traces import FinalTimes

POSITIONS_PER_MS = 8
FIRST_PARTIAL_MS = 250
EAGER = 0.25
"""Partials follow each other at this fraction of `asr.partial_ms` until a word is shown..."""
EAGER_MS = 1500
"""... or so much has been said: a noise has no words."""
HELD_MS = 300
"""For so long a first partial is held back that may be another leg's words."""


def until_partial_ms(said_ms: int, partial_ms: int, *, shown: bool) -> int:
    """How long after one partial the next is requested. `said_ms`: since speech began; `shown`: a word is shown."""
    return partial_ms if shown or said_ms >= EAGER_MS else round(EAGER * partial_ms)


@dataclass(slots=True)
class Speaker:
    """Who is heard on a leg. A correction changes it, in all that has no final yet; another person is another one."""

    role: str
    name: str = ""
    """For display."""


@dataclass(slots=True)
class LiveUtterance:
    """An utterance without its final. Positions are the leg's."""

    id: str
    engine_id: str
    """The engine's name for it. It differs after a cut in front of what the engine has had, where it starts over."""
    start: int
    audio_start: int
    start_ms: int
    sent: int
    """The engine has the audio before this position."""
    next_partial: int
    """The position at which the next partial is requested."""
    cut_from: int
    """What follows may belong to the next utterance, if this one is cut for its length."""
    language: str
    speaker: Speaker
    revision: int = 0
    """The newest request to the engine."""
    shown: int = 0
    """The newest event's revision."""
    text: str = ""
    stable_chars: int = 0
    paused: int | None = None
    """The end of speech while a speculative final has been requested or has arrived."""
    guess: Hypothesis | None = None
    """The speculative final."""
    ended: SpeechOffset | None = None
    end_ms: int = 0
    end_s: float = 0.0
    lost_ms: int = 0
    words: bool = False
    """The engine keeps its audio for the timestamps of its words."""
    asked_s: float = 0.0
    """When its newest final was requested."""
    engine_s: float = 0.0
    """How long that request took."""
    endpoint: EndpointTimes | None = None
    traceparent: str = ""
    """Its span; empty: it is not traced."""
    held: Hypothesis | None = None
    """The first partial, held back while it may be another leg's words."""
    held_until: int | None = None
    crosstalk: Comparison | None = None
    """With the call's other legs; None: nobody compares."""
    last: Hypothesis | None = None
    """The hypothesis of its final. The event waits while an earlier utterance of the leg has none."""

    @property
    def copy_of(self) -> str:
        """The leg whose sound it is, which makes it crosstalk; empty: it is its own leg's."""
        return self.crosstalk.copy_of if self.crosstalk is not None else ""

    def schedule_partial(self, position: int, partial_ms: int) -> None:
        """The next one after that at `position`."""
        said_ms = (position - self.start) // POSITIONS_PER_MS
        self.next_partial = position + POSITIONS_PER_MS * until_partial_ms(said_ms, partial_ms, shown=bool(self.text))

    def hold(self, hypothesis: Hypothesis, position: int) -> bool:
        """Hold a partial back if it may be the first of another leg's words, but not for ever."""
        if self.text or not hypothesis.text or self.crosstalk is None or not self.crosstalk.doubtful:
            return False
        if self.held_until is None:
            self.held_until = position + HELD_MS * POSITIONS_PER_MS
        self.held = hypothesis if position < self.held_until else None
        return self.held is not None

    def release(self, position: int) -> Hypothesis | None:
        """The partial that was held back, once it may be shown."""
        assert self.crosstalk is not None and self.held_until is not None
        if self.crosstalk.doubtful and position < self.held_until:
            return None
        held, self.held = self.held, None
        return None if self.copy_of else held

    def partial(self, leg: str, hypothesis: Hypothesis, end_ms: int) -> events.TranscriptPartial | None:
        """The next partial, or None if the hypothesis changes nothing."""
        shown = (self.text, self.stable_chars)
        if not hypothesis.text or (hypothesis.text, hypothesis.stable_chars) == shown:
            return None
        self.text, self.stable_chars = hypothesis.text, hypothesis.stable_chars
        self.shown += 1
        self.language = hypothesis.language or self.language
        return events.TranscriptPartial(
            leg=leg,
            role=self.speaker.role,
            utterance_id=self.id,
            revision=self.shown,
            start_ms=self.start_ms,
            end_ms=end_ms,
            text=self.text,
            stable_chars=self.stable_chars,
            language=self.language,
            name=self.speaker.name,
        )

    def final(self, leg: str, hypothesis: Hypothesis, latency_ms: int) -> events.TranscriptFinal:
        assert self.ended is not None
        return events.TranscriptFinal(
            leg=leg,
            role=self.speaker.role,
            utterance_id=self.id,
            revision=self.shown + 1,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            text=hypothesis.text,
            stable_chars=len(hypothesis.text),
            language=hypothesis.language or self.language,
            lost_ms=self.lost_ms,
            latency_ms=latency_ms,
            reason="failed" if hypothesis.error is not None else self.ended.reason,
            error=hypothesis.error,
            crosstalk=self.copy_of,
            name=self.speaker.name,
        )

    def times(self, final: events.TranscriptFinal, queue_s: float, now_s: float) -> FinalTimes:
        """What its final has taken, which is published now."""
        assert self.ended is not None
        return FinalTimes(
            utterance_id=self.id,
            leg=final.leg,
            reason=final.reason,
            latency_ms=final.latency_ms,
            start_s=self.end_s - (self.ended.end - self.start) / (1000 * POSITIONS_PER_MS),
            end_s=self.end_s,
            known_s=self.endpoint.known_s if self.endpoint is not None else None,
            asked_s=self.asked_s,
            queue_s=queue_s,
            engine_s=self.engine_s,
            published_s=now_s,
        )
