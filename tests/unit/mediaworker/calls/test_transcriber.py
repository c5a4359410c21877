"""From detections to requests and events: what is asked of the engine, and what is published when it answers late.

The detector is the real one on recorded speech; the engine's side is a script, since what matters here is the order in
which its answers come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from asr.utterance import Hypothesis, Utterance
from audio import Codec, Detector
from audio.codecs.g711 import ulaw_encode
from config import Endpointing
from lab.media.speech import speech
from mediaworker.calls.live_utterance import Speaker
from mediaworker.calls.overload import LoadGuard
from mediaworker.calls.parts import LegPlan, TranscriberParts, TranscriberStats
from mediaworker.calls.transcriber import LegTranscriber
from mediaworker.calls.word_timestamps import FinalText
from mediaworker.events import schema as events
from mediaworker.tracing.latency import LatencyParts


@dataclass
class Engine:
    """Takes requests; answers when the test says so."""

    audio: dict[str, bytearray] = field(default_factory=dict)
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    heard: dict[str, Callable[[Hypothesis], None]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)
    at_once: bool = False
    previous: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    wanted_in_ms: list[int] = field(default_factory=list)

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        assert utterance.id not in self.heard
        self.audio[utterance.id] = bytearray()
        self.heard[utterance.id] = on_hypothesis
        self.previous.append(utterance.previous)

    def append(self, utterance_id: str, audio: bytes) -> None:
        assert utterance_id not in self.closed
        self.audio[utterance_id] += audio

    def partial(self, utterance_id: str, revision: int) -> None:
        self._ask("partial", utterance_id, revision)

    def withdraw(self, utterance_id: str) -> None:
        self.withdrawn.append(utterance_id)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self.wanted_in_ms.append(wanted_in_ms)
        self._ask("final" if commit else "guess", utterance_id, revision)

    def commit(self, utterance_id: str) -> None:
        self.closed.append(utterance_id)

    def cancel(self, utterance_id: str) -> None:
        self.closed.append(utterance_id)

    def release(self, stream: str) -> None:
        self.released.append(stream)

    def _ask(self, kind: str, utterance_id: str, revision: int) -> None:
        asked = [r for _, name, r in self.requests if name == utterance_id]
        assert not asked or revision > asked[-1], "revisions increase"
        self.requests.append((kind, utterance_id, revision))
        if self.at_once:
            self.answer(self.requests[-1], f"{kind} {revision}")

    def answer(self, request: tuple[str, str, int], text: str, error: str | None = None) -> None:
        kind, utterance_id, revision = request
        final = kind != "partial"
        self.heard[utterance_id](Hypothesis(utterance_id, revision, text, "en", 0, final, error))


class Stage:
    def __init__(
        self,
        samples: np.ndarray,
        *,
        at_once: bool = False,
        latency: LatencyParts | None = None,
        guard: LoadGuard | None = None,
        **limits: float,
    ) -> None:
        given = {name: each for name, each in (("latency", latency), ("guard", guard)) if each is not None}
        self.detector = Detector()
        profile = Endpointing(**limits)  # type: ignore[arg-type]
        self.leg = self.detector.open(Codec.PCMU, profile, transport="stream")
        self.engine, self.stats = Engine(at_once=at_once), TranscriberStats()
        self.published: list[events.EventBody] = []
        self.drained = 0
        self.now = 0.0
        self.codes = ulaw_encode(samples)
        self.at = 0
        self.transcriber = LegTranscriber(
            self.leg,
            LegPlan("main", Speaker("customer"), "c/main/", profile, 500, "en"),
            replace(TranscriberParts(self.engine, lambda: self.now, self.stats), **given),
            publish=lambda at_ms, body: self.published.append(body),
            call_ms=lambda position: position // 8,
            drained=self._on_drained,
        )
        self.leg.start(0.0)

    def _on_drained(self) -> None:
        self.drained += 1

    def play(self, seconds: float | None = None) -> Stage:
        stop = len(self.codes) if seconds is None else self.at + int(seconds * 8000)
        while self.at < min(stop, len(self.codes)):
            self.leg.receive_chunk(self.at, self.codes[self.at : self.at + 160], self.now)
            self.at += 160
            self.now = self.at / 8000
            for detections in self.detector.step(self.now):
                for detection in detections:
                    self.transcriber.on_detection(detection)
            self.transcriber.feed()
        return self

    def play_until(self, kind: str) -> tuple[str, str, int]:
        """Until the engine is asked for this; returns the request."""
        seen = len(self.engine.requests)
        while self.at < len(self.codes):
            self.play(0.02)
            for request in self.engine.requests[seen:]:
                if request[0] == kind:
                    return request
        raise AssertionError(f"no {kind}")

    def of(self, kind: type) -> list:
        return [body for body in self.published if isinstance(body, kind)]

    def hang_up(self) -> None:
        for detection in self.detector.finishing(self.leg, "hangup"):
            self.transcriber.on_detection(detection)


def gap(seconds: float) -> np.ndarray:
    return np.zeros(int(seconds * 8000), np.int16)


WORDS = np.concatenate([gap(0.5), speech("auth-thankyou"), gap(1.0)])


def test_a_ready_guess_is_the_final_when_the_endpoint_fires() -> None:
    stage = Stage(WORDS, at_once=True).play()
    (final,) = stage.of(events.TranscriptFinal)
    kind, _, revision = stage.engine.requests[-1]
    assert kind == "guess" and final.text == f"guess {revision}"
    assert final.reason == "endpoint" and final.error is None
    assert stage.stats.speculative_hits == stage.stats.finals == stage.drained == 1
    assert stage.engine.wanted_in_ms == [500 - 160] and not stage.engine.withdrawn
    # The endpoint, the window it fell into, and nothing for recognition.
    assert 500 <= final.latency_ms <= 500 + 2 * 32
    assert stage.engine.closed == [final.utterance_id]


def test_audio_that_came_after_the_endpoint_of_a_stall_is_told_as_lost_by_the_next_final() -> None:
    stage = Stage(np.concatenate([WORDS, WORDS, WORDS]), at_once=True).play(1.0)
    stall_s = 5.0
    stage.now += stall_s
    for detections in stage.detector.step(stage.now):
        for detection in detections:
            stage.transcriber.on_detection(detection)
    assert len(stage.of(events.TranscriptFinal)) == 1, "the stall ended the utterance"
    stage.play()
    first, *later = stage.of(events.TranscriptFinal)
    assert first.lost_ms == 0 and later
    assert sum(final.lost_ms for final in later) == stage.leg.late * 20 > 2000


def test_a_late_guess_is_the_final_when_it_comes() -> None:
    stage = Stage(WORDS)
    request = stage.play_until("guess")
    stage.play()
    assert not stage.of(events.TranscriptFinal) and stage.transcriber.open_utterances == 1
    stage.engine.answer(request, "thank you")
    (final,) = stage.of(events.TranscriptFinal)
    assert final.text == "thank you" and stage.engine.requests[-1] == request
    assert stage.stats.speculative_hits == 0 and stage.drained == 1


def test_finals_come_in_the_order_in_which_they_were_said() -> None:
    """A batch answers a short utterance before a long one that has waited with it."""
    stage = Stage(np.concatenate([WORDS, WORDS, WORDS]))
    requests = [stage.play_until("guess"), stage.play_until("guess"), stage.play_until("guess")]
    stage.play()
    first, second, third = requests
    stage.engine.answer(third, "three")
    stage.engine.answer(second, "two")
    stage.engine.answer(third, "three again")  # from a process that was killed before it had heard
    assert not stage.of(events.TranscriptFinal) and stage.transcriber.open_utterances == 3
    assert stage.engine.closed == [third[1], second[1]], "the engine is done with them"
    stage.engine.answer(first, "", error="it died")
    finals = stage.of(events.TranscriptFinal)
    assert [(final.utterance_id, final.text) for final in finals] == [
        (first[1], ""), (second[1], "two"), (third[1], "three")
    ]  # fmt: skip
    assert [final.reason for final in finals] == ["failed", "endpoint", "endpoint"]
    assert stage.transcriber.open_utterances == 0 and stage.drained == 1


def test_the_engine_hears_up_to_the_speculation_and_no_further() -> None:
    stage = Stage(WORDS, at_once=True).play()
    (final,) = stage.of(events.TranscriptFinal)
    heard = bytes(stage.engine.audio[final.utterance_id])
    end = final.end_ms * 8 + 160 * 8
    start = end - len(heard)
    assert heard == stage.leg.read(start, end)
    assert start <= final.start_ms * 8 and final.start_ms * 8 - start <= 300 * 8


def test_speech_that_goes_on_makes_the_guess_a_partial() -> None:
    first = np.concatenate([gap(0.5), speech("auth-thankyou"), gap(0.3), speech("vm-goodbye"), gap(1.0)])
    stage = Stage(first)
    guess = stage.play_until("guess")
    stage.play_until("partial")  # resumed
    stage.engine.answer(guess, "thank you")  # too late: speech has resumed
    assert [body.text for body in stage.of(events.TranscriptPartial)] == ["thank you"]
    assert stage.engine.withdrawn == [guess[1]], "the engine need not answer"
    last = stage.play_until("guess")
    stage.play()
    assert not stage.of(events.TranscriptFinal)
    stage.engine.answer(guess, "thank you")  # an old answer ends nothing
    assert not stage.of(events.TranscriptFinal)
    stage.engine.answer(last, "thank you goodbye")
    (final,) = stage.of(events.TranscriptFinal)
    assert final.text == "thank you goodbye" and stage.stats.resumed == 1
    assert final.revision > max(body.revision for body in stage.of(events.TranscriptPartial))


def test_a_guess_that_takes_a_word_back_is_shown_by_the_final_alone() -> None:
    stage = Stage(WORDS)
    stage.engine.answer(stage.play_until("partial"), "thank them")
    stage.engine.answer(stage.play_until("guess"), "Thank you.")
    assert [body.text for body in stage.of(events.TranscriptPartial)] == ["thank them"]
    stage.play()
    assert [body.text for body in stage.of(events.TranscriptFinal)] == ["Thank you."]


def test_partials_are_shown_once_per_change_and_none_after_the_end() -> None:
    stage = Stage(WORDS)
    partial = stage.play_until("partial")
    stage.engine.answer(partial, "thank")
    stage.engine.answer(partial, "thank")
    stage.engine.answer(partial, "")
    assert [body.text for body in stage.of(events.TranscriptPartial)] == ["thank"]
    guess = stage.play_until("guess")
    stage.play()
    stage.engine.answer(partial, "thank me")
    assert len(stage.of(events.TranscriptPartial)) == 1
    stage.engine.answer(guess, "thank you")
    stage.engine.answer(guess, "again")
    assert [body.text for body in stage.of(events.TranscriptFinal)] == ["thank you"]


def test_a_hang_up_in_mid_word_asks_for_the_final_of_what_there_is() -> None:
    stage = Stage(WORDS)
    stage.play_until("partial")
    stage.hang_up()
    request = stage.engine.requests[-1]
    assert request[0] == "final"
    stage.engine.answer(request, "tha")
    (final,) = stage.of(events.TranscriptFinal)
    assert (final.text, final.reason) == ("tha", "hangup")
    assert stage.of(events.SpeechStarted)[0].utterance_id == final.utterance_id


def test_a_failed_final_says_so() -> None:
    stage = Stage(WORDS)
    guess = stage.play_until("guess")
    stage.play()
    stage.engine.answer(guess, "", error="the engine died twice")
    (final,) = stage.of(events.TranscriptFinal)
    assert (final.text, final.reason, final.error) == ("", "failed", "the engine died twice")
    assert stage.stats.failed_finals == 1


@pytest.mark.parametrize("limit_s", [1.0, 2.0, 3.5])
def test_a_cut_at_the_maximum_loses_and_doubles_no_sample(limit_s: float) -> None:
    stage = Stage(np.concatenate([gap(0.5), speech("demo-congrats")]), at_once=True, max_utterance_s=limit_s).play()
    stage.hang_up()
    finals = stage.of(events.TranscriptFinal)
    assert [body.utterance_id for body in stage.of(events.SpeechStarted)] == [body.utterance_id for body in finals]
    cuts = [body for body in finals if body.reason == "max_length"]
    assert len(cuts) > 3
    for cut, following in zip(finals, finals[1:], strict=False):
        heard = {name.split("/cut")[0]: audio for name, audio in stage.engine.audio.items()}
        audio = bytes(heard[cut.utterance_id])
        assert len(audio) <= limit_s * 8000 + 300 * 8 + 256
        if cut.reason == "max_length":
            assert following.start_ms >= cut.end_ms
            end = cut.end_ms * 8
            assert audio == stage.leg.read(end - len(audio), end)
    assert stage.transcriber.open_utterances == 0
    anew = [name for name in stage.engine.audio if name.endswith("/cut")]
    assert len(anew) <= stage.stats.resumed < len(cuts), "without a pause the engine goes on with what it has heard"


def test_the_engine_is_told_what_the_leg_said_before() -> None:
    stage = Stage(np.concatenate([WORDS, WORDS]), at_once=True).play()
    finals = stage.of(events.TranscriptFinal)
    assert len(finals) == 2 and stage.engine.previous == ["", finals[0].text]


def test_a_backlog_at_the_end_is_read_while_it_can_be() -> None:
    # 8 s that nobody has looked at yet, and an utterance that is cut for its length within them: at the end of it all
    # its beginning is further back than a leg remembers.
    words = speech("demo-congrats")
    stage = Stage(np.concatenate([words, words]), at_once=True, max_utterance_s=30).play(27)
    assert stage.transcriber.speaking_since_ms is not None
    while stage.at < 35 * 8000:
        stage.leg.receive_chunk(stage.at, stage.codes[stage.at : stage.at + 160], stage.now)
        stage.at += 160
    stage.hang_up()
    finals = stage.of(events.TranscriptFinal)
    assert [body.reason for body in finals] == ["max_length", "hangup"] and not any(body.error for body in finals)
    assert stage.transcriber.open_utterances == 0


@pytest.mark.parametrize("call", ["open", "append", "partial", "final"])
def test_a_fault_costs_one_utterance_and_leaves_nothing_open(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug")

    stage = Stage(np.concatenate([WORDS, WORDS]), at_once=True)
    with monkeypatch.context() as patch:
        patch.setattr(stage.engine, call, fault)
        stage.play(len(WORDS) / 8000)
    stage.play()
    broken, whole = stage.of(events.TranscriptFinal)
    assert (broken.text, broken.reason, broken.error) == ("", "failed", "an error in the worker")
    assert whole.text and whole.error is None
    assert len(stage.of(events.SpeechStarted)) == len(stage.of(events.SpeechEnded)) == 2
    assert stage.transcriber.open_utterances == 0


class Words:
    """Takes over every final."""

    wanted = True

    def __init__(self) -> None:
        self.finals: list[FinalText] = []
        self.published: list[str] = []

    def align(self, final: FinalText) -> bool:
        self.finals.append(final)
        return True

    def on_final_published(self, utterance_id: str) -> None:
        self.published.append(utterance_id)


def test_times_of_words_are_asked_for_from_where_the_audio_begins() -> None:
    stage = Stage(np.concatenate([np.zeros(8000, np.int16), speech("auth-thankyou")]), at_once=True)
    words = stage.transcriber.words = Words()  # type: ignore[assignment]
    stage.play()
    for detection in stage.detector.finishing(stage.leg, "hangup"):
        stage.transcriber.on_detection(detection)
    (final,) = words.finals
    (started,) = [body for body in stage.published if isinstance(body, events.SpeechStarted)]
    (said,) = [body for body in stage.published if isinstance(body, events.TranscriptFinal)]
    assert (final.utterance_id, final.text) == (said.utterance_id, said.text) and words.published == [said.utterance_id]
    assert (final.start_ms, final.end_ms) == (started.start_ms, said.end_ms)
    assert 0 < final.start_ms - final.audio_ms <= 332, "the pre-roll, and as much of a window as may be silent"
    assert stage.engine.closed == [], "its audio is still wanted"


def test_a_final_says_how_long_each_part_of_it_took() -> None:
    latency = LatencyParts()
    stage = Stage(WORDS, latency=latency)
    request = stage.play_until("guess")
    asked_s = stage.now
    stage.play()
    final = (stage.now - asked_s) + 0.5
    stage.now += 0.5
    name, revision = request[1:]
    stage.engine.heard[name](Hypothesis(name, revision, "thank you", "en", 9, True, None, queue_s=0.125))
    (said,) = stage.of(events.TranscriptFinal)
    assert latency.queue.sum == 0.125 and latency.decode.sum == pytest.approx(final - 0.125)
    assert round(latency.final.sum * 1000) == said.latency_ms
    assert latency.parts["endpoint"].sum >= 0.5 and sum(map(float, latency.parts["engine"].counts)) == 1
    assert said.latency_ms == pytest.approx(1000 * (stage.now - said.end_ms / 1000), abs=1)


def test_a_hang_up_has_a_latency_and_no_endpoint() -> None:
    latency = LatencyParts()
    stage = Stage(WORDS, latency=latency)
    stage.play_until("partial")
    stage.hang_up()
    stage.engine.answer(stage.engine.requests[-1], "tha")
    assert sum(latency.final.counts) == 1 and not any(sum(part.counts) for part in latency.parts.values())


def test_what_is_counted() -> None:
    stage = Stage(np.concatenate([WORDS, WORDS]))
    stage.engine.answer(stage.play_until("partial"), "thank")
    stage.engine.answer(stage.play_until("guess"), "thank you")
    second = stage.play_until("guess")
    stage.play()
    stage.engine.answer(second, "")
    stats = stage.stats
    assert (stats.utterances, stats.finals, stats.empty_finals, stats.failed_finals) == (2, 2, 1, 0)
    assert (stats.partials, stats.speculative_hits, stats.resumed) == (2, 1, 0)


def test_an_overloaded_worker_asks_for_finals_alone() -> None:
    guard = LoadGuard(shed_s=0.0, refuse_s=math.inf)
    guard.lagged(1.0)
    stage = Stage(WORDS, guard=guard, at_once=True).play()
    assert [kind for kind, _, _ in stage.engine.requests] == ["guess"]
    (final,) = stage.of(events.TranscriptFinal)
    assert not final.error and stage.engine.audio[final.utterance_id]


def test_partials_are_asked_for_soon_and_then_at_intervals() -> None:
    words = speech("demo-congrats")[: 6 * 8000]
    stage = Stage(np.concatenate([gap(0.5), words]))
    asked = []
    while len(asked) < 3:
        stage.play_until("partial")
        asked.append(stage.leg.position)
    (started,) = stage.of(events.SpeechStarted)
    assert 0 <= asked[0] - (started.start_ms + 250) * 8 < 2 * 256
    # Until a word is shown, at a quarter of `asr.partial_ms`.
    assert all(0 <= later - earlier - 125 * 8 < 256 for earlier, later in zip(asked, asked[1:], strict=False))
    stage.engine.answer(stage.engine.requests[-1], "Congratulations")
    stage.play_until("partial")
    asked = [stage.leg.position]
    for _ in range(2):
        stage.play_until("partial")
        asked.append(stage.leg.position)
    assert all(0 <= later - earlier - 500 * 8 < 256 for earlier, later in zip(asked, asked[1:], strict=False))
    assert stage.transcriber.speaking_since_ms == started.start_ms
