"""The sessions of `/ws/asr` and `/ws/transcribe` message by message, without a socket, a clock or an engine."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec, Detector
from audio.codecs.g711 import alaw_encode, ulaw_encode
from config import Endpointing
from lab.calls.stream_desks import Desk, StreamCall
from lab.worker.peers import ROOT
from mediaworker.calls.registry import CallRefused
from mediaworker.events import schema as events
from mediaworker.events.frame import timestamp
from mediaworker.ingress.audio_intake import MAX_AHEAD, TAIL, AudioForm, AudioIntake, Converter
from mediaworker.ingress.outbox import LINGER_S, MAX_WAITING, CloseConnection, SessionOutbox
from mediaworker.ingress.session import SessionState
from mediaworker.ingress.websocket import messages
from mediaworker.ingress.websocket.asr import AsrSession
from mediaworker.ingress.websocket.limits import FINISH_S, MAX_AWAITED, MAX_ERRORS, StreamEngine, StreamPolicy
from mediaworker.ingress.websocket.session import StreamSession
from mediaworker.ingress.websocket.transcribe import TranscribeSession

CONFIG = {"type": "config", "encoding": "pcm_s16le", "sample_rate": 16000}
ZERO = timestamp(0.0)


def session(kind: type[StreamSession] = AsrSession, desk: Desk | None = None, *, ready: bool = True) -> StreamSession:
    policy = StreamPolicy("s-1", "screen", 5.0, 60.0, 14400.0, StreamEngine(lambda: ready), lambda: 0.0)
    made = kind(policy, desk if desk is not None else Desk(), 0.0)
    assert made.streaming is False
    return made


def told(of: StreamSession) -> list[dict[str, Any] | tuple[int, str]]:
    """What is in the outbox: messages, and the close as (code, reason)."""
    found: list[Any] = []
    while (output := of.outbox.next()) is not None:
        found.append(json.loads(output) if isinstance(output, str) else (output.code, output.reason))
    return found


def tell(to: StreamSession, message: dict[str, Any] | str | bytes, now: float = 0.0) -> None:
    to.receive(json.dumps(message) if isinstance(message, dict) else message, now)


def asr(**fields: Any) -> tuple[StreamSession, StreamCall]:
    desk = Desk()
    made = session(desk=desk)
    tell(made, CONFIG | fields)
    told(made)
    return made, desk.calls[0]


def transcribe() -> tuple[StreamSession, StreamCall]:
    desk = Desk()
    made = session(TranscribeSession, desk)
    told(made)
    tell(made, b"\1\0\2\0")
    return made, desk.calls[0]


def pcm(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-20000, 20000, count).astype(np.int16)


# -- the beginning ----------------------------------------------------------------------------------------------------


def test_config_opens_a_call_and_says_so() -> None:
    desk = Desk()
    made = session(desk=desk, ready=False)
    given = {"language": "de", "context": "Weesels", "profile": "bot", "role": "agent", "name": "Ann"}
    tell(made, CONFIG | given)
    [call] = desk.calls
    assert told(made) == [
        {
            "type": "session_created",
            "session_id": "s-1",
            "call_id": "call-s-1",
            "encoding": "pcm_s16le",
            "sample_rate": 16000,
        },
        {"type": "warming_up"},
    ]
    said = {key: call.arguments[key] for key in ("source", "external_id", "from_", "direction")}
    assert said == {"source": "websocket", "external_id": "s-1", "from_": "screen", "direction": "inbound"}
    assert call.arguments["overrides"] == {
        "language": "de",
        "context": "Weesels",
        "profile": "bot",
        "role.main": "agent",
        "name.main": "Ann",
    }
    [leg] = call.arguments["legs"]
    assert (leg.leg, leg.codec, leg.transport) == ("main", Codec.L16, "stream")


def test_a_ready_engine_is_not_announced_and_defaults_do() -> None:
    made = session()
    tell(made, {"type": "config"})
    [created] = told(made)
    assert (created["encoding"], created["sample_rate"]) == ("pcm_s16le", 16000)


def test_transcribe_greets_and_opens_with_the_first_audio() -> None:
    desk = Desk()
    made = session(TranscribeSession, desk, ready=False)
    assert told(made) == [{"type": "ready", "sample_rate": 16000, "encoding": "pcm_s16le", "session_id": "s-1"}]
    tell(made, {"action": "reset"})
    assert told(made) == [] and not desk.calls
    tell(made, {"action": "flush"})
    [empty] = told(made)
    assert (empty["text"], empty["is_final"], empty["flushed"]) == ("", True, True) and not desk.calls
    tell(made, b"\1\0\2\0")
    assert desk.calls[0].leg.audio == b"\1\0\2\0" and told(made) == []


def test_transcribe_opens_with_a_configuration() -> None:
    desk = Desk()
    made = session(TranscribeSession, desk)
    tell(made, {"action": "config", "language": "fr"})
    assert desk.calls[0].arguments["overrides"] == {"language": "fr"}
    assert [message["type"] for message in told(made)] == ["ready"]


def test_audio_before_config_is_an_error_said_once_and_then_the_end() -> None:
    made = session()
    for now in (0.1, 0.2, 4.9):
        tell(made, b"\0\0", now)
    [error] = told(made)
    assert (error["type"], error["code"]) == ("error", "config_first")
    assert made.deadline == 5.0
    made.expire(4.99)
    assert told(made) == []
    made.expire(5.0)
    error, close = told(made)
    assert error["code"] == "config_first" and close == (1008, "config first")
    assert made.counters.refused == {"no_config": 1}


@pytest.mark.parametrize("kind", ["flush", "reset", "finalize"])
def test_commands_before_config(kind: str) -> None:
    made = session()
    tell(made, {"type": kind})
    assert [message["code"] for message in told(made)] == ["config_first"]
    assert made.state is SessionState.WAITING


@pytest.mark.parametrize("kind", [AsrSession, TranscribeSession])
def test_a_refused_call_closes_with_try_again_later(kind: type[StreamSession]) -> None:
    made = session(kind, Desk(CallRefused(503, "all 1 calls are taken")))
    told(made)
    tell(made, CONFIG if kind is AsrSession else b"\0\0")
    error, close = told(made)
    assert error["code"] == "capacity" and close == (1013, "all 1 calls are taken")
    assert made.counters.refused == {"capacity": 1}


# -- audio ------------------------------------------------------------------------------------------------------------

FORMS = [
    *(AudioForm("pcm_s16le", rate) for rate in (8000, 16000, 44100, 48000)),
    *(AudioForm("pcm_f32le", rate) for rate in (8000, 16000, 24000)),
    AudioForm("mulaw", 8000),
    AudioForm("alaw", 8000),
]


def encoded(form: AudioForm, seconds: float = 0.5) -> bytes:
    samples = pcm(round(form.rate_hz * seconds))
    match form.encoding:
        case "mulaw":
            return ulaw_encode(samples)
        case "alaw":
            return alaw_encode(samples)
        case "pcm_f32le":
            return (samples / np.float32(32768)).astype("<f4").tobytes()
    return samples.astype("<i2").tobytes()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.encoding}-{form.rate_hz}")
def test_every_encoding_is_as_long_as_it_was(form: AudioForm) -> None:
    converter = Converter(form)
    out = converter.feed(encoded(form)) + converter.finish()
    assert len(out) == 4000 * form.codec.position_bytes
    if form.rate_hz == 16000:
        assert out == pcm(8000).astype("<i2").tobytes(), "what has the right rate is not touched"
    if not form.codec.wide:
        assert out == encoded(form), "G.711 goes as it is"


@given(st.sampled_from(FORMS), st.lists(st.integers(0, 3000), max_size=30))
def test_cuts_do_not_change_the_samples(form: AudioForm, cuts: list[int]) -> None:
    data = encoded(form)
    whole, pieces = Converter(form), Converter(form)
    expected = whole.feed(data) + whole.finish()
    out = b""
    for cut in cuts:
        out, data = out + pieces.feed(data[:cut]), data[cut:]
    assert out + pieces.feed(data) + pieces.finish() == expected


def test_a_tone_keeps_its_pitch_and_level_at_every_rate() -> None:
    for form in FORMS:
        if not form.codec.wide:
            continue
        tone = np.sin(2 * np.pi * 440 * np.arange(form.rate_hz) / form.rate_hz) * 0.5
        data = tone.astype("<f4").tobytes() if form.encoding == "pcm_f32le" else (tone * 32767).astype("<i2").tobytes()
        converter = Converter(form)
        heard = np.frombuffer(converter.feed(data) + converter.finish(), "<i2")[2000:14000].astype(float)
        spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
        assert abs(np.argmax(spectrum) * 16000 / len(heard) - 440) < 2
        assert 0.5 * 32767 / np.sqrt(2) == pytest.approx(np.sqrt((heard**2).mean()), rel=0.01)


def test_floats_that_are_no_numbers_are_silence_and_counted() -> None:
    made, call = asr(encoding="pcm_f32le")
    values = np.array([np.nan, 0.5, np.inf, -np.inf, 3.0, -3.0], "<f4")
    tell(made, values.tobytes())
    assert np.frombuffer(call.leg.audio, "<i2").tolist() == [0, 16384, 0, 0, 32767, -32768]
    made.connection_lost(1.0)
    assert made.counters.nonfinite == 3


def test_half_samples_wait_and_an_odd_one_is_completed_at_the_flush() -> None:
    made, call = asr()
    data = pcm(5).astype("<i2").tobytes()
    for byte in data:
        tell(made, bytes([byte]))
    assert call.leg.audio == data[:8], "two samples make a position"
    tell(made, {"type": "flush"})
    assert call.leg.audio == data + b"\0\0"
    tell(made, data[:4])
    assert call.leg.audio == data + b"\0\0" + data[:4]


def test_no_more_than_a_tick_can_take_waits_for_the_vad() -> None:
    made, call = asr(encoding="mulaw", sample_rate=8000)
    data = bytes(range(256)) * 256
    tell(made, data[: MAX_AHEAD - 1], 0.5)
    tell(made, data[MAX_AHEAD - 1 : MAX_AHEAD + 1], 0.75)
    tell(made, data[MAX_AHEAD + 1 :], 1.0)
    held = 0
    while made.is_ahead():
        assert call.leg.ahead == MAX_AHEAD and call.deferred == held + 1
        call.leg.catch_up()
        held += 1
    assert held == len(data) // MAX_AHEAD - 1
    assert call.leg.audio == data and call.leg.arrivals[1:4] == [0.5, 0.75, 1.0]


def test_a_flush_gives_the_leg_all_that_waits_for_the_vad() -> None:
    made, call = asr(encoding="mulaw", sample_rate=8000)
    data = (bytes(range(250)) * 50)[: MAX_AHEAD + TAIL]
    tell(made, data, 1.0)
    assert call.leg.ahead == MAX_AHEAD
    tell(made, {"type": "flush"}, 2.0)
    assert call.leg.audio == data and call.leg.arrivals[-1] == 2.0 and not made.is_ahead()


def test_audio_of_another_rate_waits_until_the_vad_has_taken_what_came_before() -> None:
    made, call = asr()
    tell(made, bytes(4 * 5000))
    tell(made, {"type": "config", "sample_rate": 48000})
    assert call.leg.ahead == 5000, "what was converted at the old rate is the leg's"
    tell(made, bytes(2 * 4800))
    assert call.leg.ahead == 5000 and made.is_ahead()


def test_both_channels_go_on_while_both_wait_for_the_vad() -> None:
    made, call = asr(encoding="mulaw", sample_rate=8000, channels=2)
    tell(made, bytes(range(2, 4)) * 3 * MAX_AHEAD)
    for leg in call.legs.values():
        leg.catch_up()
    assert made.is_ahead() and [leg.ahead for leg in call.legs.values()] == [MAX_AHEAD, MAX_AHEAD]
    call.legs["left"].catch_up()
    assert made.is_ahead(), "nothing of the left waits any more, but a part of the right does"
    assert [leg.ahead for leg in call.legs.values()] == [MAX_AHEAD, MAX_AHEAD]


def test_audio_that_waits_when_its_call_ends_goes_nowhere() -> None:
    call = asr()[1]
    intake = AudioIntake(call, ("main",), AudioForm("pcm_s16le", 16000))  # type: ignore[arg-type]
    intake.receive(bytes(8 * MAX_AHEAD), 0.0)
    call.end("api")
    call.leg.catch_up()
    assert not intake.advance() and call.leg.ahead == 0
    call.ends.clear()
    assert not intake.advance() and call.leg.ahead == 0, "nothing of it is left"


@pytest.mark.parametrize("form", [AudioForm("pcm_s16le", 16000), AudioForm("mulaw", 8000)], ids=["wide", "narrow"])
def test_audio_after_a_pause_of_the_client_is_placed_at_the_present(form: AudioForm) -> None:
    """In the leg of a detector. What was sent at once and waits for the VAD has no pause in it."""
    detector, call = Detector(stall_s=2.0), asr()[1]
    leg = detector.open(form.codec, Endpointing(), transport="stream")
    call.legs["main"] = leg  # type: ignore[assignment]
    intake = AudioIntake(call, ("main",), form)  # type: ignore[arg-type]
    data = encoded(form, seconds=1.024)

    def settle(now: float) -> None:
        while intake.advance():
            leg.defer(now)
            list(detector.step(now))
        list(detector.step(now))

    intake.receive(data, 0.0)
    intake.receive(data, 5.0)
    settle(5.0)
    assert leg.position == 2 * 8192 and leg.read(0, leg.position) == 2 * data
    settle(10.24)
    intake.receive(data, 10.24)
    settle(10.24)
    assert leg.position == 81_920 and leg.read(81_920 - 8192, 81_920) == data


def test_a_client_that_is_faster_than_the_engine_is_held_back() -> None:
    made, call = asr()
    for number in range(MAX_AWAITED + 1):
        assert not made.is_ahead()
        call.start(str(number))
    assert made.is_ahead() and call.deferred == 1
    made.expire(60.0)
    assert made.deadline == 120.0 and made.state is SessionState.STREAMING, "it is not idle: it is us who do not read"
    call.final("0", "")
    assert not made.is_ahead()


# -- text -------------------------------------------------------------------------------------------------------------


def test_asr_texts_have_every_field() -> None:
    made, call = asr()
    call.start("u1")
    call.partial("u1", "hel")
    common = {"utterance_id": "u1", "language": "en", "start_ms": 10, "end_ms": 20, "timestamp": ZERO, "leg": "main"}
    assert told(made) == [{"type": "partial", "revision": 1, "text": "hel", "is_speech_final": False, **common}]
    for reason, end in (("endpoint", True), ("flush", True), ("hangup", True), ("max_length", False)):
        if reason != "endpoint":
            call.start("u1")
        call.final("u1", "hello", reason)
        final = {"type": "final", "revision": 9, "text": "hello", "is_speech_final": end, **common}
        assert told(made) == [final]


def test_an_engine_that_fails_is_an_error_and_a_final() -> None:
    made, call = asr()
    call.start("u1")
    call.final("u1", "", "failed", "the engine does not start")
    error, final = told(made)
    assert (error["code"], error["message"]) == ("recognition_failed", "the engine does not start")
    assert (final["type"], final["text"]) == ("final", "")


def schema(name: str) -> Any:
    """Of a message in docs/asyncapi.yaml; `components/schemas/NAME` or `channels/CHANNEL/messages/NAME/payload`."""
    document = yaml.safe_load((ROOT / "docs/asyncapi.yaml").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator({"$ref": f"#/{name}", **document})


def test_every_message_is_as_documented() -> None:
    desk = Desk()
    one = session(desk=desk, ready=False)
    tell(one, CONFIG)
    two, other = transcribe()
    tell(two, "x")
    for call in (desk.calls[0], other):
        call.start("u1")
        call.partial("u1", "a")
        call.start("u2")
        call.final("u2", "a b", "failed", "why")
    greeting = session(TranscribeSession)
    said = told(one)
    assert {message["type"] for message in said} == {"session_created", "warming_up", "partial", "final", "error"}
    for message in said:
        schema(f"channels/asr/messages/{message['type']}/payload").validate(message)
    for message in (*told(two), *told(greeting)):
        name = message.get("type", "text")
        schema(f"channels/transcribe/messages/{name}/payload").validate(message)


def test_transcribe_texts() -> None:
    made, call = transcribe()
    call.start("u1")
    call.partial("u1", "hel")
    call.final("u1", "hello")
    [final] = told(made)
    assert {key: final[key] for key in ("text", "is_final", "utterance_id", "language")} == {
        "text": "hello",
        "is_final": True,
        "utterance_id": "u1",
        "language": "en",
    }


def test_of_partials_only_the_newest_waits() -> None:
    made, call = asr()
    call.start("u1")
    for revision in range(1000):
        call.partial("u1", f"text {revision}", revision)
    assert [message["text"] for message in told(made)] == ["text 999"]


def test_a_peer_that_reads_nothing_is_cut_off_and_its_call_ends() -> None:
    made, call = asr()
    cuts: list[int] = []
    made.outbox.listen(lambda: None, lambda close: cuts.append(1))
    for number in range(MAX_WAITING + 1):
        call.start(f"u{number}")
        call.final(f"u{number}", "x")
        assert bool(cuts) == (number == MAX_WAITING)
    assert call.ends == ["slow_client"] and made.state is SessionState.CLOSED and made.counters.slow == 1
    assert told(made) == []


@given(st.lists(st.tuples(st.sampled_from("sph"), st.integers(0, 3)), max_size=60))
def test_the_outbox_keeps_what_counts_in_order(story: list[tuple[str, int]]) -> None:
    outbox, expected = SessionOutbox(), []
    for number, (what, utterance) in enumerate(story):
        if what == "s":
            outbox.send(str(number))
            expected.append((None, number))
        else:
            expected = [each for each in expected if each[0] != utterance]
            if what == "p":
                outbox.send_partial(str(utterance), str(number))
                expected.append((utterance, number))
            else:
                outbox.drop_partial(str(utterance))
    outbox.close(1000, "é" * 100)
    outbox.send("too late")
    found = []
    while isinstance(output := outbox.next(), str):
        found.append(int(output))
    assert found == [number for _, number in expected]
    assert isinstance(output, CloseConnection) and len(output.reason.encode()) <= 123
    assert outbox.next() is None


# -- commands ---------------------------------------------------------------------------------------------------------


def test_flush_ends_the_utterance_and_the_session_goes_on() -> None:
    made, call = asr()
    call.start("u1")
    call.final_at_flush = True
    tell(made, {"type": "flush"})
    [final] = told(made)
    assert (final["type"], final["text"], final["is_speech_final"]) == ("final", "at once", True)
    assert call.ends == [] and call.flushes == 1


def flush(to: StreamSession) -> list[tuple[str, bool]]:
    tell(to, {to.reader.field: "flush"})
    return answers(to)


def answers(of: StreamSession) -> list[tuple[str, bool]]:
    """(text, whether it answers a flush) of the finals."""
    return [
        (message["text"], message.get("flushed", False))
        for message in told(of)
        if message.get("type") == "final" or message.get("is_final")
    ]


@pytest.mark.parametrize("kind", [asr, transcribe])
def test_a_flush_is_answered_whatever_is_open(kind: Any) -> None:
    made, call = kind()
    assert flush(made) == [("", True)], "nothing"
    assert flush(made) == [("", True)], "and nothing again"
    call.start("u1")
    assert flush(made) == []
    call.final("u1", "a word", "flush")
    assert answers(made) == [("a word", True)]
    call.start("u2")
    call.final("u2", "a pause")
    assert answers(made) == [("a pause", False)], "nobody has asked"
    assert flush(made) == [("", True)], "its final has gone already"
    call.start("u3")
    assert flush(made) == []
    call.final("u3", "on its way", "endpoint")
    assert answers(made) == [("on its way", True)], "all that came before the flush has its final"
    call.start("u4")
    call.final_at_flush = True
    assert flush(made) == [("at once", True)]


def test_the_last_final_of_what_was_open_answers() -> None:
    made, call = asr()
    call.start("u1")
    call.start("u2")
    assert flush(made) == []
    call.start("u3")
    call.final("u1", "one")
    call.final("u2", "two")
    call.final("u3", "three")
    assert answers(made) == [("one", False), ("two", True), ("three", False)]


def test_each_of_many_flushes_is_answered() -> None:
    made, call = asr()
    call.start("u1")
    assert flush(made) + flush(made) + flush(made) == []
    call.start("u2")
    assert flush(made) == []
    call.final("u1", "one")
    assert answers(made) == [("one", True), ("", True), ("", True)]
    call.final("u2", "two")
    assert answers(made) == [("two", True)]
    assert flush(made) == [("", True)]


def test_a_flush_of_what_is_then_reset_is_answered_without_it() -> None:
    made, call = asr()
    call.start("u1")
    assert flush(made) == []
    tell(made, {"type": "reset"})
    assert answers(made) == [("", True)]
    assert flush(made) == [("", True)], "what was reset is not waited for"
    call.final("u1", "forget me")
    assert answers(made) == []


def test_a_flush_of_an_utterance_that_fails_is_answered() -> None:
    made, call = asr()
    call.start("u1")
    assert flush(made) == []
    call.final("u1", "", "failed", "the engine does not start")
    assert answers(made) == [("", True)]


def test_each_leg_answers_a_flush() -> None:
    made, call = asr(channels=2)
    call.say(events.SpeechStarted("right", "r1", 0))
    tell(made, {"type": "flush"})
    [left] = told(made)
    assert (left["leg"], left["text"], left["flushed"]) == ("left", "", True)
    call.say(events.TranscriptFinal("right", "unknown", "r1", 1, 0, 9, "hi", 2, "en", 0, 5, "flush"))
    [right] = told(made)
    assert (right["leg"], right["text"], right["flushed"]) == ("right", "hi", True)


def test_a_flood_of_flushes_that_nobody_reads_ends_the_session() -> None:
    made, call = asr()
    for _ in range(MAX_WAITING + 1):
        tell(made, {"type": "flush"})
    assert call.ends == ["slow_client"]


@pytest.mark.parametrize("at_once", [True, False])
def test_reset_tells_no_more_of_what_was_open(at_once: bool) -> None:
    made, call = asr(language="de")
    call.start("u1")
    call.partial("u1", "for")
    call.final_at_flush = at_once
    tell(made, {"type": "reset"})
    if not at_once:
        call.partial("u1", "forget", 2)
        call.final("u1", "forget me")
    assert told(made) == [], "the partial that waited is gone as well"
    assert call.tunings[-1][0] == {"language": "de"}
    call.start("u2")
    call.final("u2", "heard")
    assert [message["text"] for message in told(made)] == ["heard"]


def test_finalize_answers_the_last_final_and_closes() -> None:
    made, call = asr()
    call.start("u1")
    tell(made, {"type": "finalize"})
    assert call.ends == ["hangup"] and call.flushes == 1 and told(made) == []
    call.final("u1", "the end", "flush")
    final, close = told(made)
    assert final["text"] == "the end" and close == (1000, "finalized")
    tell(made, {"type": "finalize"})
    tell(made, b"\0\0")
    assert told(made) == []


def test_finalize_without_speech_is_answered_with_an_empty_final() -> None:
    made, _ = asr()
    tell(made, {"type": "finalize"})
    final, close = told(made)
    assert (final["type"], final["text"], final["is_speech_final"], final["end_ms"]) == ("final", "", True, 1234)
    assert close == (1000, "finalized")


def test_a_final_before_finalize_is_answer_enough() -> None:
    made, call = asr()
    call.start("u1")
    call.final("u1", "all")
    tell(made, {"type": "finalize"})
    assert [message["text"] if isinstance(message, dict) else message for message in told(made)] == [
        "all",
        (1000, "finalized"),
    ]


def test_a_later_config_changes_what_it_names_and_nothing_else() -> None:
    made, call = asr(language="de", context="Berlin", role="customer")
    tell(made, {"type": "config", "language": "en"})
    assert told(made) == [] and call.ends == [] and call.flushes == 0
    assert call.tunings[-1] == (
        {"language": "en", "context": "Berlin", "role.main": "customer"},
        Endpointing(),
    )
    tell(made, {"type": "config", "language": "pt-BR"})
    assert call.tunings[-1][0]["language"] == "pt"
    tell(made, {"type": "config", "context": "Paris"})
    assert call.tunings[-1][0] == {"language": "pt", "context": "Paris", "role.main": "customer"}
    tell(made, {"type": "config", "context": "Berlin"})
    tell(made, {"type": "config", "language": None, "profile": "bot"})
    assert call.tunings[-1][0] == {"context": "Berlin", "profile": "bot", "role.main": "customer"}


def test_another_encoding_switches_the_codec() -> None:
    made, call = asr()
    samples = pcm(8)
    tell(made, samples.astype("<i2").tobytes())
    tell(made, {"type": "config", "encoding": "mulaw"})
    assert call.codecs == [Codec.PCMU]
    tell(made, ulaw_encode(samples))
    assert call.leg.audio == samples.astype("<i2").tobytes() + ulaw_encode(samples)
    tell(made, {"type": "config", "encoding": "pcm_s16le", "sample_rate": 48000})
    tell(made, {"type": "config", "sample_rate": 16000})
    assert call.codecs == [Codec.PCMU, Codec.L16], "another rate is no other codec"
    assert told(made) == []


def test_vad_overrides_the_profile_or_leaves_it_to_the_client() -> None:
    made, call = asr(vad={"threshold": 0.7, "min_silence_ms": 100, "max_utterance_s": 8})
    wanted = Endpointing(enter=0.7, exit=0.7 - 0.15, min_silence_ms=100, speculate_ms=100, max_utterance_s=8)
    assert call.tunings[-1][1] == wanted
    tell(made, {"type": "config", "vad": False})
    shaped = call.tunings[-1][1]
    assert (shaped.enter, shaped.exit, shaped.min_speech_ms, shaped.pre_roll_ms) == (0, 0, 0, 0)
    for back in (True, None):
        tell(made, {"type": "config", "vad": back})
        assert call.tunings[-1][1] == Endpointing()
    assert told(made) == []


WRONG = [
    ("nonsense", "bad_json"),
    ("\ud800", "bad_json"),
    ("[" * 2000, "bad_json"),
    ("[]", "unknown_type"),
    ('{"type":"hello"}', "unknown_type"),
    ('{"type":7}', "unknown_type"),
    ('{"type":"config","encoding":"opus"}', "bad_value"),
    ('{"type":"config","sample_rate":7999}', "bad_value"),
    ('{"type":"config","sample_rate":48001}', "bad_value"),
    ('{"type":"config","encoding":"mulaw","sample_rate":16000}', "bad_value"),
    ('{"type":"config","language":"English"}', "bad_value"),
    ('{"type":"config","langauge":"de"}', "bad_value"),
    ('{"type":"config","vad":{"treshold":0.5}}', "bad_value"),
    ('{"type":"flush","utterance_id":"u1"}', "bad_value"),
    ('{"type":"config","vad":{"threshold":2}}', "bad_value"),
    ('{"type":"config","context":7}', "bad_value"),
    ('{"type":"config","role":"boss"}', "bad_value"),
]


def test_the_document_refuses_the_same_values() -> None:
    config = schema("components/schemas/asrConfig")
    config.validate({"type": "config"})
    config.validate(CONFIG | {"language": None, "vad": False, "context": "x"})
    config.validate({"type": "config", "vad": {"threshold": 0.5, "min_silence_ms": 32}, "language": "zh_TW"})
    for text, code in WRONG:
        if code == "bad_value" and not any(each in text for each in ("mulaw", "flush")):
            assert not config.is_valid(json.loads(text)), text


@pytest.mark.parametrize(("text", "code"), WRONG, ids=[text[:40] for text, _ in WRONG])
def test_what_is_wrong_is_answered_and_the_session_goes_on(text: str, code: str) -> None:
    made, call = asr()
    tell(made, text)
    [error] = told(made)
    assert (error["type"], error["code"]) == ("error", code) and error["message"]
    assert made.counters.errors == {code: 1}
    tell(made, b"\1\0\2\0")
    assert call.leg.audio == b"\1\0\2\0"


@pytest.mark.parametrize("kind", [AsrSession, TranscribeSession])
def test_a_language_that_the_engine_does_not_know_is_refused(kind: type[StreamSession]) -> None:
    desk = Desk()
    made = session(kind, desk)
    told(made)
    field = kind.reader.field
    for wrong in ({"language": "xx"}, {"language": "tlh-Latn", "context": "Qapla"}):
        tell(made, {field: "config"} | wrong)
        [error] = told(made)
        assert error["code"] == "bad_value" and repr(wrong["language"]) in error["message"] and "en" in error["message"]
    assert not desk.calls, "nothing of such a configuration takes effect"
    if kind is TranscribeSession:  # the simplest protocol there is ignores fields that it does not know
        tell(made, {field: "config", "langauge": "xx"})
        assert told(made) == [] and desk.calls.pop()
        made = session(kind, desk)
    tell(made, {field: "config", "language": "tl"})
    assert desk.calls[0].arguments["overrides"] == {"language": "fil"}


def test_too_many_errors_in_a_row_end_the_session() -> None:
    made, call = asr()
    for _ in range(3):
        for _ in range(MAX_ERRORS):
            tell(made, "x")
        tell(made, {"type": "flush"})
    assert call.ends == []
    for _ in range(MAX_ERRORS + 1):
        tell(made, "x")
    assert call.ends == ["too_many_errors"]
    assert told(made)[-1] == (1008, "too many errors in a row")


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "code", "reason"), [(60.0, "idle_timeout", "idle_timeout"), (14400.0, "session_expired", "expired")]
)
def test_idle_and_too_long_sessions_get_their_last_final(now: float, code: str, reason: str) -> None:
    made, call = asr()
    call.start("u1")
    if now > 60:
        tell(made, b"\0\0\0\0", now - 1)
    assert made.deadline == now
    made.expire(now)
    assert call.ends == [reason]
    call.final("u1", "last", "hangup")
    error, final, close = told(made)
    assert (error["code"], final["text"], close[0]) == (code, "last", 1000)


def test_a_hangup_tells_the_last_final_before_it_closes() -> None:
    for reason, code in (("api", 1000), ("shutdown", 1001)):
        made, call = asr()
        call.start("u1")
        call.on_hangup()
        call.end(reason)
        tell(made, b"\0\0\0\0")
        assert call.leg.audio == b"", "nothing more is taken"
        call.final("u1", "last", "shutdown")
        final, close = told(made)
        assert final["text"] == "last" and close == (code, reason)


def test_finals_that_never_come_do_not_hold_the_socket() -> None:
    made, call = asr()
    cuts: list[int] = []
    made.outbox.listen(lambda: None, lambda close: cuts.append(1))
    call.start("u1")
    tell(made, {"type": "finalize"}, 10.0)
    assert made.deadline == 10.0 + FINISH_S
    made.expire(10.0 + FINISH_S)
    assert told(made)[-1][0] == 1011
    assert made.deadline == 10.0 + FINISH_S + LINGER_S and not cuts
    made.expire(10.0 + FINISH_S + LINGER_S)
    assert cuts, "a peer that does not take the close is cut off"


@pytest.mark.parametrize("kind", [asr, transcribe])
def test_a_lost_socket_ends_the_call_with_all_that_came(kind: Any) -> None:
    made, call = kind()
    tell(made, b"\1\0\2\0\3")
    made.connection_lost(1.0)
    made.connection_lost(2.0)
    assert call.ends == ["disconnected"] and call.on_event is None
    assert call.leg.audio.endswith(b"\1\0\2\0")


# -- anything at all --------------------------------------------------------------------------------------------------


def test_the_tables_are_complete() -> None:
    kinds = {bytes, *messages.COMMANDS.values()}
    for table in (AsrSession.table, TranscribeSession.table):
        assert set(table) == {
            (state, kind) for state in (SessionState.WAITING, SessionState.STREAMING) for kind in kinds
        }


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
WORDS = st.sampled_from(
    ["config", "flush", "reset", "finalize", "mulaw", "alaw", "pcm_s16le", "pcm_f32le", "de", "", "bot", "agent"]
)
FIELDS = ["type", "action", "new", "encoding", "sample_rate", "language", "context", "vad", "profile", "role", "name"]
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), WORDS | st.sampled_from([8000, 16000, 44100]) | VALUES, max_size=5)
SAID = OBJECTS.map(json.dumps) | st.binary(max_size=400) | st.text(max_size=20)
COMMANDS = st.sampled_from([json.dumps({key: what}) for key in ("type", "action") for what in messages.COMMANDS])


@given(
    st.sampled_from([AsrSession, TranscribeSession]),
    st.lists(st.tuples(st.sampled_from("mmmmcteh"), SAID | COMMANDS, st.floats(0, 40)), max_size=40),
)
def test_nothing_raises_and_positions_never_go_back(kind: type[StreamSession], story: list[Any]) -> None:
    desk, now, names = Desk(), 0.0, 0
    made = session(kind, desk)
    for what, message, wait in story:
        now += wait
        call = desk.calls[0] if desk.calls else None
        if what == "m":
            made.receive(message, now)
        elif what == "e":
            made.expire(now)
        elif what == "h" and call is not None and not call.ending and call.on_hangup is not None:
            call.hangup()
        elif what == "t" and call is not None and not call.ending:
            names += 1
            call.start(f"u{names}")
            call.partial(f"u{names}", "…")
        elif what == "c" and call is not None and call.open:
            call.final(call.open[0], "…")
        before = call.leg.position if call is not None else 0
        if call is not None:
            call.leg.catch_up()
            assert call.leg.position >= before
        made.is_ahead()
    made.connection_lost(now)
    assert made.state is SessionState.CLOSED and len(desk.calls) <= 1
    for call in desk.calls:
        assert call.ending and not (call.on_event or call.on_hangup)
    closes = [output for output in told(made) if isinstance(output, tuple)]
    assert len(closes) <= 1


@given(st.lists(st.integers(0, 40), max_size=12), st.sampled_from(["mulaw", "pcm_s16le", "pcm_f32le"]))
def test_two_channels_are_two_legs_however_they_are_cut(cuts: list[int], encoding: str) -> None:
    """What the left says and what the right says never meet."""
    dtype = {"mulaw": "u1", "pcm_s16le": "<i2", "pcm_f32le": "<f4"}[encoding]
    left, right = np.arange(1, 33).astype(dtype), np.zeros(32, dtype)
    data = np.stack([left, right], axis=1).tobytes()
    made, call = asr(encoding=encoding, sample_rate=8000 if encoding == "mulaw" else 16000, channels=2)
    assert list(call.legs) == ["left", "right"]
    for size in [*cuts, len(data)]:
        tell(made, data[:size])
        data = data[size:]
    heard = {name: leg.audio for name, leg in call.legs.items()}
    scale = 32768 if encoding == "pcm_f32le" else 1
    expected = np.clip(left.astype(float) * scale, -32768, 32767).astype("<i2" if encoding != "mulaw" else "u1")
    assert heard == {"left": expected.tobytes(), "right": bytes(expected.nbytes)}


def test_the_number_of_channels_is_that_of_the_first_configuration() -> None:
    made, call = asr(channels=2)
    told(made)
    tell(made, {"type": "config", "channels": 1})
    (error,) = told(made)
    assert isinstance(error, dict) and error["code"] == "bad_value" and "first" in error["message"]
    tell(made, {"type": "flush"})
    assert call.flushes == 2, "each leg's"
    told(made)
    tell(made, {"type": "config", "channels": 3})
    (error,) = told(made)
    assert isinstance(error, dict) and error["code"] == "bad_value"


def test_a_hangup_completes_the_last_half_sample() -> None:
    made, call = asr()
    data = pcm(3).astype("<i2").tobytes()
    tell(made, data)
    call.on_hangup()
    assert call.leg.audio == data + b"\0\0" and made.state is SessionState.FINISHING
    call.on_hangup()
    assert call.leg.audio == data + b"\0\0", "once"


def test_a_sample_that_is_cut_by_another_encoding_does_not_shift_it() -> None:
    made, call = asr(channels=2)
    data = np.arange(1, 9).astype("<i2").tobytes()
    tell(made, data + b"\1\2\3")
    tell(made, {"type": "config", "encoding": "pcm_f32le"})
    tell(made, np.array([0.5, -0.5, 0.25, -0.25], "<f4").tobytes())
    tell(made, {"type": "flush"})
    left = np.frombuffer(call.legs["left"].audio, "<i2").tolist()
    right = np.frombuffer(call.legs["right"].audio, "<i2").tolist()
    assert left == [1, 3, 5, 7, 16384, 8192] and right == [2, 4, 6, 8, -16384, -8192]
    assert [(answer["leg"], answer["text"], answer["flushed"]) for answer in told(made)] == [
        ("left", "", True),
        ("right", "", True),
    ]


def test_half_a_frame_of_two_channels_is_dropped_at_a_flush() -> None:
    made, call = asr(channels=2)
    tell(made, b"\1\0\2\0\3\0")
    tell(made, {"type": "flush"})
    tell(made, b"\4\0\5\0\6\0\7\0")
    tell(made, {"type": "flush"})
    left = np.frombuffer(call.legs["left"].audio, "<i2").tolist()
    assert [each for each in left if each] == [1, 4, 6]
