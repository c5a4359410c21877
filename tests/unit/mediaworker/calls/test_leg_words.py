"""Times of a final's words: when they are asked for, where they are placed, and when they are published."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from asr.utterance import Alignment, TimedWord
from mediaworker.calls.word_timestamps import FinalText, LegWordTimestamps
from mediaworker.events import schema as events
from mediaworker.tracing.latency import LatencyParts


class Aligner:
    words: frozenset[str] = frozenset({"en"})

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.answers: list[Callable[[Alignment], None]] = []
        self.cancelled: list[str] = []

    def align(self, engine_id: str, text: str, language: str, on_alignment: Callable[[Alignment], None]) -> None:
        self.asked.append((engine_id, text, language))
        self.answers.append(on_alignment)

    def cancel(self, engine_id: str) -> None:
        self.cancelled.append(engine_id)


class Leg:
    def __init__(self) -> None:
        self.now, self.done = 10.0, 0
        self.aligner, self.latency = Aligner(), LatencyParts()
        self.published: list[tuple[int, events.EventBody]] = []
        self.words = LegWordTimestamps(
            self.aligner,  # type: ignore[arg-type]
            publish=lambda at_ms, body: self.published.append((at_ms, body)),
            clock=lambda: self.now,
            done=self._on_done,
            latency=self.latency,
        )

    def _on_done(self) -> None:
        self.done += 1

    def final(self, text: str = "hello there", language: str = "en-GB", name: str = "u1") -> FinalText:
        return FinalText(name, f"e-{name}", text, language, 1000, 2000, 900, end_s=9.5)

    def answer(self, *words: TimedWord, error: str | None = None, at: int = -1) -> None:
        self.aligner.answers[at](Alignment("u1", 1, words, error, queue_s=0.25))


HELLO, THERE = TimedWord("hello", 150, 400, 0.9), TimedWord("there", 500, 2000, 0.5)


def test_words_follow_the_final_by_as_much_as_they_are_late() -> None:
    leg = Leg()
    assert leg.words.wanted and leg.words.align(leg.final()) and len(leg.words) == 1
    assert leg.aligner.asked == [("e-u1", "hello there", "en")]
    leg.now = 10.5
    leg.answer(HELLO, THERE)
    assert leg.published == [] and leg.done == 0, "not before the final"
    assert (leg.latency.words.sum, leg.latency.words_queue.sum) == (0.5, 0.25)
    leg.words.on_final_published("u1")
    words = [events.Word("hello", 1050, 1300, 0.9), events.Word("there", 1400, 2000, 0.5)]
    assert leg.published == [(3000, events.TranscriptWords("u1", words))] and leg.done == 1 and len(leg.words) == 0
    leg.words.on_final_published("u1")
    leg.answer(HELLO)
    assert len(leg.published) == 1 and leg.done == 1


def test_words_may_be_there_after_the_final() -> None:
    leg = Leg()
    leg.words.align(leg.final())
    leg.words.on_final_published("u1")
    assert leg.done == 0
    leg.now = 9.0
    leg.answer(HELLO)
    assert [at_ms for at_ms, _ in leg.published] == [2000], "a clock that is early makes nothing negative"


@pytest.mark.parametrize(("text", "language"), [("", "en"), ("hallo", "de"), ("hello", "")])
def test_what_cannot_be_aligned_is_not_asked_for(text: str, language: str) -> None:
    leg = Leg()
    assert not leg.words.align(leg.final(text, language)) and leg.aligner.asked == [] and len(leg.words) == 0


def test_a_failure_costs_the_times_and_nothing_else() -> None:
    leg = Leg()
    leg.words.align(leg.final())
    leg.words.on_final_published("u1")
    leg.answer(error="no model")
    assert leg.published == [] and leg.done == 1 and len(leg.words) == 0


def test_who_gives_up_waits_for_nothing() -> None:
    leg = Leg()
    leg.words.align(leg.final())
    leg.words.align(leg.final(name="u2"))
    leg.words.give_up()
    assert leg.aligner.cancelled == ["e-u1", "e-u2"] and len(leg.words) == 0
    leg.answer(HELLO, at=0)
    assert leg.published == [] and leg.done == 0
    leg.aligner.words = frozenset()
    assert not leg.words.wanted
