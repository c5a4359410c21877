"""Voices that training never heard, through the library's own alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from transformers import Qwen3ASRProcessor
from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification

from tools.train_tiny.channel import MODEL_HZ
from tools.train_tiny.utterances import CLEAN, Recipe, Utterance, utterance
from tools.train_tiny.words import HELD_OUT_VOICES, WORDS

_CLEAN = replace(CLEAN, voices=HELD_OUT_VOICES, min_words=2, max_words=8, telephone=0.0, margin_s=0.6)
_ANY_LINE = replace(Recipe(), voices=HELD_OUT_VOICES, min_words=2, max_words=8, telephone=0.0, silent=0.0, cut=0.0)
SETS: dict[str, Recipe] = {
    "digits, clean µ-law": _CLEAN,
    "digits, any line": _ANY_LINE,
    "words, clean µ-law": replace(_CLEAN, telephone=1.0),
    "words, any line": replace(_ANY_LINE, telephone=1.0),
    "11 to 16 digits, clean µ-law": replace(_CLEAN, min_words=11, max_words=16),
}


@dataclass(slots=True)
class Errors:
    """|heard − said|, in ms, word by word."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """Of the longest utterance."""

    def within(self, limit_ms: float) -> float:
        """Share of words of which both ends are."""
        return float(np.mean([max(pair) <= limit_ms for pair in zip(self.starts, self.ends, strict=True)]))

    def __str__(self) -> str:
        return " ".join(
            f"{name} {np.median(values):.0f} p95 {np.percentile(values, 95):.0f}"
            for name, values in (("start", self.starts), ("end", self.ends))
        )


def held_out(name: str, count: int, seed: int = 2027) -> list[Utterance]:
    index = list(SETS).index(name)
    return [utterance(np.random.default_rng([seed, index, i]), SETS[name]) for i in range(count)]


@torch.no_grad()
def align(
    model: Qwen3ASRForTokenClassification, processor: Qwen3ASRProcessor, samples: np.ndarray, words: Sequence[str]
) -> list[tuple[float, float]]:
    """Begin and end of each word, in ms."""
    inputs, lists = processor.prepare_forced_aligner_inputs(
        samples, " ".join(words), "English", processor_kwargs={"audio_kwargs": {"sampling_rate": MODEL_HZ}}
    )
    logits = model(**inputs).logits
    (found,) = processor.decode_forced_alignment(logits, inputs["input_ids"], lists, model.config.timestamp_token_id)
    assert [item["text"] for item in found] == list(words)
    return [(1000 * item["start_time"], 1000 * item["end_time"]) for item in found]


def errors(
    model: Qwen3ASRForTokenClassification,
    processor: Qwen3ASRProcessor,
    utterances: Sequence[Utterance],
    fault: str = "",
) -> Errors:
    """`fault`: "wrong", the middle word of the transcript is another; "missing", it is not there. Others are judged."""
    out = Errors()
    for said in utterances:
        out.seconds = max(out.seconds, said.samples.size / MODEL_HZ)
        words, places = list(said.words), list(said.heard)
        middle = len(words) // 2
        if fault == "wrong":
            words[middle] = WORDS[(WORDS.index(words[middle]) + 1) % len(WORDS)]
        elif fault:
            del words[middle], places[middle]
        if not words:
            continue
        found = align(model, processor, said.samples, words)
        if fault == "wrong":
            del found[middle], places[middle]
        for (start, end), (_, begin, stop) in zip(found, places, strict=True):
            out.starts.append(abs(start - 1000 * begin / MODEL_HZ))
            out.ends.append(abs(end - 1000 * stop / MODEL_HZ))
    return out
