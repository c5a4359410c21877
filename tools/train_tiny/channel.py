"""From a mouth to the inference process: level, noise, the line's band, the codec, and the way to 16 kHz."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import soxr

from asr.samples import decode
from asr.utterance import Format
from audio.codecs.g711 import alaw_encode, ulaw_encode
from tools.train_tiny.espeak import RATE_HZ as ESPEAK_HZ
from tools.train_tiny.espeak import Speaker, say
from tools.train_tiny.words import BABBLE

Samples = npt.NDArray[np.float32]
MODEL_HZ = 16000
_NEIGHBOURS = 24


def resample(samples: Samples, from_hz: float, to_hz: float, quality: str = "HQ") -> Samples:
    if from_hz == to_hz or not samples.size:
        return samples
    out: Samples = soxr.resample(samples, from_hz, to_hz, quality=quality)
    return out


def rms(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)) + 1e-12))


def through_codec(samples: Samples, format: Format, quality: str = "HQ") -> Samples:
    """8 kHz (16 kHz for L16) → what the inference process hears at 16 kHz."""
    pcm = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    if format == "L16":
        return pcm.astype(np.float32) / 32768
    codes = ulaw_encode(pcm) if format == "PCMU" else alaw_encode(pcm)
    return resample(decode(format, codes).astype(np.float32) / 32768, 8000, MODEL_HZ, quality)


def equalise(rng: np.random.Generator, samples: Samples, rate_hz: int) -> Samples:
    """A tilt of up to ±6 dB over the band and, for most, the edges of a telephone line."""
    size = 1 << int(samples.size + rate_hz // 10).bit_length()
    spectrum = np.fft.rfft(samples, size)
    hz = np.fft.rfftfreq(size, 1 / rate_hz)
    gain = 10 ** (rng.uniform(-6, 6) * (hz / 4000 - 0.25).clip(-1, 1) / 20)
    if rng.random() < 0.6:
        low, high = rng.uniform(100, 350), rng.uniform(3200, 3800) if rate_hz == 8000 else rng.uniform(5000, 7500)
        gain = gain / (1 + (low / np.maximum(hz, 1)) ** 4) / (1 + (hz / high) ** 12)
    out: Samples = np.fft.irfft(spectrum * gain)[: samples.size].astype(np.float32)
    return out


def noise(rng: np.random.Generator, count: int, rate_hz: int, kinds: tuple[str, ...]) -> Samples:
    """Noise of RMS 1."""
    kind = kinds[rng.integers(len(kinds))]
    if kind == "white":
        out = rng.standard_normal(count)
    elif kind == "pink":
        size = 1 << count.bit_length()
        hz = np.fft.rfftfreq(size, 1 / rate_hz)
        out = np.fft.irfft(np.fft.rfft(rng.standard_normal(size)) / np.sqrt(np.maximum(hz, 20)))[:count]
    elif kind == "hum":
        at = np.arange(count) / rate_hz * 2 * np.pi * (50 if rng.random() < 0.5 else 60)
        out = sum(np.sin(k * at + rng.uniform(0, 7)) / k for k in range(1, 8)) + 0.05 * rng.standard_normal(count)
    elif kind == "tone":
        at = np.arange(count) / rate_hz * 2 * np.pi
        out = np.sin(at * rng.uniform(300, 900)) + np.sin(at * rng.uniform(900, 1700))
        out = out * (np.sin(at * rng.uniform(0.2, 2)) > rng.uniform(-1.2, 0.5)) + 1e-4 * rng.standard_normal(count)
    else:
        assert kind == "babble"
        out = _babble(rng, count, rate_hz)
    out = out.astype(np.float32)
    return out / rms(out)


def _babble(rng: np.random.Generator, count: int, rate_hz: int) -> npt.NDArray[np.floating]:
    out = np.zeros(count, np.float32)
    for _ in range(rng.integers(3, 6)):
        voice = _neighbour(int(rng.integers(_NEIGHBOURS)), rate_hz)
        out += np.roll(np.resize(voice, max(count, voice.size)), int(rng.integers(voice.size)))[:count]
    return out


@cache
def _neighbour(index: int, rate_hz: int) -> Samples:
    voice = f"en-us+{('m1', 'f1', 'm2', 'f3')[index % 4]}"
    speaker = Speaker(voice, words_per_min=140 + index * 7 % 60, pitch=30 + index * 11 % 40)
    return resample(say(BABBLE[index % len(BABBLE)].split(), speaker).samples, ESPEAK_HZ, rate_hz)
