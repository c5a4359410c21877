"""The detector on recorded speech: the same utterances as the published model, window by window, would give."""

from __future__ import annotations

import gc
from typing import Any, cast

import numpy as np
import onnxruntime
import pytest

from audio import Codec, Detection, Detector, Leg, RtpPacket, Shard, SpeechOffset, SpeechOnset, SpeechPaused
from audio.codecs import g711
from audio.endpointing.table import WINDOW, Endpointer, powers
from audio.vad.silero import MAX_BATCH
from audio.vad.weights import silero_path
from config import Endpointing
from lab.media.speech import SPEECH, speech

NAMES = [
    "agent-newlocation", "vm-intro", "conf-usermenu", "tt-weasels", "auth-thankyou", "vm-review", "demo-echotest",
    "conf-adminmenu",
]  # fmt: skip
SIZE = 160
PROFILES = [Endpointing(), Endpointing(min_silence_ms=320), Endpointing(min_silence_ms=1000, max_utterance_s=5.0)]


def padded(name: str) -> np.ndarray:
    """A prompt with half a second of silence before it and one and a half after it."""
    return np.concatenate([np.zeros(4000, np.int16), speech(name), np.zeros(12000, np.int16)])


def step(detector: Detector, now: float) -> list[Detection]:
    return [detection for detections in detector.step(now) for detection in detections]


def rtp(codes: bytes, number: int, payload_type: int = 0, ssrc: int = 1) -> bytes:
    payload = codes[number * SIZE : (number + 1) * SIZE]
    return bytes(RtpPacket(payload_type, number & 0xFFFF, number * SIZE, ssrc, payload))


@pytest.fixture(scope="module")
def model() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(silero_path()), options, providers=["CPUExecutionProvider"])


def offline(
    model: onnxruntime.InferenceSession, samples: np.ndarray, profile: Endpointing, leg: Any
) -> list[Detection]:
    """One stream, one window at a time, through onnxruntime and the plain endpointer."""
    endpointer, state = Endpointer(profile, leg), np.zeros((2, 1, 128), np.float32)
    context, found = np.zeros((1, 32), np.float32), []
    windows = np.pad(samples, (0, -len(samples) % WINDOW)).astype(np.float32).reshape(-1, 1, WINDOW) / 32768
    for index, window in enumerate(windows):
        given = np.concatenate([context, window], axis=1)
        context = window[:, -32:]
        output, state = model.run(None, {"input": given, "state": state, "sr": np.array(8000, np.int64)})
        found += endpointer.window(index * WINDOW, float(output[0, 0]), float(powers(window)[0]))
    return found + endpointer.finish("hangup")


def test_prompts_over_rtp_give_the_utterances_of_the_published_model(model: onnxruntime.InferenceSession) -> None:
    """Eight prompts in both laws and three profiles, all legs at once, starting at different times."""
    detector, sent = Detector(), []
    found: dict[Leg, list[Detection]] = {}
    for index, name in enumerate(NAMES * 2):
        codec, profile = (Codec.PCMU, Codec.PCMA)[index % 2], PROFILES[index % 3]
        leg = detector.open(codec, profile, transport="rtp")
        encode = g711.ulaw_encode if codec is Codec.PCMU else g711.alaw_encode
        sent.append((leg, encode(padded(name)), 3 * index % 11))
        found[leg] = []
    for tick in range(max(len(codes) // SIZE + 1 + begin for _, codes, begin in sent) + 10):
        for leg, codes, begin in sent:
            if begin <= tick <= begin + (len(codes) - 1) // SIZE:
                leg.receive_rtp(rtp(codes, tick - begin, leg.codec.payload_type), tick * 0.020)
            elif tick == begin + len(codes) // SIZE + 2:
                found[leg] += detector.finish(leg, "hangup")
        for detection in step(detector, tick * 0.020):
            found[detection.leg].append(detection)
    utterances = 0
    for index, (leg, codes, _) in enumerate(sent):
        samples = g711.ulaw_decode(codes) if leg.codec is Codec.PCMU else g711.alaw_decode(codes)
        expected = offline(model, samples, PROFILES[index % 3], leg)
        assert found[leg] == expected, NAMES[index % len(NAMES)]
        utterances += sum(isinstance(detection, SpeechOffset) for detection in expected)
        detector.close(leg)
    assert utterances > 20 and detector.legs == 0


@pytest.mark.parametrize("codec", [Codec.G722, Codec.L16])
def test_the_wideband_recordings_give_the_same_utterances(model: onnxruntime.InferenceSession, codec: Codec) -> None:
    """The 16 kHz version of the prompts, decimated for the VAD: starts and ends within three windows."""
    from audio.codecs.g722 import G722Decoder

    for name in NAMES[:4]:
        detector = Detector()
        leg = detector.open(codec, Endpointing(), transport="rtp" if codec is Codec.G722 else "stream")
        codes = (SPEECH / f"{name}.g722").read_bytes()
        wide = G722Decoder().decode(codes).astype("<i2").tobytes()
        found: list[Detection] = []
        count = len(codes) // SIZE
        for number in range(count + 80):
            if number < count and codec is Codec.G722:
                leg.receive_rtp(rtp(codes, number, 9), number * 0.020)
            elif number < count:
                leg.receive_chunk(number * SIZE, wide[4 * number * SIZE : 4 * (number + 1) * SIZE], number * 0.020)
            found += step(detector, number * 0.020)
        found += detector.finish(leg, "hangup")
        narrow = offline(model, speech(name), Endpointing(), leg)
        ours = [(d.start, d.end) for d in found if isinstance(d, SpeechOffset)]
        theirs = [(d.start, d.end) for d in narrow if isinstance(d, SpeechOffset)]
        assert len(ours) == len(theirs)
        assert np.abs(np.array(ours) - np.array(theirs)).max() <= 3 * WINDOW
        assert leg.read(0, 8000) == wide[:32000]
        detector.close(leg)


def test_an_utterance_can_be_read_as_it_comes() -> None:
    detector, codes = Detector(), g711.ulaw_encode(padded("vm-intro"))
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    taken: dict[str, tuple[int, bytes]] = {}
    for number in range(len(codes) // SIZE):
        leg.receive_rtp(rtp(codes, number), number * 0.020)
        for detection in step(detector, number * 0.020):
            if isinstance(detection, SpeechOnset):
                begin = detection.audio_start
            elif isinstance(detection, SpeechPaused):
                taken["paused"] = begin, leg.read(begin, detection.end + 1280)
            elif isinstance(detection, SpeechOffset):
                taken["ended"] = begin, leg.read(begin, detection.audio_end)
                assert detection.audio_end <= leg.position and detection.reason == "endpoint"
    # What was decoded speculatively is what the utterance turned out to be.
    assert taken["paused"] == taken["ended"]
    begin, audio = taken["ended"]
    assert audio == codes[begin : begin + len(audio)] and len(audio) > 24000
    detector.close(leg)


def test_hangup_in_speech_ends_the_utterance_with_all_that_came() -> None:
    detector, codes = Detector(), g711.ulaw_encode(speech("demo-congrats"))[:30_100]
    leg = detector.open(Codec.PCMU, Endpointing(), transport="stream")
    leg.receive_chunk(0, codes, 0.0)
    started, ended = detector.finish(leg, "hangup")
    assert isinstance(started, SpeechOnset) and isinstance(ended, SpeechOffset)
    assert ended.reason == "hangup" and leg.position == 118 * WINDOW
    assert 30_100 - 2 * WINDOW < ended.audio_end <= leg.position
    assert leg.read(0, 118 * WINDOW) == codes + b"\xff" * (118 * WINDOW - 30_100)
    assert detector.finish(leg, "hangup") == []
    # A flush does not end the leg.
    leg.receive_chunk(None, codes, 5.0)
    assert [type(d) for d in detector.finish(leg, "flush")] == [SpeechOnset, SpeechOffset]
    detector.close(leg)
    assert detector.finish(leg, "hangup") == [] and leg.position > 0


def test_speech_that_breaks_off_is_ended_by_the_clock() -> None:
    detector, codes = Detector(), g711.ulaw_encode(speech("demo-congrats"))
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    for number in range(150):
        leg.receive_rtp(rtp(codes, number), number * 0.020)
        step(detector, number * 0.020)
    assert step(detector, 3.2) == []
    (paused, ended) = step(detector, 3.7)
    assert isinstance(paused, SpeechPaused) and isinstance(ended, SpeechOffset)
    assert ended.audio_end > 150 * SIZE
    assert leg.lost(ended.start, ended.audio_end) == 0, "nothing says that more was sent"
    detector.close(leg)


def test_a_codec_change_in_speech_flushes_the_utterance() -> None:
    detector, samples = Detector(), speech("demo-congrats")
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    codes = g711.ulaw_encode(samples)
    found: list[Detection] = []
    for number in range(200):
        leg.receive_rtp(rtp(codes, number), number * 0.020)
        found += step(detector, number * 0.020)
    detector.change(leg, Codec.G722)
    boundary = leg.position
    wide = (SPEECH / "demo-congrats.g722").read_bytes()
    for number in range(200, 400):
        leg.receive_rtp(rtp(wide, number, 9, ssrc=2), number * 0.020)
        found += step(detector, number * 0.020)
    found += detector.finish(leg, "hangup")
    flushed = next(d for d in found if isinstance(d, SpeechOffset) and d.reason == "flush")
    assert flushed.audio_end <= boundary
    assert leg.read(flushed.start, flushed.audio_end) == codes[flushed.start : flushed.audio_end].ljust(
        flushed.audio_end - flushed.start, b"\xff"
    )
    after = [d for d in found if isinstance(d, SpeechOnset) and d.start >= boundary]
    assert after and after[0].audio_start >= boundary
    detector.close(leg)


def test_three_hundred_legs_are_stepped_in_batches_and_equal_one_alone() -> None:
    """Legs open, fall behind and close between the chunks; each hears what it would hear alone."""
    codes = g711.ulaw_encode(padded("vm-intro"))[: 8000 * 4]
    detector = Detector()
    leg = detector.open(Codec.PCMU, Endpointing(), transport="stream")
    leg.receive_chunk(0, codes, 0.0)
    expected = [type(d) for d in detector.finish(leg, "hangup")], leg.position
    assert expected[0] == [SpeechOnset, SpeechOffset]
    detector.close(leg)
    legs = [detector.open(Codec.PCMU, Endpointing(), transport="stream") for _ in range(300)]
    assert detector.legs == 300
    found: dict[Leg, list[Detection]] = {leg: [] for leg in legs}
    extra: list[Leg] = []
    for second in range(4):
        for index, leg in enumerate(legs):
            if not leg.closed and index % 4 <= second:  # behind by up to three seconds, then all at once
                low = 0 if index % 4 == second else second * 8000
                leg.receive_chunk(low, codes[low : (second + 1) * 8000], float(second))
        before = detector.windows
        for detections in detector.step(second + 0.9):
            assert detector.windows - before <= MAX_BATCH
            before = detector.windows
            for detection in detections:
                found.setdefault(detection.leg, []).append(detection)
            if len(extra) < 20:
                extra.append(detector.open(Codec.PCMU, Endpointing(), transport="stream"))
                detector.close(legs[7 * len(extra)])
    for index, leg in enumerate(legs):
        if leg.closed:
            assert index % 7 == 0
            continue
        found[leg] += detector.finish(leg, "hangup")
        assert ([type(d) for d in found[leg]], leg.position) == expected
    for leg in legs + extra:
        detector.close(leg)
        detector.close(leg)
    assert detector.legs == 0
    del leg, legs, extra, found, detections, detection
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Leg and each.closed]


def test_an_end_within_a_step_leaves_the_others_in_order() -> None:
    """A worker that was held up takes many windows in one step; calls end while it lets its loop breathe."""
    codes = g711.ulaw_encode(padded("vm-intro"))

    def backlog(detector: Detector) -> Leg:
        leg = detector.open(Codec.PCMU, Endpointing(), transport="stream")
        for first in range(0, len(codes), SIZE):
            leg.receive_chunk(first, codes[first : first + SIZE], 0.0)
        return leg

    alone = Detector()
    backlog(alone)
    expected = [vars_of(each) for each in step(alone, 100.0)]
    assert len(expected) >= 3
    for every in (1, 2, 3, 7, 50):
        detector = Detector()
        leg, found = backlog(detector), []
        for number, detections in enumerate(detector.step(100.0)):
            found += [vars_of(each) for each in detections if each.leg is leg]
            if number % every == 0:
                other = detector.open(Codec.PCMU, Endpointing(), transport="stream")
                detector.finish(other, "hangup")
                detector.close(other)
        assert found == expected


def test_a_call_that_ends_at_an_onset_within_a_step_leaves_the_others_theirs() -> None:
    """The window of the onset has been heard, and nobody has been told of it yet."""
    codes = g711.ulaw_encode(padded("vm-intro"))[:32000]

    def backlog(detector: Detector) -> Leg:
        leg = detector.open(Codec.PCMU, Endpointing(), transport="stream")
        leg.receive_chunk(0, codes, 0.0)
        return leg

    alone = Detector()
    backlog(alone)
    expected = [[vars_of(each) for each in detections] for detections in alone.step(100.0)]
    onset = next(number for number, detections in enumerate(expected) if detections)
    detector, found = Detector(), []
    ended, other = backlog(detector), backlog(detector)
    for number, detections in enumerate(detector.step(100.0)):
        assert all(each.leg is other for each in detections)
        found.append([vars_of(each) for each in detections])
        if number == onset - 1:
            detector.close(ended)
    assert found == expected
    detector.close(other)


def test_counters_outlive_their_legs() -> None:
    detector = Detector()
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    codes = bytes(SIZE * 10)
    for number in (0, 1, 1, 4):
        leg.receive_rtp(rtp(codes, number), number * 0.020)
    leg.receive_rtp(b"nonsense", 0.1)
    open_counters = detector.counters
    assert (open_counters["packets"], open_counters["lost_packets"]) == (3, 2)
    assert (open_counters["duplicates"], open_counters["malformed"]) == (1, 1)
    leg.key = object()
    detector.close(leg)
    assert detector.counters == open_counters
    leg.receive_rtp(rtp(codes, 5), 0.2)
    leg.receive_chunk(None, codes, 0.2)
    leg.start(0.3)
    detector.change(leg, Codec.PCMA)
    assert detector.counters == open_counters and step(detector, 9.0) == []
    with pytest.raises(ValueError, match="31 s"):
        leg.read(0, 0)


def test_a_detection_names_its_leg() -> None:
    detector = Detector()
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    assert repr(leg) == "<Leg 0 PCMU rtp>"
    assert repr(SpeechPaused(leg, 5)) == "SpeechPaused(leg=<Leg 0 PCMU rtp>, end=5)"
    detector.close(leg)


def test_the_types_of_detections_are_frozen() -> None:
    ended = SpeechOffset(cast(Any, None), 0, 1, 2, "endpoint")
    with pytest.raises(AttributeError):
        ended.end = 5  # type: ignore[misc]


def test_long_digital_silence_is_not_put_through_the_vad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speech after it is found no later than with all windows heard; noise and open utterances are always heard.

    The network drifts while it hears nothing but zeros, and then needs longer for an onset: up to 12 windows.
    """
    rng = np.random.default_rng(0)
    silence = np.zeros(8000 * 5, np.int16)
    noise = rng.integers(-40, 40, 8000 * 5).astype(np.int16)
    words = [speech(name) for name in ("vm-intro", "auth-thankyou", "demo-abouttotry")]
    quiet = g711.ulaw_encode(np.concatenate([part for word in words for part in (silence, word)] + [silence]))
    noisy = g711.ulaw_encode(np.concatenate([part for word in words for part in (noise, word)]))

    def found(codes: bytes) -> tuple[list[tuple[type, int]], int, int]:
        detector = Detector()
        leg = detector.open(Codec.PCMU, Endpointing(), transport="stream")
        seen: list[Detection] = []
        for at in range(0, len(codes), 160):
            leg.receive_chunk(at, codes[at : at + 160], at / 8000)
            seen += step(detector, at / 8000)
        seen += detector.finish(leg, "hangup")
        places = [
            (type(d), d.start if isinstance(d, SpeechOnset) else d.end)
            for d in seen
            if isinstance(d, SpeechOnset | SpeechOffset)
        ]
        return places, detector.windows, detector.skipped

    places, heard, skipped = found(quiet)
    assert skipped > 0.8 * 4 * 5 * 31 and found(noisy)[2] == 0
    monkeypatch.setattr("audio.detector.SILENT_WINDOWS", 10**9)
    every, all_heard, none = found(quiet)
    assert none == 0 and heard + skipped == all_heard
    assert [kind for kind, _ in places] == [kind for kind, _ in every]
    for (kind, at), (_, late) in zip(places, every, strict=True):
        assert late - 12 * 256 <= at <= late + (0 if kind is SpeechOnset else 4 * 256)


def test_a_leg_on_hold_costs_no_windows() -> None:
    detector = Detector()
    leg = detector.open(Codec.PCMA, Endpointing(), transport="rtp")
    leg.receive_rtp(bytes(RtpPacket(8, 1, 0, 1, b"\xd5" * 160)), 0.0)
    for tick in range(1, 10 * 31):
        assert step(detector, tick * 0.032) == []
    assert leg.position > 9 * 8000 and detector.windows < 30 and detector.skipped > 200
    detector.close(leg)


def test_many_legs_take_turns_and_hear_what_they_hear_at_once() -> None:
    codes = g711.ulaw_encode(padded("auth-thankyou"))
    detector = Detector()
    assert detector.shards == 1
    legs = [detector.open(Codec.PCMU, Endpointing(), transport="stream") for _ in range(600)]
    assert detector.shards == 2
    alone = Detector()
    only = alone.open(Codec.PCMU, Endpointing(), transport="stream")
    expected: list[Detection] = []
    talking = [legs[0], legs[127], legs[128], legs[300], legs[500], legs[599]]
    found: dict[Leg, list[Detection]] = {leg: [] for leg in talking}
    for at in range(0, len(codes), 256):
        now = at / 8000
        for leg in (*talking, only):
            leg.receive_chunk(at, codes[at : at + 256], now)
        expected += step(alone, now)
        for number in range(4):
            before = {leg: leg.position for leg in talking}
            for detections in detector.step(now, Shard(number, 4)):
                for detection in detections:
                    found[detection.leg].append(detection)
            assert {leg.index // 128 % 4 for leg in talking if leg.position > before[leg]} <= {number}
    assert [type(each) for each in expected][:1] == [SpeechOnset]
    for leg in talking:
        assert [(type(d), vars_of(d)) for d in found[leg]] == [(type(d), vars_of(d)) for d in expected]
    for leg in legs:
        detector.close(leg)
    assert detector.shards == 1


def vars_of(detection: Detection) -> list[Any]:
    return [getattr(detection, name) for name in detection.__slots__ if name != "leg"]
