"""The state that a leg's transcriber keeps of an utterance until its final, and the events that are built from it."""

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
"""Partials follow each other at this fraction of `asr.partial_ms` until a word is shown, or until EAGER_MS."""
EAGER_MS = 1500
"""After this much speech without a word the sound is probably noise, and partials follow at their normal interval."""
HELD_MS = 300
"""The longest time that a first partial is held back while it may be another leg's words."""


def until_partial_ms(said_ms: int, partial_ms: int, *, shown: bool) -> int:
    """The interval to the next partial. `said_ms`: time since speech began; `shown`: a word has been shown."""
    return partial_ms if shown or said_ms >= EAGER_MS else round(EAGER * partial_ms)


@dataclass(slots=True)
class Speaker:
    """The person who speaks on a leg.

    A correction changes this object, and with it all utterances without a final. A new person gets a new object.
    """

    role: str
    name: str = ""
    """For display."""


@dataclass(slots=True)
class LiveUtterance:
    """An utterance without its final. Positions are the leg's."""

    id: str
    engine_id: str
    """The engine's id of the utterance.

    It differs from `id` after a cut before audio that the engine has received already: the engine then starts over
    under a new id.
    """
    start: int
    audio_start: int
    start_ms: int
    sent: int
    """The engine has received the audio before this position."""
    next_partial: int
    """The position at which the next partial is requested."""
    cut_from: int
    """Audio from this position on belongs to the next utterance if this one is cut for its length."""
    language: str
    speaker: Speaker
    revision: int = 0
    """The number of the newest request to the engine."""
    shown: int = 0
    """The revision of the newest published event."""
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
    """The engine keeps the audio, so that the words can be timestamped after the final."""
    asked_s: float = 0.0
    """When the newest final was requested, in seconds of the loop's clock."""
    engine_s: float = 0.0
    """How long the engine took for that request."""
    endpoint: EndpointTimes | None = None
    traceparent: str = ""
    """The trace context of the utterance's span; empty if it is not traced."""
    held: Hypothesis | None = None
    """The first partial, held back while it may be another leg's words."""
    held_until: int | None = None
    crosstalk: Comparison | None = None
    """The comparison with the call's other legs; None if crosstalk is not checked."""
    last: Hypothesis | None = None
    """The hypothesis of the final. Its event waits for the finals of the leg's earlier utterances."""

    @property
    def copy_of(self) -> str:
        """The leg that this utterance is crosstalk from; empty if it is genuine."""
        return self.crosstalk.copy_of if self.crosstalk is not None else ""

    def schedule_partial(self, position: int, partial_ms: int) -> None:
        """Schedule the partial that follows the one at `position`."""
        said_ms = (position - self.start) // POSITIONS_PER_MS
        self.next_partial = position + POSITIONS_PER_MS * until_partial_ms(said_ms, partial_ms, shown=bool(self.text))

    def hold(self, hypothesis: Hypothesis, position: int) -> bool:
        """Hold a first partial that may be another leg's words, for at most HELD_MS. Returns whether it is held."""
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
        """The times of this utterance for its trace, whose final is published now."""
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
