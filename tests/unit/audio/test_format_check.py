"""What bytes look like that are not what was declared, and that what is as declared is never suspected."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import soxr
from hypothesis import given
from hypothesis import strategies as st

from audio.codecs.g711 import alaw_encode, ulaw_decode, ulaw_encode
from audio.format_check import BLOCK_BYTES, CONTAINERS, SAMPLE_BYTES, FormatCheck, Suspicion
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


@pytest.mark.parametrize("gain", [0.3, 1.0])
@pytest.mark.parametrize("declared", ["mulaw", "alaw"])
@pytest.mark.parametrize(
    ("actual", "looks"),
    [("alaw", "A-law"), ("mulaw", "µ-law"), ("pcm_s16le", "16-bit PCM."), ("pcm_s16be", "the other byte order"),
     ("pcm_f32le", "32-bit float")],
)  # fmt: skip
def test_what_g711_is_instead_is_named(gain: float, declared: str, actual: str, looks: str) -> None:
    found = judged(FormatCheck(declared, 8000), encoded("demo-congrats", actual, 8000, gain))
    if actual == declared:
        assert found == []
    else:
        assert [each.why for each in found] == ["format"] and looks in found[0].detail


NOISE = np.random.default_rng(1)
AT = np.arange(13 * BLOCK_BYTES) / 8000


def tones(*hz: float) -> np.ndarray:
    return sum((np.sin(2 * np.pi * each * AT) for each in hz), np.zeros(len(AT))) / len(hz)


def keyed(hz: tuple[float, float], bauds: int) -> np.ndarray:
    """Data at that speed, as a modem or a fax machine sends them (ITU-T V.21, V.23)."""
    bits = NOISE.integers(0, 2, len(AT) * bauds // 8000 + 1)[(np.arange(len(AT)) * bauds) // 8000]
    return np.sin(2 * np.pi * np.cumsum(np.where(bits, hz[0], hz[1])) / 8000)


def quadrature(carrier_hz: float, bauds: int) -> np.ndarray:
    """As a fax machine sends a page (ITU-T V.29, V.17), the corners rounded off."""
    symbols = NOISE.choice([-3, -1, 1, 3], (2, len(AT) * bauds // 8000 + 2))
    times = np.arange(len(AT)) * bauds / 8000
    real, imaginary = (np.interp(times, np.arange(symbols.shape[1]), each) for each in symbols)
    phase = 2 * np.pi * carrier_hz * AT
    return (real * np.cos(phase) - imaginary * np.sin(phase)) / 4.5


LINES = {
    "silence": 0 * AT, "comfort noise": NOISE.normal(0, 0.003, len(AT)), "loud noise": NOISE.normal(0, 0.3, len(AT)),
    "rumble": np.cumsum(NOISE.normal(0, 0.01, len(AT))) % 1 - 0.5, "hum": 0.05 * tones(50, 150, 250),
    "an offset": 0.003 + 0 * AT, "an offset with noise": 0.02 + NOISE.normal(0, 0.005, len(AT)),
    "dial tone": tones(350, 440), "ringing": tones(440, 480) * (AT % 6 < 2), "busy": tones(425) * (AT % 1 < 0.5),
    "DTMF": tones(697, 1209) * (AT % 0.2 < 0.1), "DTMF D": tones(941, 1633),
    "fax calling": tones(1100) * (AT % 3.5 < 0.5),
    "fax answering": tones(2100), "modem answering": tones(2225), "milliwatt": tones(1004), "whistle": tones(2600),
    "highest": tones(3400), "half": tones(2000), "music": tones(262, 330, 392, 523) * (1 - AT % 0.5),
    "V.21": keyed((1650, 1850), 300), "V.23": keyed((1300, 2100), 1200), "V.29": quadrature(1700, 2400),
    "V.17": quadrature(1800, 2400), "V.34": quadrature(1959, 3429),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
def test_no_line_noise_or_tone_in_g711_is_suspected(name: str, encoding: str) -> None:
    encode = ulaw_encode if encoding == "mulaw" else alaw_encode
    for gain in (0.01, 0.1, 0.9, 4.0):
        samples = np.clip(32767 * gain * LINES[name], -32768, 32767).astype(np.int16)
        assert judged(FormatCheck(encoding, 8000), bytes(encode(samples))) == []


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
@pytest.mark.parametrize("gain", [0.1, 1.0, 10.0])
def test_suppressed_silence_is_not_suspected(encoding: str, gain: float) -> None:
    encode = ulaw_encode if encoding == "mulaw" else alaw_encode
    for clip in CLIPS.values():
        frames = np.tile(clip, 20 * BLOCK_BYTES // len(clip) + 1)[: 20 * BLOCK_BYTES].reshape(-1, 160).copy()
        frames[np.abs(frames).mean(axis=1) < 200] = 0
        samples = np.clip(gain * frames.reshape(-1), -32768, 32767).astype(np.int16)
        assert judged(FormatCheck(encoding, 8000), bytes(encode(samples))) == []


@pytest.mark.parametrize("declared", ["mulaw", "alaw"])
@pytest.mark.parametrize(
    ("data", "why", "looks"),
    [
        (NOISE.bytes(12 * BLOCK_BYTES), "format", "compressed or encrypted"),
        (base64.b64encode(encoded("demo-congrats", "mulaw", 8000)), "format", "text"),
        (bytes(12 * BLOCK_BYTES), "level", "the same byte"), (b"\x80" * 12 * BLOCK_BYTES, "level", "the same byte"),
    ],
    ids=["encrypted", "base64", "zeros", "ones"],
)  # fmt: skip
def test_what_is_no_sound_is_named(declared: str, data: bytes, why: str, looks: str) -> None:
    [found] = judged(FormatCheck(declared, 8000), data)
    assert found.why == why and looks in found.detail


@pytest.mark.parametrize(("declared", "code"), [("mulaw", 0xD5), ("mulaw", 0x55), ("alaw", 0xFF), ("alaw", 0x7F)])
def test_the_silence_of_the_other_law_is_none(declared: str, code: int) -> None:
    [found] = judged(FormatCheck(declared, 8000), bytes([code]) * 12 * BLOCK_BYTES)
    assert found.why == "level"


@pytest.mark.parametrize(
    ("declared", "code"), [("mulaw", 0xFF), ("mulaw", 0x7F), ("mulaw", 0xFE), ("alaw", 0xD5), ("alaw", 0x55)]
)
def test_silence_is_not_suspected(declared: str, code: int) -> None:
    assert judged(FormatCheck(declared, 8000), bytes([code]) * 12 * BLOCK_BYTES) == []


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
