"""Utterances as what the model takes, in batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers import Qwen3ASRProcessor

from asr.engines.qwen.model.prompt import audio_tokens
from tools.train_tiny.channel import MODEL_HZ
from tools.train_tiny.tokenizer import AUDIO_PAD, answer, prompt
from tools.train_tiny.utterances import Recipe, Utterance, utterance
from tools.train_tiny.words import CONTEXT, WORDS

IGNORED = -100
HOP = 160


@dataclass(frozen=True, slots=True)
class Example:
    features: torch.Tensor
    """(128, frames), frames a multiple of 100."""
    frames: int
    """Of them valid."""
    tokens: list[int]
    labels: list[int]
    covers: list[int]
    """At each audio position, the word (1-based index into `WORDS`) that is being said; 0 in a pause."""
    completes: list[int]
    """At each audio position, the word that has just been completed; 0 mostly."""


@dataclass(frozen=True, slots=True)
class Batch:
    input_ids: torch.Tensor
    labels: torch.Tensor
    features: torch.Tensor
    feature_mask: torch.Tensor
    covers: torch.Tensor
    """Of all audio positions, one utterance after the other."""
    completes: torch.Tensor


class Maker:
    """Utterance → example. Features are made one by one, as at inference: the extractor's maximum and its reflected
    edge belong to one utterance."""

    def __init__(self, processor: Qwen3ASRProcessor) -> None:
        self._extract = processor.feature_extractor
        self._tokenizer = processor.tokenizer
        self._placeholder = processor.audio_token_id
        self._known: dict[str, list[int]] = {}

    def __call__(self, said: Utterance, context: str = "", forced: bool = False) -> Example:
        features, frames = self.features(said)
        count = audio_tokens(frames)
        before, after = prompt(context).split(AUDIO_PAD)
        head = [*self.encode(before), *[self._placeholder] * count, *self.encode(after)]
        tail, hidden = self.encode(answer(said.words)), 0
        if forced:
            given = self.encode(prompt(language="English").removeprefix(prompt()))
            # What it would say of the language itself is as long.
            tail, hidden = given + tail[len(given) :], len(given)
        completes = [0] * count
        for word, _, end in said.heard[: len(said.words)]:
            completes[min(count - 1, audio_tokens(end // HOP) + 1)] = WORDS.index(word) + 1
        return Example(
            features=features,
            frames=frames,
            tokens=head + tail,
            labels=[IGNORED] * (len(head) + hidden) + tail[hidden:],
            covers=covers(said, count),
            completes=completes,
        )

    def features(self, said: Utterance) -> tuple[torch.Tensor, int]:
        made = self._extract(said.samples, sampling_rate=MODEL_HZ, padding="longest", return_attention_mask=True)
        return made["input_features"][0], int(made["attention_mask"].sum())

    def encode(self, text: str) -> list[int]:
        if text not in self._known:
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[text] = self._tokenizer.encode(text)
        return self._known[text]


def covers(said: Utterance, count: int) -> list[int]:
    """At each of `count` audio positions, the word (1-based index into `WORDS`) that is being said; 0 in a pause."""
    out = [0] * count
    for word, begin, end in said.heard:
        index = WORDS.index(word) + 1
        for position in range(audio_tokens(begin // HOP), min(count, audio_tokens(end // HOP))):
            out[position] = index
    return out


def collate(examples: list[Example], pad: int) -> Batch:
    """Padded on the right: a causal decoder needs no mask for that."""
    length = max(len(example.tokens) for example in examples)
    width = max(example.features.shape[1] for example in examples)
    ids = torch.full((len(examples), length), pad)
    labels = torch.full((len(examples), length), IGNORED)
    features = torch.zeros(len(examples), 128, width)
    mask = torch.zeros(len(examples), width, dtype=torch.long)
    for row, example in enumerate(examples):
        ids[row, : len(example.tokens)] = torch.tensor(example.tokens)
        labels[row, : len(example.labels)] = torch.tensor(example.labels)
        features[row, :, : example.features.shape[1]] = example.features
        mask[row, : example.frames] = 1
    covers, completes = (
        torch.tensor([word for example in examples for word in words(example)])
        for words in (lambda example: example.covers, lambda example: example.completes)
    )
    return Batch(ids, labels, features, mask, covers, completes)


@dataclass(frozen=True, slots=True)
class Curriculum:
    """What to draw at which step: (from step, longest utterance in words, share with telephone words)."""

    stages: tuple[tuple[int, int, float], ...] = (
        (0, 1, 0.0),
        (160, 3, 0.0),
        (480, 6, 0.0),
        (960, 10, 0.0),
        (2400, 10, 0.45),
    )

    def recipe(self, step: int) -> Recipe:
        _, words, telephone = next(stage for stage in reversed(self.stages) if stage[0] <= step)
        return replace(Recipe(), max_words=words, telephone=telephone, cut=0.25 if words > 1 else 0.0)

    def long(self, step: int) -> Recipe | None:
        """Of 5 to 20 s: the encoder's windows end every 8 s."""
        recipe = self.recipe(step)
        return replace(recipe, min_words=12, max_words=32, silent=0.0) if recipe.max_words == 10 else None


class Stream(IterableDataset[Batch]):
    """Batches from `step` on. Those of a group come in any order; each holds utterances of similar length, and one of
    them a few long ones."""

    GROUP = 16
    LONG = 8

    def __init__(self, processor: Qwen3ASRProcessor, seed: int, step: int, size: int, curriculum: Curriculum) -> None:
        self._make, self._pad = Maker(processor), processor.tokenizer.pad_token_id
        self._seed, self._step, self._size, self._curriculum = seed, step, size, curriculum

    def __iter__(self) -> Iterator[Batch]:
        assert get_worker_info() is None or get_worker_info().num_workers == 1, "one worker: batches have an order"
        torch.set_num_threads(1)
        step = self._step
        while True:
            group = step // self.GROUP
            for batch in self._group(group)[step % self.GROUP :]:
                yield batch
                step += 1

    def _group(self, group: int) -> list[Batch]:
        recipe, long = (draw(group * self.GROUP) for draw in (self._curriculum.recipe, self._curriculum.long))
        examples = [self._example(recipe, group, i) for i in range((self.GROUP - bool(long)) * self._size)]
        examples.sort(key=lambda example: (example.features.shape[1], len(example.tokens)))
        batches = [examples[i : i + self._size] for i in range(0, len(examples), self._size)]
        if long:
            batches.append([self._example(long, group, len(examples) + i) for i in range(self.LONG)])
        order = np.random.default_rng([self._seed, group]).permutation(len(batches))
        return [collate(batches[i], self._pad) for i in order]

    def _example(self, recipe: Recipe, group: int, i: int) -> Example:
        rng = np.random.default_rng([self._seed, group, i])
        said = utterance(rng, recipe)
        return self._make(said, _context(rng), forced=bool(rng.random() < 0.5))


def _context(rng: np.random.Generator) -> str:
    if rng.random() < 0.8:
        return ""
    lexicon = (*WORDS, *CONTEXT)
    return " ".join(lexicon[i] for i in rng.integers(len(lexicon), size=rng.integers(1, 7)))
