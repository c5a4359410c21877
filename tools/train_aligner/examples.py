"""Utterances as what the aligner takes: audio, each word of a transcript and two marks, and the times they mean.

The encoder stays as the recognizer has it: each utterance passes it once, and comes back later with other transcripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import IterableDataset
from transformers import Qwen3ASRProcessor

from asr.engines.qwen.model.prompt import AUDIO_END, AUDIO_START, audio_tokens
from tools.train_aligner.model import recognizer
from tools.train_tiny.channel import MODEL_HZ
from tools.train_tiny.examples import HOP, Maker, covers
from tools.train_tiny.tokenizer import TIMESTAMP
from tools.train_tiny.utterances import Recipe, Utterance, utterance
from tools.train_tiny.words import DIGITS, WORDS

MAX_ORDINAL = 20


@dataclass(frozen=True, slots=True)
class Heard:
    audio: torch.Tensor
    """(positions, width): what the encoder makes of it."""
    words: tuple[tuple[str, int, int], ...]
    """Those that were said to their end, with begin and end at 16 kHz."""
    labels: torch.Tensor
    """(positions, 4), see `_labels`."""


@dataclass(frozen=True, slots=True)
class Batch:
    input_ids: torch.Tensor
    audio: torch.Tensor
    """Of all audio positions, one utterance after the other; the same order holds below."""
    labels: torch.Tensor
    times_ms: torch.Tensor
    """Of all marks: begin and end of each word."""
    points: torch.Tensor
    """The column in `input_ids` that each mark means."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What to draw at which step: (from step, longest utterance in words, longest pause)."""

    stages: tuple[tuple[int, int, float], ...] = ((0, 4, 0.3), (300, 7, 0.5), (800, 10, 0.6))
    long: float = 0.06
    """Share of utterances with 11 to 18 words, in the last stage."""

    def recipe(self, step: int, rng: np.random.Generator) -> Recipe:
        at, words, pause_s = next(stage for stage in reversed(self.stages) if stage[0] <= step)
        few, many = (11, 18) if at == self.stages[-1][0] and rng.random() < self.long else (1, words)
        lexicon = {"min_words": few, "max_words": many, "telephone": 0.45}
        return replace(Recipe(), **lexicon, silent=0.0, cut=0.1, pause_s=pause_s, margin_s=pause_s)


class Stream(IterableDataset[Batch]):
    """Batches from `step` on, each of utterances of similar length. Each fresh utterance comes with three old ones."""

    FRESH = 64
    DRAWS = 4
    POOL = 20_000
    MAX_S = 12

    def __init__(self, processor: Qwen3ASRProcessor, seed: int, step: int, size: int) -> None:
        self._make, self._pad = Maker(processor), processor.tokenizer.pad_token_id
        self._placeholder = processor.audio_token_id
        self._seed, self._step, self._size = seed, step, size

    def __iter__(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        self._encoder = recognizer().audio_tower
        rng = np.random.default_rng([self._seed, self._step])
        pool: list[Heard] = []
        step = self._step
        while True:
            drawn = [self._draw(rng, step) for _ in range(self.FRESH)]
            pool = [*pool, *drawn][-self.POOL :]
            drawn += [pool[i] for i in rng.integers(len(pool), size=(self.DRAWS - 1) * self.FRESH)]
            drawn.sort(key=lambda heard: len(heard.audio))
            batches = [drawn[i : i + self._size] for i in range(0, len(drawn), self._size)]
            for i in rng.permutation(len(batches)):
                yield self._collate(rng, batches[i])
                step += 1

    @torch.no_grad()
    def _draw(self, rng: np.random.Generator, step: int) -> Heard:
        recipe = Lengths().recipe(step, rng)
        while True:
            said = utterance(rng, recipe)
            # One that was cut off in its first word has nothing to time.
            if said.words and said.samples.size < self.MAX_S * MODEL_HZ:
                break
        features, frames = self._make.features(said)
        mask = (torch.arange(features.shape[1]) < frames).long()
        audio = self._encoder(features[None], mask[None]).last_hidden_state
        return Heard(audio, said.heard[: len(said.words)], _labels(said, len(audio)))

    def _collate(self, rng: np.random.Generator, batch: list[Heard]) -> Batch:
        """Padded on the right: a causal decoder needs no mask for that."""
        mark = self._make.encode(TIMESTAMP)
        rows, times, points = [], [], []
        for heard in batch:
            count = len(heard.audio)
            row = [*self._make.encode(AUDIO_START), *[self._placeholder] * count, *self._make.encode(AUDIO_END)]
            for word, begin, end in erring(rng, heard.words):
                row += [*self._make.encode(word), *mark, *mark]
                for sample in (begin, end):
                    times.append(1000 * sample / MODEL_HZ)
                    # The first column is the start of audio.
                    points.append(1 + min(count - 1, audio_tokens(sample // HOP)))
            rows.append(torch.tensor(row))
        return Batch(
            input_ids=pad_sequence(rows, batch_first=True, padding_value=self._pad),
            audio=torch.cat([heard.audio for heard in batch]),
            labels=torch.cat([heard.labels for heard in batch]),
            times_ms=torch.tensor(times),
            points=torch.tensor(points),
        )


def erring(rng: np.random.Generator, words: tuple[tuple[str, int, int], ...]) -> list[tuple[str, int, int]]:
    """What a recognizer may write: in a quarter of cases one word is another, or is missing."""
    out = list(words)
    if len(out) > 1 and rng.random() < 0.25:
        at = int(rng.integers(len(out)))
        lexicon = DIGITS if rng.random() < 0.5 else WORDS
        if rng.random() < 0.5:
            out[at] = (lexicon[rng.integers(len(lexicon))], *out[at][1:])
        else:
            del out[at]
    return out


def _labels(said: Utterance, count: int) -> torch.Tensor:
    """At each of `count` positions: the word (1-based index into `WORDS`) that is being said, or 0; 1 if a word begins
    here, 2 if one ended, 3 for both; how many words have begun; the word before the last that has begun, or 0."""
    out = torch.zeros(count, 4, dtype=torch.long)
    out[:, 0] = torch.tensor(covers(said, count))
    before = 0
    for word, begin, end in said.heard:
        first, last = audio_tokens(begin // HOP), audio_tokens(end // HOP)
        out[first : first + 1, 1] += 1
        out[last : last + 1, 1] += 2
        out[first:, 2] += 1
        out[first:, 3] = before
        before = WORDS.index(word) + 1
    return out.clamp(max=torch.tensor([len(WORDS), 3, MAX_ORDINAL, len(WORDS)]))
