"""Synthetic telephone utterances, each drawn from a seed.

One thing is not: espeak-ng takes the phase of its voice from one phrase into the next. A run from the start repeats
itself sample by sample; one that was resumed hears the same words, voices and lines, and other samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from asr.utterance import Format
from tools.train_tiny.channel import MODEL_HZ, Samples, equalise, noise, resample, rms, through_codec
from tools.train_tiny.espeak import RATE_HZ as ESPEAK_HZ
from tools.train_tiny.espeak import Speaker, Speech, say
from tools.train_tiny.words import DIGITS, TELEPHONE, TRAINING_VOICES, WORDS

ALL_NOISES = ("white", "pink", "hum", "babble")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What utterances are drawn from."""

    voices: tuple[str, ...] = TRAINING_VOICES
    max_words: int = 10
    min_words: int = 1
    telephone: float = 0.5
    """Share of utterances that hold other words than digits."""
    noisy: float = 0.45
    silent: float = 0.08
    cut: float = 0.25
    """Share that stops anywhere, as live audio does."""
    formants: float = 0.12
    """How far the voice's size may be changed."""
    equalised: float = 0.5
    formats: tuple[tuple[Format, float], ...] = (("PCMU", 0.7), ("PCMA", 0.1), ("L16", 0.2))
    peak_dbfs: tuple[float, float] = (-35.0, -1.0)
    pause_s: float = 0.4
    """Between groups of words, at most."""
    margin_s: float = 0.6
    """Before the first word and after the last, at most."""


CLEAN = Recipe(noisy=0, silent=0, cut=0, formants=0, equalised=0, formats=(("PCMU", 1.0),), peak_dbfs=(-25, -3))
"""µ-law speech as tests play it."""


@dataclass(frozen=True, slots=True)
class Utterance:
    samples: Samples
    """16 kHz, full scale is 1."""
    words: tuple[str, ...]
    """Those that have been said to their end."""
    heard: tuple[tuple[str, int, int], ...] = ()
    """Each word with its begin and end; one that was cut off is among them."""


def utterance(rng: np.random.Generator, recipe: Recipe) -> Utterance:
    formats, weights = zip(*recipe.formats, strict=True)
    format: Format = formats[rng.choice(len(formats), p=weights)]
    rate_hz = MODEL_HZ if format == "L16" else 8000
    quality = str(rng.choice(["HQ", "VHQ", "MQ", "LQ"], p=[0.6, 0.1, 0.15, 0.15]))
    if rng.random() < recipe.silent:
        return Utterance(through_codec(_wordless(rng, rate_hz), format, quality), ())
    words = _words(rng, recipe)
    speech = _speech(rng, words, recipe)
    # A voice read at another rate is a larger or a smaller mouth.
    size = 1 + rng.uniform(-recipe.formants, recipe.formants)
    samples = resample(speech.samples, round(ESPEAK_HZ * size), rate_hz)
    if rng.random() < recipe.equalised:
        samples = equalise(rng, samples, rate_hz)
    samples *= 10 ** (rng.uniform(*recipe.peak_dbfs) / 20) / max(1e-6, float(np.abs(samples).max()))
    loudness = rms(samples)
    lead, trail = (int(rng.uniform(0, recipe.margin_s) * rate_hz) for _ in range(2))
    samples = np.concatenate([np.zeros(lead, np.float32), samples, np.zeros(trail, np.float32)])
    if rng.random() < recipe.noisy:
        samples += noise(rng, samples.size, rate_hz, ALL_NOISES) * loudness * 10 ** (-rng.uniform(5, 40) / 20)
    elif rng.random() < 0.5:
        samples += rng.standard_normal(samples.size, np.float32) * 10 ** (rng.uniform(-80, -55) / 20)
    scale = rate_hz / ESPEAK_HZ / size
    spans = [(lead + round(begin * scale), lead + round(end * scale)) for begin, end in speech.spans]
    if rng.random() < recipe.cut:
        samples = samples[: _stop(rng, spans, samples.size)]
    complete = tuple(word for word, (_, end) in zip(words, spans, strict=True) if end <= samples.size)
    up = MODEL_HZ // rate_hz
    heard = [
        (word, begin * up, end * up) for word, (begin, end) in zip(words, spans, strict=True) if begin < samples.size
    ]
    return Utterance(through_codec(samples, format, quality), complete, tuple(heard))


def _words(rng: np.random.Generator, recipe: Recipe) -> list[str]:
    count = int(rng.integers(recipe.min_words, recipe.max_words + 1))
    kind = rng.random()
    if kind >= recipe.telephone:
        lexicon = DIGITS
    elif kind >= 0.3 * recipe.telephone:
        lexicon = TELEPHONE
    else:
        lexicon = WORDS
    words = [lexicon[i] for i in rng.integers(len(lexicon), size=count)]
    for i in range(1, count):
        # Numbers repeat themselves more than chance would have it.
        if rng.random() < 0.06:
            words[i] = words[i - 1]
    return words


def _speech(rng: np.random.Generator, words: list[str], recipe: Recipe) -> Speech:
    speaker = Speaker(
        voice=recipe.voices[rng.integers(len(recipe.voices))],
        words_per_min=int(rng.integers(120, 221)),
        pitch=int(rng.integers(20, 81)),
        pitch_range=int(rng.integers(20, 81)),
    )
    manner = rng.random()
    if manner < 0.55:
        return say(words, speaker, ", " if rng.random() < 0.15 else " ")
    if manner < 0.75:
        return say(words, replace(speaker, gap=int(rng.integers(1, 25))))
    # Groups of one to four words, with pauses.
    samples, spans, at = [], [], 0
    while words:
        size = int(rng.integers(1, 5)) if manner < 0.9 else 1
        group, words = say(words[:size], speaker), words[size:]
        pause = int(rng.uniform(0, recipe.pause_s) * ESPEAK_HZ)
        samples += [group.samples, np.zeros(pause, np.float32)]
        spans += [(at + begin, at + end) for begin, end in group.spans]
        at += group.samples.size + pause
    return Speech(np.concatenate(samples), tuple(spans))


def _stop(rng: np.random.Generator, spans: list[tuple[int, int]], size: int) -> int:
    """Where cut audio stops: not in the last third of a word, where nobody could say whether it has been said."""
    stop = int(rng.integers(min(size, 1600), size + 1))
    for begin, end in spans:
        doubtful = end - (end - begin) // 3
        if doubtful < stop < end:
            return end if rng.random() < 0.5 else doubtful
    return stop


def _wordless(rng: np.random.Generator, rate_hz: int) -> Samples:
    count = int(rng.uniform(0.2, 5) * rate_hz)
    kind = rng.random()
    if kind < 0.2:
        return np.zeros(count, np.float32)
    if kind < 0.5:
        return noise(rng, count, rate_hz, ("white", "pink")) * 10 ** (rng.uniform(-80, -45) / 20)
    return noise(rng, count, rate_hz, (*ALL_NOISES[:3], "tone")) * 10 ** (rng.uniform(-60, -20) / 20)
