"""Speech in recordings: found as in a call, whole, and the same in every reading."""

from __future__ import annotations

import tracemalloc
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from audio import Codec, Detector, SpeechOffset, SpeechOnset
from audio.segmentation import BLOCK, Scanner, SpeechSegment
from audio.vad.decimate import LAG
from audio.vad.silero import CONTEXT, HIDDEN, WINDOW, SileroVad
from config import Endpointing
from lab.media.speech import speech

PROFILES = [
    Endpointing(),
    Endpointing(min_silence_ms=200, pre_roll_ms=300),
    Endpointing(min_silence_ms=1000, max_utterance_s=5.0),
]
NAMES = ("vm-intro", "auth-thankyou", "demo-echotest", "vm-goodbye", "conf-usermenu", "tt-weasels", "vm-review")
_vad = SileroVad()


@lru_cache
def recording(seed: int = 1, noise: float = 0.0) -> np.ndarray:
    """Prompts at 16 kHz with pauses of all lengths between them; int16."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    for name in rng.permutation(NAMES):
        parts += [speech(str(name)), np.zeros(int(rng.integers(0, 24_000)), np.int16)]
    samples = soxr.resample(np.concatenate(parts), 8000, 16000, quality="HQ").astype(np.float64)
    samples += noise * rng.standard_normal(len(samples))
    return np.clip(samples, -32768, 32767).astype(np.int16)


def scan(samples: np.ndarray, profile: Endpointing, *, piece: int = 16_000) -> list[SpeechSegment]:
    scanner = Scanner(_vad, profile)
    found = [each for at in range(0, len(samples), piece) for each in scanner.feed(samples[at : at + piece])]
    return found + list(scanner.finish())


def as_a_call(samples: np.ndarray, profile: Endpointing) -> list[tuple[int, int, str]]:
    detector = Detector()
    leg = detector.open(Codec.L16, profile, transport="stream")
    detections = []
    data = samples.tobytes()
    for at in range(0, len(data), 640):
        leg.receive_chunk(at // 4, data[at : at + 640], at / 32000)
        detections += [each for batch in detector.step(at / 32000) for each in batch]
    detections += detector.finish(leg, "hangup")
    starts = [each.start for each in detections if isinstance(each, SpeechOnset)]
    ends = [(each.end, each.reason) for each in detections if isinstance(each, SpeechOffset)]
    detector.close(leg)
    return [(start, end, reason) for start, (end, reason) in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_recording_has_the_utterances_of_a_call(profile: Endpointing) -> None:
    """Those that are not cut for their length: a call does that by what the network says, a recording by its level."""
    samples, profile = recording(), replace(profile, max_utterance_s=30.0)
    live = as_a_call(samples, profile)
    assert len(live) > 5 and not any(reason == "max_length" for *_, reason in live)
    found = scan(samples, profile)
    # A call's last utterance is ended by its hang-up, within the padded last window; all else is the same.
    assert [(each.start, each.reason) for each in found[:-1]] == [(start, reason) for start, _, reason in live[:-1]]
    assert [each.end for each in found[:-1]] == [end for _, end, _ in live[:-1]]
    assert found[-1].start == live[-1][0]


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=12), st.sampled_from(PROFILES), st.integers(1, 3))
def test_how_it_comes_in_pieces_changes_nothing(cuts: list[int], profile: Endpointing, seed: int) -> None:
    samples = recording(seed)
    scanner, at = Scanner(_vad, profile), 0
    found: list[SpeechSegment] = []
    for cut in cuts:
        found += scanner.feed(samples[at : at + cut])
        at += cut
    found += scanner.feed(samples[at:])
    found += scanner.finish()
    whole = scan(samples, profile)
    assert [_told(each) for each in found] == [_told(each) for each in whole]
    assert all(np.array_equal(one.samples, other.samples) for one, other in zip(found, whole, strict=True))


def _told(each: SpeechSegment) -> tuple[int, int, int, str, bool]:
    return each.start, each.end, each.audio_start, each.reason, each.torn


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("noise", [0.0, 200.0])
def test_stretches_share_nothing_lose_nothing_and_have_a_limit(profile: Endpointing, noise: float) -> None:
    samples = recording(2, noise)
    found = scan(samples, profile)
    ends = [each.audio_start + len(each.samples) // 2 for each in found]
    for each, end in zip(found, ends, strict=True):
        # The samples are the recording's own: nothing is padded, nothing made up.
        assert np.array_equal(each.samples, samples[2 * each.audio_start : 2 * end])
        assert each.audio_start <= each.start < each.end <= end
        assert len(each.samples) <= profile.max_utterance_s * 16_000
    for (one, end), other in pairwise(zip(found, ends, strict=True)):
        assert end <= other[0].audio_start, "two stretches share samples"
        if one.reason == "max_length":
            assert end == other[0].audio_start, "something was said between two stretches"
    # What the network hears as speech for long enough is in one of them.
    heard = np.zeros(len(samples) // 2 + 1, np.bool_)
    for each, end in zip(found, ends, strict=True):
        heard[each.audio_start : end] = True
    for start, end, _ in as_a_call(samples, profile)[:-1]:
        assert heard[start:end].all()


@pytest.mark.parametrize("longest_s", [4.0, 5.0, 10.0])
def test_a_long_stretch_is_cut_where_it_is_quietest(longest_s: float) -> None:
    """Within its last third. A cut in the middle of a sound, where there is no pause in reach, is said to be one."""
    samples = recording(2)
    found = scan(samples, Endpointing(max_utterance_s=longest_s))
    cuts = [(each, after) for each, after in pairwise(found) if each.reason == "max_length"]
    assert len(cuts) >= 2
    for each, after in cuts:
        cut, loud = after.audio_start, 0.1 * _rms(each.samples)
        assert after.torn == (_level(samples, cut) > loud)
        first = each.audio_start + int(longest_s * 8000 * 2 / 3)
        quietest = min(_level(samples, at, 768) for at in range(min(first + 768, cut), cut + 1, 256))
        assert _level(samples, cut, 768) <= 2 * quietest + 1
    assert not any(after.torn for each, after in pairwise(found) if each.reason == "endpoint")
    assert sum(after.torn for _, after in cuts) <= len(cuts) * (0.4 if longest_s < 4 else 0.2)


def _level(samples: np.ndarray, position: int, positions: int = 400) -> float:
    """Of so many about it: 50 ms."""
    return _rms(samples[2 * position - positions : 2 * position + positions])


def _rms(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


class CountingVad(SileroVad):
    calls = 0

    def follow(self, windows: np.ndarray, hidden: np.ndarray, cell: np.ndarray) -> np.ndarray:
        self.calls += 1
        return super().follow(windows, hidden, cell)


def test_hours_of_digital_silence_cost_neither_network_nor_memory() -> None:
    vad = CountingVad()
    scanner = Scanner(vad, Endpointing())
    silence = np.zeros(2 * BLOCK, np.int16)
    list(scanner.feed(recording()))
    before = vad.calls
    tracemalloc.start()
    for _ in range(200):  # 27 minutes
        list(scanner.feed(silence))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert vad.calls - before <= 3 and kept < 2 * silence.nbytes
    begin = scanner.position
    again = [*scanner.feed(recording()), *scanner.finish()]
    # The network remembers what was before for a while: the ends are where they were, and soon all is.
    alone = scan(recording(), Endpointing())
    assert [each.end - begin for each in again] == pytest.approx([each.end for each in alone], abs=2 * WINDOW)
    later, starts = [each.start - begin for each in again[2:]], [each.start for each in alone[2:]]
    assert later == pytest.approx(starts, abs=2 * WINDOW)


@pytest.mark.parametrize(("silent", "calls"), [(15, 2), (16, 1)])
def test_the_network_rests_after_half_a_second_of_digital_silence(silent: int, calls: int) -> None:
    vad = CountingVad()
    scanner = Scanner(vad, Endpointing())
    clicks = np.zeros(2 * BLOCK, np.int16)
    clicks[[0, 2 * BLOCK - 2 * WINDOW * (silent + 1)]] = 100
    for samples in (clicks, np.zeros(2 * BLOCK, np.int16), np.zeros(2 * BLOCK, np.int16)):
        assert list(scanner.feed(samples)) == []
    assert vad.calls == calls


def test_an_open_utterance_is_ended_by_digital_silence_however_long_it_waits_for_that() -> None:
    said = soxr.resample(speech("vm-goodbye"), 8000, 16000, quality="HQ")
    samples, after_it = np.zeros(2 * BLOCK, np.int16), 2 * WINDOW * 18
    samples[-after_it - len(said) : -after_it] = said
    scanner = Scanner(_vad, Endpointing(min_silence_ms=1000))
    assert list(scanner.feed(samples)) == []
    (found,) = scanner.feed(np.zeros(2 * BLOCK, np.int16))
    assert found.reason == "endpoint" and found.end < BLOCK


def test_speech_right_after_skipped_silence_has_its_pre_roll() -> None:
    said = soxr.resample(speech("conf-usermenu"), 8000, 16000, quality="HQ")
    loud = int(np.argmax(np.convolve(np.abs(said.astype(np.float64)), np.ones(2048), "valid")))
    samples = np.concatenate([np.zeros(4 * BLOCK, np.int16), said[loud : loud + 2 * BLOCK]])
    found = scan(samples, Endpointing(pre_roll_ms=300))[0]
    assert found.start == 2 * BLOCK - LAG, "at the first window that is heard again"
    assert found.audio_start == found.start - 2400
    begin = 2 * found.audio_start
    assert np.array_equal(found.samples, samples[begin : begin + len(found.samples)]) and len(found.samples) > 5000


def test_a_recording_of_one_window_is_one_utterance_where_all_is_speech() -> None:
    samples = np.arange(2 * WINDOW, dtype=np.int16)
    (found,) = scan(samples, Endpointing(enter=0.0, exit=0.0, min_speech_ms=0))
    assert (found.start, found.end, found.audio_start) == (0, WINDOW, 0)
    assert np.array_equal(found.samples, samples)


@given(st.integers(1, 128), st.integers(0, 2**32 - 1))
def test_windows_in_a_row_are_heard_as_one_by_one(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal = (0.2 * rng.standard_normal(CONTEXT + count * WINDOW)).astype(np.float32)
    windows = np.stack([signal[at * WINDOW : at * WINDOW + CONTEXT + WINDOW] for at in range(count)])
    hidden, cell = (0.1 * rng.standard_normal((2, HIDDEN))).astype(np.float32)
    one_hidden, one_cell = hidden[None].copy(), cell[None].copy()
    one_by_one = [_vad.forward(window[None], one_hidden, one_cell)[0] for window in windows]
    at_once = _vad.follow(windows, hidden, cell)
    assert np.allclose(at_once, one_by_one, atol=1e-5)
    assert np.allclose(hidden, one_hidden[0], atol=1e-4) and np.allclose(cell, one_cell[0], atol=1e-3)


@given(st.integers(0, 700))
def test_no_recording_is_too_short(samples: int) -> None:
    assert scan(np.full(samples, 100, np.int16), Endpointing()) == []
