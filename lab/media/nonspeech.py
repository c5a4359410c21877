"""Sounds of a telephone line in which nobody speaks, made by formula: tones of several countries, fax and modem, hum,
noise, clicks, coughs and garbage. The same at every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from audio.codecs.g711 import ulaw_decode, ulaw_encode
from audio.codecs.g722 import G722Decoder

R = 8000
LONGEST_S = 14.0
Sound = NDArray[np.float64]
"""Samples at 8 kHz on the scale of int16."""
_KEYS, _ROWS, _COLUMNS = "123A456B789C*0#D", (697, 770, 852, 941), (1209, 1336, 1477, 1633)

TONES: dict[str, tuple[tuple[float, ...], tuple[float, ...], float]] = {
    "ring-back, United Kingdom": ((400, 450), (0.4, 0.2, 0.4, 2.0), 6),
    "ring-back, France": ((440,), (1.5, 3.5), 10),
    "ring-back, Russia": ((425,), (0.8, 3.2), 8),
    "ring-back, China": ((450,), (1.0, 4.0), 11),
    "ring-back, Mexico, its first second": ((425,), (1.0, 4.0), 1),
    "ring-back, Spain": ((425,), (1.5, 3.0), 9),
    "busy, United Kingdom": ((400,), (0.375, 0.375), 3),
    "busy, Japan": ((400,), (0.5, 0.5), 5),
    "busy, China": ((450,), (0.35, 0.35), 2.1),
    "busy, Spain": ((425,), (0.2, 0.2), 6),
    "busy, Germany": ((425,), (0.48, 0.48), 4),
    "reorder, North America": ((480, 620), (0.25, 0.25), 4),
    "reorder, Germany": ((425,), (0.24, 0.24), 2),
    "congestion, United Kingdom": ((400,), (0.4, 0.35, 0.225, 0.525), 6),
    "dial, United Kingdom": ((350, 450), (1.0, 0.0), 7),
    "dial, Italy": ((425,), (0.2, 0.2, 0.6, 1.0), 4),
    "dial, Japan": ((400,), (1.0, 0.0), 2),
    "off the hook, North America": ((1400, 2060, 2450, 2600), (0.1, 0.1), 5),
    "call waiting": ((440,), (0.3, 9.7), 3),
    "recording warning": ((1400,), (0.5, 4.5), 6),
    "test tone": ((1004,), (1.0, 0.0), 3),
    "continuity check": ((2000,), (1.0, 0.0), 1),
    "pay tone": ((425, 430), (0.125, 0.125), 3),
    "fax, calling": ((1100,), (0.5, 3.0), 7.5),
    "fax, calling, once": ((1100,), (0.5, 0.0), 0.5),
    "answering machine's beep": ((1000,), (1.2, 0.0), 1.2),
    "low beep": ((220,), (0.4, 0.1), 0.9),
    "musical fifth": ((262, 392), (0.8, 0.2), 2),
    "chord": ((262, 330, 392, 523), (3.0, 0.0), 3),
}
"""Frequencies in Hz, seconds on and off by turns, and the length in seconds."""


def sounds() -> dict[str, Sound]:
    """All of them by name; 0.4 to 14 s each."""
    random = np.random.default_rng(41)
    found: dict[str, Sound] = {}
    for group in (_tones(), _keys(random), _modems(random), _hums(), _noises(random), _bursts(random), _other(random)):
        found |= dict(group)
    assert all(0.4 <= len(sound) / R <= LONGEST_S for sound in found.values())
    return found


def codes(sound: Sound) -> bytes:
    """µ-law."""
    return bytes(ulaw_encode(np.clip(sound, -32768, 32767).astype(np.int16)))


def tone(frequencies_hz: Sequence[float], cadence_s: Sequence[float], seconds: float, peak: float = 9000.0) -> Sound:
    """Sines that are on and off by turns."""
    at = np.arange(round(seconds * R)) / R
    wave = sum((np.sin(2 * np.pi * hz * at) for hz in frequencies_hz), np.zeros(len(at))) / len(frequencies_hz)
    edges = np.cumsum(cadence_s)
    on = np.searchsorted(edges, at % edges[-1], side="right") % 2 == 0
    return np.asarray(peak * wave * on)


def dtmf(keys: str, on_s: float = 0.1, off_s: float = 0.1, peak: float = 9000.0) -> Sound:
    parts = []
    for key in keys:
        row, column = divmod(_KEYS.index(key), 4)
        parts.append(tone((_ROWS[row], _COLUMNS[column]), (on_s, off_s), on_s + off_s, peak))
    return np.concatenate(parts)


def noise(random: np.random.Generator, seconds: float, dbfs: float, slope: float = 0.0, band: object = None) -> Sound:
    """Noise of this level (RMS). `slope`: 0 white, 0.5 pink, 1 brown. `band`: the lowest and the highest frequency."""
    spectrum = np.fft.rfft(random.standard_normal(round(seconds * R)))
    hz = np.fft.rfftfreq(round(seconds * R), 1 / R)
    spectrum /= np.maximum(hz, 20.0) ** slope
    if isinstance(band, tuple):
        spectrum[(hz < band[0]) | (hz > band[1])] = 0
    wave = np.fft.irfft(spectrum, round(seconds * R))
    return np.asarray(wave / np.sqrt((wave**2).mean()) * 32768 * 10 ** (dbfs / 20))


def _tones() -> Iterator[tuple[str, Sound]]:
    for name, (frequencies_hz, cadence_s, seconds) in TONES.items():
        yield name, tone(frequencies_hz, cadence_s, seconds)
    for name, hz in {"North America": (985.2, 1428.5, 1776.7), "Germany": (950.0, 1400.0, 1800.0)}.items():
        once = np.concatenate([tone((each,), (0.33, 0.0), 0.33) for each in hz])
        yield f"special information, {name}", once
        yield f"special information, {name}, with pauses", np.tile(np.concatenate([once, np.zeros(R)]), 3)
    at = np.arange(9 * R) / R
    for name, hz, beat in (("Japan", 400, 16), ("India", 400, 25), ("South Africa", 400, 33)):
        yield f"ring-back, {name}", tone((hz,), (1.0, 2.0), 9) * (0.6 + 0.4 * np.sin(2 * np.pi * beat * at))


def _keys(random: np.random.Generator) -> Iterator[tuple[str, Sound]]:
    yield "keys, one short", dtmf("5", 0.3, 0.1)
    yield "keys, a star held", dtmf("*", 2.0, 0.1)
    yield "keys, dialled by a machine", dtmf("0049301234567890", 0.05, 0.05)
    yield "keys, dialled slowly", dtmf("18005551212", 0.25, 0.6)
    yield "keys, a PIN, quiet", dtmf("4711#", 0.12, 0.3, 900)
    yield "keys, a card", dtmf("4012888888881881", 0.1, 0.25)
    yield "keys, letters", dtmf("ABCD", 0.2, 0.2)
    yield "keys with noise", (found := dtmf("123#", 0.15, 0.35)) + noise(random, len(found) / R, -40)


def _modems(random: np.random.Generator) -> Iterator[tuple[str, Sound]]:
    at = np.arange(4 * R) / R
    yield "fax, answering", tone((2100,), (3.3, 0.0), 3.3)
    turned = np.where((at / 0.45).astype(int) % 2, -1, 1)
    yield "modem, answering", 9000 * np.sin(2 * np.pi * 2100 * at) * turned * (0.8 + 0.2 * np.sin(2 * np.pi * 15 * at))
    for name, baud, low, high, seconds in (
        ("fax, preamble", 300, 1650, 1850, 2.0),
        ("modem, 300 baud", 300, 980, 1180, 4.0),
        ("modem, 1200 baud", 1200, 1300, 2100, 3.0),
        ("text telephone", 45.45, 1400, 1800, 6.0),
    ):
        bits = random.integers(0, 2, round(seconds * baud) + 1)
        hz = np.where(bits[(np.arange(round(seconds * R)) * baud / R).astype(int)], low, high)
        yield name, 7000 * np.sin(2 * np.pi * np.cumsum(hz) / R)
    symbols = random.choice([1, 1j, -1, -1j], 2401 * 5)[(np.arange(5 * R) * 2400 / R).astype(int)]
    carrier = np.exp(2j * np.pi * 1800 * np.arange(5 * R) / R)
    yield "fax, page", np.asarray(6000 * (symbols * carrier).real)
    for name, low, high, seconds in (
        ("chirp up", 300, 3400, 2),
        ("chirp down", 3400, 300, 1),
        ("slow chirp", 200, 900, 8),
    ):
        hz = np.linspace(low, high, seconds * R)
        yield name, 8000 * np.sin(2 * np.pi * np.cumsum(hz) / R)


def _hums() -> Iterator[tuple[str, Sound]]:
    for hz, peak, seconds in ((50, 300, 6), (60, 300, 3), (50, 3000, 10), (60, 3000, 1)):
        at = np.arange(seconds * R) / R
        harmonics = sum((np.sin(2 * np.pi * hz * n * at) / n for n in (1, 2, 3, 5, 7)), np.zeros(len(at)))
        yield f"hum of {hz} Hz, {'loud' if peak > 1000 else 'quiet'}", peak * harmonics
    at = np.arange(8 * R) / R
    motor = 60 + 25 * np.sin(2 * np.pi * 0.2 * at)
    phase = 2 * np.pi * np.cumsum(motor) / R
    yield "motor", 2500 * sum((np.sin(n * phase) / n for n in range(1, 20)), np.zeros(len(at)))
    for name, rate in (("siren", 0.3), ("fast siren", 4.0)):
        yield name, 8000 * np.sin(2 * np.pi * np.cumsum(900 + 350 * np.sin(2 * np.pi * rate * at)) / R)
    for hz, seconds in ((200, 0.6), (700, 2), (1500, 5)):
        yield f"clipped tone of {hz} Hz", 32000 * np.sign(np.sin(2 * np.pi * hz * np.arange(seconds * R) / R))
    yield "clipped keys", np.clip(20 * dtmf("1470", 0.2, 0.2), -32000, 32000)
    yield "alarm clock", tone((2000, 2700), (0.06, 0.06, 0.06, 0.06, 0.06, 0.7), 6)


def _noises(random: np.random.Generator) -> Iterator[tuple[str, Sound]]:
    lengths = iter((0.45, 2.0, 7.0, 14.0, 0.7, 4.0, 10.0, 1.0, 12.0, 3.0, 0.5, 5.0))
    for name, slope in (("white", 0.0), ("pink", 0.5), ("brown", 1.0)):
        for dbfs in (-60, -48, -34, -20):
            seconds = next(lengths)
            yield f"{name} noise, {dbfs} dBFS, {seconds:g} s", noise(random, seconds, dbfs, slope)
    yield "comfort noise", np.concatenate([noise(random, 0.8, level, 0.3) for level in (-62, -55, -58, -50, -64)])
    yield "silence", np.zeros(5 * R)
    yield "silence of G.711's smallest steps", random.choice([-8.0, 0.0, 8.0], 4 * R)
    at = np.arange(8 * R) / R
    yield "waves", noise(random, 8, -26, 0.5) * (0.3 + 0.7 * np.sin(2 * np.pi * 0.15 * at) ** 2)
    yield "wind", noise(random, 8, -22, 1.0) * np.abs(noise(random, 8, 0, 1.0)) / 32768
    yield "rain", noise(random, 6, -30, band=(1200, 3800))
    yield "fan", noise(random, 5, -32, band=(80, 600))


def _bursts(random: np.random.Generator) -> Iterator[tuple[str, Sound]]:
    def burst(seconds: float, band: tuple[float, float], dbfs: float) -> Sound:
        fade = np.exp(-np.arange(round(seconds * R)) / (0.25 * seconds * R))
        return noise(random, seconds, dbfs, band=band) * fade

    for count in (1, 2, 3):
        cough = [np.concatenate([burst(0.3, (250, 1800), -12), np.zeros(R // 5)]) for _ in range(count)]
        yield f"coughs: {count}", np.concatenate([np.zeros(R // 10), *cough])
    yield "a throat cleared", np.concatenate([burst(0.15, (200, 900), -18), burst(0.6, (150, 700), -16)])
    yield "a sneeze", np.concatenate([noise(random, 0.3, -38, band=(800, 3000)), burst(0.5, (900, 3600), -10)])
    at = np.arange(9 * R) / R
    for name, rate, dbfs in (("breathing", 0.3, -38), ("heavy breathing", 0.6, -26)):
        yield name, noise(random, 9, dbfs, band=(300, 2500)) * np.sin(2 * np.pi * rate * at) ** 4
    yield "a sigh", noise(random, 1.5, -30, band=(400, 2200)) * np.hanning(round(1.5 * R))
    yield "breath on the microphone", noise(random, 0.8, -14, 1.0) * np.hanning(round(0.8 * R))
    for name, rate, seconds in (("crackle", 30, 5), ("a bad contact", 4, 8), ("applause", 400, 6)):
        hits = np.where(random.random(seconds * R) < rate / R, random.standard_normal(seconds * R), 0.0)
        ring = np.exp(-np.arange(160) / 20) * np.sin(2 * np.pi * 1300 * np.arange(160) / R)
        yield name, 12000 * np.convolve(hits, ring)[: seconds * R]
    strike = np.concatenate([burst(0.03, (800, 3800), -16), np.zeros(round(0.12 * R))])
    yield (
        "typing",
        np.concatenate([np.concatenate([strike, np.zeros(int(random.integers(0, 1500)))]) for _ in range(20)]),
    )
    yield "a door", np.concatenate([burst(0.4, (60, 400), -8), np.zeros(R // 2), burst(0.1, (1000, 3000), -20)])
    yield "knocking", np.tile(np.concatenate([burst(0.08, (100, 600), -10), np.zeros(R // 6)]), 4)
    yield "a receiver put down", np.concatenate([burst(0.05, (300, 3800), -6), burst(0.4, (100, 800), -14)])
    yield "a click", np.concatenate([np.zeros(R // 4), [30000.0, -30000.0], np.zeros(R // 4)])
    yield "paper", np.concatenate([burst(0.12, (1500, 3900), -24) for _ in range(12)])


def _other(random: np.random.Generator) -> Iterator[tuple[str, Sound]]:
    for seconds in (0.5, 3.0, 9.0):
        garbage = bytes(random.integers(0, 256, round(seconds * R), np.uint8))
        yield f"random bytes as µ-law, {seconds:g} s", ulaw_decode(garbage).astype(np.float64)
    wide = G722Decoder().decode(bytes(random.integers(0, 256, 4 * R, np.uint8)))
    yield "random bytes as G.722", wide[::2].astype(np.float64)
    pcm = noise(random, 2, -30, 0.5).astype("<i2").tobytes()
    yield "linear samples as µ-law", ulaw_decode(pcm).astype(np.float64)
    yield "text as µ-law", ulaw_decode(b'{"event":"media","media":{"payload":"//79/f7+"}}\n' * 400).astype(np.float64)
    packet = noise(random, 0.02, -20, 0.5)
    yield "one packet again and again", np.tile(packet, 150)
    holes = noise(random, 6, -30, 0.5) * np.repeat(random.random(300) < 0.5, 160)
    yield "noise with holes", holes
    for name, tempo_s, scale in (
        ("slow melody", 0.5, (262, 294, 330, 392, 440)),
        ("fast melody", 0.15, (523, 659, 784, 988)),
    ):
        notes = [tone((hz, 2 * hz), (tempo_s, 0.0), tempo_s, 7000) for hz in random.choice(scale, round(8 / tempo_s))]
        fade = np.exp(-np.arange(len(notes[0])) / (0.4 * tempo_s * R))
        yield name, np.concatenate([note * fade for note in notes])
    chirp = [
        8000 * np.sin(2 * np.pi * np.cumsum(np.linspace(*random.uniform(1800, 3800, 2), 640)) / R) for _ in range(14)
    ]
    yield "birds", np.concatenate([np.concatenate([each, np.zeros(int(random.integers(400, 4000)))]) for each in chirp])
    drum = noise(random, 0.25, -14, 1.0) * np.exp(-np.arange(R // 4) / 300)
    yield "drums", np.tile(np.concatenate([drum, 0.5 * drum]), 10)
