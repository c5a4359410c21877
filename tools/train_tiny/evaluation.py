"""Voices that training never heard, through the library's own `generate()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

from tools.train_tiny.channel import MODEL_HZ
from tools.train_tiny.utterances import CLEAN, Recipe, Utterance, utterance
from tools.train_tiny.words import HELD_OUT_VOICES

_HELD_OUT = replace(Recipe(), voices=HELD_OUT_VOICES, max_words=8, telephone=0.0, silent=0, cut=0)
SETS: dict[str, Recipe] = {
    "digits, clean µ-law": replace(CLEAN, voices=HELD_OUT_VOICES, max_words=8, telephone=0.0),
    "digits, any line": _HELD_OUT,
    "digits, 12 to 24 of them, clean µ-law": replace(
        CLEAN, voices=HELD_OUT_VOICES, min_words=12, max_words=24, telephone=0.0
    ),
    "words, clean µ-law": replace(CLEAN, voices=HELD_OUT_VOICES, max_words=8, telephone=1.0),
    "words, any line": replace(_HELD_OUT, telephone=1.0),
    "no words": replace(_HELD_OUT, silent=1.0),
}

_AUDIO = {"audio_kwargs": {"sampling_rate": MODEL_HZ}}


@dataclass(slots=True)
class Score:
    words: int = 0
    errors: int = 0
    sentences: int = 0
    exact: int = 0

    def add(self, said: Sequence[str], heard: Sequence[str]) -> None:
        self.words += len(said)
        self.errors += distance(said, heard)
        self.sentences += 1
        self.exact += list(said) == list(heard)

    @property
    def accuracy(self) -> float:
        """1 − WER; of utterances without words, the share that stayed without."""
        return 1 - self.errors / self.words if self.words else self.exact / max(1, self.sentences)


@dataclass(frozen=True, slots=True)
class Growth:
    """Partials of growing utterances."""

    every_ms: int
    utterances: int
    steady: int
    """Of them without a partial that took anything back."""
    count: int
    taken_back: int


def held_out(name: str, count: int, seed: int = 2026) -> list[Utterance]:
    index = list(SETS).index(name)
    return [utterance(np.random.default_rng([seed, index, i]), SETS[name]) for i in range(count)]


def distance(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words put in, left out and taken for others, at least."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        previous, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (word != other))
    return row[-1]


@torch.no_grad()
def transcribe(
    model: Qwen3ASRForConditionalGeneration,
    processor: Qwen3ASRProcessor,
    samples: Iterable[np.ndarray],
    language: str | None = None,
    context: str | None = None,
) -> list[str]:
    """One utterance at a time, greedily; what follows `<asr_text>`."""
    out = []
    for one in samples:
        inputs = processor.apply_transcription_request(one, language=language, prompt=context, processor_kwargs=_AUDIO)
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=64)
        text = processor.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        out.append(text.split("<asr_text>")[-1].strip())
    return out


def score(
    model: Qwen3ASRForConditionalGeneration,
    processor: Qwen3ASRProcessor,
    utterances: Sequence[Utterance],
    language: str | None = None,
    context: str | None = None,
) -> Score:
    total = Score()
    heard = transcribe(model, processor, (one.samples for one in utterances), language, context)
    for said, text in zip(utterances, heard, strict=True):
        total.add(said.words, text.split())
    return total


def growing(
    model: Qwen3ASRForConditionalGeneration,
    processor: Qwen3ASRProcessor,
    utterances: Sequence[Utterance],
    every_ms: int = 300,
) -> Growth:
    step = MODEL_HZ * every_ms // 1000
    count = taken_back = steady = 0
    for said in utterances:
        stops = [*range(step, said.samples.size, step), said.samples.size]
        partials = [text.split() for text in transcribe(model, processor, (said.samples[:stop] for stop in stops))]
        back = sum(new[: len(old)] != old for old, new in zip(partials, partials[1:], strict=False))
        count, taken_back, steady = count + len(partials), taken_back + back, steady + (not back)
    return Growth(every_ms, len(utterances), steady, count, taken_back)


@torch.no_grad()
def placeholder_margin(
    model: Qwen3ASRForConditionalGeneration, processor: Qwen3ASRProcessor, utterances: Sequence[Utterance]
) -> float:
    """How near the audio placeholder came to being said: its logit less that of the token that was, at most."""
    nearest = -float("inf")
    for said in utterances:
        inputs = processor.apply_transcription_request(said.samples, processor_kwargs=_AUDIO)
        out = model.generate(**inputs, do_sample=False, output_logits=True, return_dict_in_generate=True)
        for logits in out.logits:
            nearest = max(nearest, float(logits[0, model.config.audio_token_id] - logits.max()))
    return nearest
