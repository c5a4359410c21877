"""Which of two texts is spoken in a recording, without a recogniser: `python -m benchmarks.words.mending LANGUAGE…`.

For each prompt of `mended/LANGUAGE.toml`, espeak-ng speaks the printed text and the mended one. The text whose sound is
nearer to the recording is more likely the one that was spoken. How far that can be believed is shown by prompts that
are not in the list, against their own texts with one word changed, and against the text of another prompt.
"""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.words.prompts import Prompt, recorded
from mediaworker.calls.sound import read_wav

VOICES = {"es": "es-419", "fr": "fr-fr", "it": "it", "ru": "ru"}
SPOKEN = ("", 150), ("+f2", 150), ("+f4", 165), ("+f2", 180)
"""Variants of espeak-ng's voice and words a minute: the mean over them depends less on who speaks."""
TRIED = 40
LONGEST_S = 35.0
"""Warping takes time proportional to the square of it."""
FRAME_S, HOP_S, BANDS = 0.032, 0.0125, 26

Cepstra = NDArray[np.float64]


def main(languages: Sequence[str]) -> int:
    for language in languages:
        found = [prompt for prompt in recorded(language) if prompt.length_s <= LONGEST_S]
        for prompt in found:
            if prompt.mended:
                printed, mended = distance(prompt, prompt.text), distance(prompt, prompt.mended)
                nearer = "mended" if mended < printed else "printed"
                print(f"{language} {prompt.name}: {nearer} (printed {printed:.3f}, mended {mended:.3f})")
        for change, right, tried in trust(found):
            print(f"{language} {change}: told from the text in {right} of {tried} prompts")
    return 0


def trust(prompts: Sequence[Prompt]) -> Iterator[tuple[str, int, int]]:
    """How often a text that was changed in some way is farther from the recording than the text: (how, often, of)."""
    choice = random.Random(1)
    known = [prompt for prompt in prompts if not prompt.mended and prompt.length_s < 12 and len(prompt.said) >= 4]
    known = choice.sample(known, min(TRIED, len(known)))
    words = [word for prompt in known for word in long_words(prompt.text)]
    for change in ("a word left out", "a word put in", "a word replaced", "another sentence"):
        right = 0
        for prompt in known:
            old, new = choice.choice(long_words(prompt.text) or [prompt.text]), choice.choice(words)
            other = choice.choice([each.text for each in known if each is not prompt])
            changed = {
                "a word left out": prompt.text.replace(old, "", 1),
                "a word put in": prompt.text.replace(old, f"{old} {new}", 1),
                "a word replaced": prompt.text.replace(old, new, 1),
                "another sentence": other,
            }
            right += distance(prompt, prompt.text) < distance(prompt, changed[change])
        yield change, right, len(known)


def long_words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{4,}", text)


@cache
def distance(prompt: Prompt, text: str) -> float:
    """Between the recording and the text as it is synthesised."""
    heard = cepstra(prompt.samples(16000), 16000)
    return float(np.mean([warped(heard, spoken(text, prompt.language, *how)) for how in SPOKEN]))


@cache
def spoken(text: str, language: str, variant: str, words_a_minute: int) -> Cepstra:
    command = ["espeak-ng", "-v", VOICES[language] + variant, "-s", str(words_a_minute), "--stdout", text]
    samples, rate_hz = read_wav(io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout))
    return cepstra(samples, rate_hz)


def cepstra(samples: NDArray[np.int16], rate_hz: int) -> Cepstra:
    """Twelve mel-frequency cepstral coefficients and their slopes, without pauses, each of mean 0 and variance 1."""
    size, hop = int(rate_hz * FRAME_S), int(rate_hz * HOP_S)
    sound = np.append(samples[0], samples[1:] - 0.97 * samples[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(sound, size)[::hop] * np.hamming(size)
    power = np.log(np.abs(np.fft.rfft(frames, axis=1)) ** 2 @ bands(rate_hz, size).T + 1e-3)
    loudness = power.mean(axis=1)
    power = power[loudness > loudness.max() - 9]
    order = np.pi * np.outer(np.arange(1, 13), np.arange(BANDS) + 0.5) / BANDS
    found = power @ np.cos(order).T
    found = np.concatenate([found, 2 * np.gradient(found, axis=0)], axis=1)
    normal: Cepstra = (found - found.mean(axis=0)) / (found.std(axis=0) + 1e-6)
    return normal


@cache
def bands(rate_hz: int, size: int) -> Cepstra:
    """Triangles on the mel scale, in the band of telephony."""
    mel = 2595 * np.log10(1 + np.linspace(0, rate_hz / 2, size // 2 + 1) / 700)
    low, high = 2595 * np.log10(1 + np.array([100, 3800]) / 700)
    edges = np.linspace(low, high, BANDS + 2)
    step = edges[1] - edges[0]
    rise, fall = (mel - edges[:-2, None]) / step, (edges[2:, None] - mel) / step
    weights: Cepstra = np.maximum(0, np.minimum(rise, fall))
    return weights


def warped(one: Cepstra, other: Cepstra) -> float:
    """The mean distance of the frames of two sounds along the best way through both (dynamic time warping)."""
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2 * one @ other.T
    apart = np.sqrt(np.maximum(0, squares))
    rows, columns = apart.shape
    best = np.full((rows + 1, columns + 1), np.inf)
    best[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):  # all of one depend on the two before alone
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        step = apart[i - 1, j - 1]
        straight = np.minimum(best[i - 1, j], best[i, j - 1]) + step
        best[i, j] = np.minimum(straight, best[i - 1, j - 1] + 2 * step)
    return float(best[rows, columns] / (rows + columns))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
