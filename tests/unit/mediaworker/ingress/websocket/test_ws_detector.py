"""Stream sessions in front of the real registry, detector and endpointers, on a clock of the test's own."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from audio import Detector
from audio.codecs.g711 import ulaw_decode
from config import Settings
from lab.house import ROOT
from mediaworker.calls.media_loop import TICK_S, MediaLoop
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRegistry
from mediaworker.events import schema as events
from mediaworker.ingress.websocket.asr import AsrSession
from mediaworker.ingress.websocket.limits import MAX_AWAITED, StreamEngine, StreamPolicy
from tools.fuzz.media import Engine

CODES = (ROOT / "tests/data/digits/customer.ulaw").read_bytes()
MULAW = {"type": "config", "encoding": "mulaw", "sample_rate": 8000}


class Silent(Engine):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self.asked.append((utterance_id, revision))

    def answer(self) -> None:
        asked, self.asked = self.asked, []
        for utterance_id, revision in asked:
            if utterance_id in self._open:
                super().final(utterance_id, revision, commit=True)


class World:
    def __init__(self, engine: Engine | None = None) -> None:
        self.now = 100.0
        self.published: list[events.EventBody] = []
        self.times: list[int] = []
        """`at_ms` of what was published."""
        self.detector = Detector()
        self.registry = CallRegistry(
            Settings(),
            TranscriberParts(engine or Engine(), lambda: self.now),
            detector=self.detector,
            publish=lambda call_id, at_ms, body: (self.times.append(at_ms), self.published.append(body)),
        )
        self._media = MediaLoop(self.registry)
        policy = StreamPolicy("s", "test", 5.0, 60.0, 14400.0, StreamEngine(lambda: True), lambda: 0.0)
        self.session = AsrSession(policy, self.registry, self.now)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += TICK_S
            tick = self._media.tick(self.now)
            with contextlib.suppress(StopIteration):
                while True:  # it only lets the loop breathe, and there is none
                    tick.send(None)
            self.session.is_ahead()  # as the shell asks after every step while it holds a session back

    def tell(self, message: dict[str, Any] | bytes) -> None:
        """As the shell does: not before the session has caught up."""
        while self.session.is_ahead():
            self.tick()
        self.session.receive(message if isinstance(message, bytes) else json.dumps(message), self.now)

    def told(self) -> list[dict[str, Any]]:
        found = []
        while (output := self.session.outbox.next()) is not None:
            if isinstance(output, str):
                found.append(json.loads(output))
        return found

    def finals(self) -> list[events.TranscriptFinal]:
        return [body for body in self.published if isinstance(body, events.TranscriptFinal)]

    def story(self) -> list[events.TranscriptFinal]:
        """The finals of a call that is over: one for each utterance, in order."""
        found = self.finals()
        started = [body.utterance_id for body in self.published if isinstance(body, events.SpeechStarted)]
        assert [final.utterance_id for final in found] == started
        assert [final.start_ms for final in found] == sorted(final.start_ms for final in found)
        self.check_clock()
        return found

    def check_clock(self) -> events.CallEnded:
        """One clock in a call: it never goes back, nothing is told before it was heard, and it ends with the call."""
        assert self.times == sorted(self.times)
        edges = [
            (getattr(body, edge), at_ms)
            for at_ms, body in zip(self.times, self.published, strict=True)
            for edge in ("start_ms", "end_ms")
            if hasattr(body, edge)
        ]
        assert all(edge_ms <= at_ms for edge_ms, at_ms in edges)
        metrics, ended = self.published[-2:]
        assert isinstance(metrics, events.Metrics) and isinstance(ended, events.CallEnded)
        assert max((edge_ms for edge_ms, _ in edges), default=0) <= ended.duration_ms <= self.times[-1]
        assert max(metrics.talk_ms.values()) + metrics.silence_ms <= ended.duration_ms
        return ended


VADS = [None, False, {"min_silence_ms": 64}, {"threshold": 0.9, "max_utterance_s": 1}, {"threshold": 0.05}]
STEPS = st.one_of(
    st.tuples(st.just("audio"), st.integers(1, 12000)),
    st.tuples(st.just("ticks"), st.integers(1, 90)),
    st.sampled_from([("flush", 0), ("reset", 0), ("config", {"profile": "bot"}), ("config", {"profile": "dictation"})]),
    st.tuples(st.just("config"), st.fixed_dictionaries({"vad": st.sampled_from(VADS)})),
    st.tuples(st.just("config"), st.sampled_from([MULAW, {"encoding": "pcm_s16le", "sample_rate": 8000}])),
)


# The windows of a wideband leg reach back by the decimator's lag, in front of the end before the change.
@example([("audio", 9502), ("config", {"encoding": "pcm_s16le", "sample_rate": 8000}), ("audio", 789)])
@given(st.lists(STEPS, max_size=25))
def test_whatever_is_changed_in_mid_word_every_utterance_gets_its_final(story: list[tuple[str, Any]]) -> None:
    world, at, mulaw = World(), 0, True
    world.tell(MULAW)
    hidden = flushes = 0
    for what, value in story:
        before = world.detector.counters["packets"]
        if what == "audio":
            codes = (CODES + CODES)[at : at + value]
            at = (at + value) % len(CODES)
            world.tell(codes if mulaw else ulaw_decode(codes).tobytes())
            if codes:
                world.tell(b"")  # as the shell: not before all of it has been taken
                assert world.detector.counters["packets"] > before
        elif what == "ticks":
            world.tick(value)
        elif what == "config":
            mulaw = value.get("encoding", "mulaw" if mulaw else "") == "mulaw"
            world.tell(value | {"type": "config"})
        else:
            count = len(world.finals())
            world.tell({"type": what})
            flushes += what == "flush"
            hidden += (len(world.finals()) - count) if what == "reset" else 0
    world.tell({"type": "finalize"})
    messages = world.told()
    assert not [message for message in messages if message["type"] == "error"]
    published = [final.utterance_id for final in world.story()]
    finals = [message for message in messages if message["type"] == "final"]
    assert sum(final.get("flushed", False) for final in finals) == flushes
    told = [final["utterance_id"] for final in finals if "/flush-" not in final["utterance_id"]]
    assert len(told) == len(published) - hidden or (told[0].endswith("/0") and len(published) == hidden)
    assert finals, "a session has at least one answer"
    assert isinstance(world.published[-1], events.CallEnded)
    counters = world.detector.counters
    assert counters["malformed"] == counters["refused"] == counters["late"] == 0


@pytest.mark.parametrize("spoken_ms", [0, 20, 80, 120, 400])
@pytest.mark.parametrize("vad", [None, False])
def test_a_flush_is_answered_wherever_it_comes(spoken_ms: int, vad: Any) -> None:
    """Nothing, the beginning of a word, a word: whatever the detector makes of it."""
    world = World()
    world.tell({**MULAW, "vad": vad})
    onset = next(n for n in range(0, len(CODES), 80) if abs(ulaw_decode(CODES[n : n + 80]).astype(int)).max() > 2000)
    world.tell(CODES[:onset] + CODES[onset : onset + spoken_ms * 8])
    world.told()
    world.tell({"type": "flush"})
    (answer,) = [message for message in world.told() if message["type"] == "final"]
    assert answer["flushed"] and bool(answer["text"]) == bool(world.finals())


@pytest.mark.parametrize("vad", [None, False], ids=["profile", "no vad"])
def test_a_pause_is_silence_unless_the_client_decides(vad: Any) -> None:
    world = World()
    world.tell({**MULAW, "vad": vad})
    world.tell(CODES[8000:16000])
    world.tick(200)
    assert bool(world.finals()) == (vad is None)
    world.tell(CODES[16000:20000])
    world.tell({"type": "finalize"})
    finals = world.story()
    if vad is None:
        assert finals[-1].start_ms > 6400 - 500, "what is said later is later, though silence was waited for"
        assert finals[-1].lost_ms == 0
    else:
        (final,) = finals
        assert final.end_ms - final.start_ms == pytest.approx(1500, abs=32)


def test_a_client_that_is_held_back_is_not_silent() -> None:
    """The engine is slow, so nothing is read: what then comes goes on where the audio before it ended."""
    engine = Silent()
    world = World(engine)
    world.tell({**MULAW, "vad": {"max_utterance_s": 1}})
    sent = 0
    while not world.session.is_ahead() or world.session.call.awaited_finals <= MAX_AWAITED:  # type: ignore[union-attr]
        world.session.receive(CODES[8000:20000], world.now)
        sent += 12000
        world.tick()
        assert sent < 1_000_000
    leg = world.registry.get(world.session.call.id).legs["main"]  # type: ignore[union-attr]
    for _ in range(300):
        assert world.session.is_ahead()
        world.tick()
    assert leg.position <= sent
    for _ in range(20):
        engine.answer()
        world.tick()
    assert not world.session.is_ahead()
    world.tell(CODES[8000:20000])
    world.tick(2)
    assert leg.position <= sent + 12000


# -- one clock --------------------------------------------------------------------------------------------------------

WHOLE_MS = len(CODES) // 8
WINDOW_MS = 32
"""The end of a leg's audio is filled up to a whole window of the VAD."""


def test_audio_that_comes_faster_than_in_real_time_runs_the_calls_clock() -> None:
    world = World()
    world.tell(MULAW)
    for _ in range(10):
        world.tell(CODES)
    world.session.call.publish_metrics()  # type: ignore[union-attr]
    world.tell({"type": "finalize"})
    finals, ended = world.story(), world.check_clock()
    assert ended.duration_ms == pytest.approx(10 * WHOLE_MS, abs=WINDOW_MS)
    assert ended.duration_ms > (world.now - 100.0) * 1000, "it is eight times as fast at the most"
    assert finals[-1].end_ms > 9 * WHOLE_MS


def test_audio_that_is_held_back_does_not_run_the_clock() -> None:
    """The engine is slow, so a minute passes in which nothing new is heard."""
    engine = Silent()
    world = World(engine)
    world.tell({**MULAW, "vad": {"max_utterance_s": 1}})
    call, sent = world.session.call, 0
    assert call is not None
    while not world.session.is_ahead() or call.awaited_finals <= MAX_AWAITED:
        world.session.receive(CODES[8000:20000], world.now)
        sent += 12000
        world.tick()
    world.tick(2000)
    assert call.elapsed_ms() <= sent // 8 + WINDOW_MS < 64_000 == round(2000 * TICK_S * 1000)
    while world.session.is_ahead():
        engine.answer()
        world.tick()
    heard_ms = call.elapsed_ms()
    world.tell({"type": "finalize"})
    engine.answer()
    assert world.story() and heard_ms <= world.check_clock().duration_ms <= max(heard_ms, sent // 8 + WINDOW_MS)


def test_without_silence_between_messages_a_pause_takes_no_time() -> None:
    world = World()
    world.tell({**MULAW, "vad": False})
    for _ in range(3):
        world.tell(CODES[8000:16000])
        world.tell({"type": "flush"})
        world.now += 3600.0
    world.tell({"type": "finalize"})
    assert [final.start_ms // 1000 for final in world.story()] == [0, 1, 2]
    assert world.check_clock().duration_ms == pytest.approx(3000, abs=3 * WINDOW_MS)


def test_two_channels_share_the_clock() -> None:
    """One of them speaks early, the other late."""
    world = World()
    world.tell({**MULAW, "channels": 2})
    silence = b"\xff" * len(CODES)
    for left, right in ((CODES, silence), (silence, CODES), (CODES, CODES)):
        world.tell(bytes(code for pair in zip(left, right, strict=True) for code in pair))
    world.tell({"type": "finalize"})
    assert world.check_clock().duration_ms == pytest.approx(3 * WHOLE_MS, abs=WINDOW_MS)


def test_before_anything_is_heard_the_clock_is_the_walls() -> None:
    world = World()
    world.tell(MULAW)
    world.now += 5.0
    world.session.call.publish_metrics()  # type: ignore[union-attr]
    world.tell(CODES[:16000])
    world.tell({"type": "finalize"})
    assert world.check_clock().duration_ms == pytest.approx(7000, abs=WINDOW_MS)


# -- another format than was declared ---------------------------------------------------------------------------------


def suspect(config: dict[str, Any], data: bytes) -> list[dict[str, Any]]:
    """What the client is told of it; the call tells the same."""
    world = World()
    world.tell({"type": "config", **config})
    for at in range(0, len(data), 8000):
        world.tell(data[at : at + 8000])
    told = [message for message in world.told() if message["type"] == "error"]
    world.tell({"type": "finalize"})
    world.story()
    found = [body.detail for body in world.published if isinstance(body, events.AudioSuspect)]
    assert found == [message["message"] for message in told]
    assert all(message["code"] == "audio_suspect" for message in told)
    return told


PCM = ulaw_decode(CODES)
FLOATS = (PCM.astype(np.float32) / 32768).astype("<f4").tobytes()


def test_floats_that_are_declared_as_16_bits_are_told_once() -> None:
    (told,) = suspect({"encoding": "pcm_s16le", "sample_rate": 8000}, FLOATS * 3)
    assert "looks like 32-bit float" in told["message"]


def test_a_file_with_its_header_is_told_once() -> None:
    (told,) = suspect({"encoding": "pcm_s16le"}, b"\x1aE\xdf\xa3" + PCM.tobytes())
    assert "WebM" in told["message"]


def test_each_channel_is_judged_by_itself() -> None:
    left, right = np.frombuffer(FLOATS, "<i2"), np.zeros(len(FLOATS) // 2, "<i2")
    stereo = np.stack([left, right], axis=1).tobytes()
    (told,) = suspect({"encoding": "pcm_s16le", "channels": 2}, stereo * 2)
    assert "32-bit float" in told["message"]


@pytest.mark.parametrize(
    ("config", "data"),
    [
        ({"encoding": "pcm_f32le", "sample_rate": 8000}, FLOATS),
        ({"encoding": "pcm_s16le", "sample_rate": 8000}, PCM.tobytes()),
        ({"encoding": "mulaw"}, CODES),
    ],
)
def test_what_is_as_declared_is_not_told(config: dict[str, Any], data: bytes) -> None:
    assert suspect(config, data * 3) == []
