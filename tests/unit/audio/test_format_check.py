"""What bytes look like that are not what was declared, and that what is as declared is never suspected."""

from __future__ import annotations

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from audio.codecs.g711 import alaw_encode, ulaw_decode, ulaw_encode
from audio.format_check import CONTAINERS, SAMPLE_BYTES, FormatCheck, Suspicion
from lab.house import ROOT
from lab.media.speech import speech

CLIPS = {name: speech(name) for name in ("demo-congrats", "auth-thankyou")}
CLIPS |= {file.parent.name: ulaw_decode(file.read_bytes()) for file in (ROOT / "tests/data").glob("**/customer.ulaw")}
RATES = (8000, 16000, 48000)


def encoded(name: str, encoding: str, rate_hz: int, gain: float = 1.0) -> bytes:
    """Twelve seconds of speech."""
    clip = np.tile(CLIPS[name], 12 * 8000 // len(CLIPS[name]) + 1).astype(np.float32) / 32768
    wide = gain * (clip if rate_hz == 8000 else soxr.resample(clip, 8000, rate_hz))
    if encoding == "pcm_f32le":
        return wide.astype("<f4").tobytes()
    samples = np.clip(np.rint(wide * 32768), -32768, 32767).astype(np.int16)
    match encoding:
        case "mulaw":
            return bytes(ulaw_encode(samples))
        case "alaw":
            return bytes(alaw_encode(samples))
        case "pcm_s16be":
            return samples.astype(">i2").tobytes()
    return samples.astype("<i2").tobytes()


def judged(check: FormatCheck, data: bytes, *, piece: int = 3200, bytes_per_s: float = 1e9) -> list[Suspicion]:
    found = (check.feed(data[at : at + piece], at / bytes_per_s) for at in range(0, len(data), piece))
    return [each for each in found if each is not None]


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize("encoding", SAMPLE_BYTES)
@pytest.mark.parametrize("gain", [0.02, 1.0, 8.0])
def test_what_is_as_declared_is_not_suspected(name: str, rate_hz: int, encoding: str, gain: float) -> None:
    data = encoded(name, encoding, rate_hz, gain if encoding != "pcm_f32le" else min(gain, 1.0))
    per_s = SAMPLE_BYTES[encoding] * rate_hz
    assert judged(FormatCheck(encoding, rate_hz), data, piece=per_s // 50, bytes_per_s=per_s) == []


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize(
    ("declared", "actual", "looks"),
    [
        ("pcm_s16le", "pcm_f32le", "32-bit float"),
        ("pcm_s16le", "pcm_s16be", "the other byte order"),
        ("pcm_f32le", "pcm_s16le", "16-bit PCM"),
        ("pcm_f32le", "pcm_s16be", "16-bit PCM"),
    ],
)
def test_another_encoding_is_named(name: str, rate_hz: int, declared: str, actual: str, looks: str) -> None:
    [found] = judged(FormatCheck(declared, 16000), encoded(name, actual, rate_hz))
    assert found.why == "format" and looks in found.detail


@pytest.mark.parametrize("name", CLIPS)
def test_floats_that_were_not_scaled_have_a_wrong_level(name: str) -> None:
    [found] = judged(FormatCheck("pcm_f32le", 16000), encoded(name, "pcm_f32le", 16000, 32768.0))
    assert found.why == "level"


@pytest.mark.parametrize("head", [*CONTAINERS, b"\0\0\0\x20ftypiso5"])
@pytest.mark.parametrize("declared", SAMPLE_BYTES)
def test_a_container_is_named_at_once(head: bytes, declared: str) -> None:
    check = FormatCheck(declared, 16000)
    found = check.feed(head + bytes(100), 0.0)
    assert found is not None and found.why == "format" and "begins like" in found.detail


@pytest.mark.parametrize(("declared_hz", "rate_hz"), [(16000, 8000), (48000, 16000), (24000, 16000), (48000, 8000)])
def test_audio_that_comes_steadily_too_slowly_has_another_rate(declared_hz: int, rate_hz: int) -> None:
    data = encoded("demo-congrats", "pcm_s16le", rate_hz)
    [found] = judged(FormatCheck("pcm_s16le", declared_hz), data, piece=rate_hz // 25, bytes_per_s=2 * rate_hz)
    assert found.why == "rate" and f"{rate_hz / declared_hz:.0%}" in found.detail


def test_a_client_that_sends_speech_only_is_not_slow() -> None:
    """It pauses for as long as nobody speaks, which is never the same."""
    check, now = FormatCheck("pcm_s16le", 16000), 0.0
    for number in range(40):
        for _ in range(20 + 7 * (number % 5)):
            now += 0.02
            assert check.feed(bytes(640), now) is None
        now += 0.3 + 0.4 * (number % 3)


def test_a_client_that_is_held_back_is_not_slow() -> None:
    check = FormatCheck("pcm_s16le", 16000)
    check.held_back()
    assert judged(check, bytes(32000 * 12), bytes_per_s=16000) == []


@given(st.lists(st.binary(max_size=9000), max_size=12), st.sampled_from(sorted(SAMPLE_BYTES)))
def test_nothing_raises_and_nothing_is_told_twice(pieces: list[bytes], encoding: str) -> None:
    check = FormatCheck(encoding, 16000)
    found = [check.feed(piece, number / 10) for number, piece in enumerate(pieces)]
    assert sum(each is not None for each in found) <= 2, "of the beginning and of the rest"
