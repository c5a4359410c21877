"""What the engine and the aligner say, asked in the way that the worker asks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asr import messages
from asr.engines.aligner import AlignRequest
from asr.engines.qwen.aligner import QwenAligner, split
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.encoder import Audio
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import load, load_aligner
from asr.engines.qwen.model.mel import normalise
from asr.engines.qwen.model.prompt import audio_tokens
from asr.engines.qwen.sound import Sound, compute_views
from asr.inference.inference import Inference
from asr.utterance import Utterance
from tools.reference.cases import Case, Talk

WHOLE = Shape(window_s=60, exact_partials=True)
"""All of an utterance in one window of the encoder."""
EXACT = Shape(exact_partials=True)


@dataclass(frozen=True, slots=True)
class Said:
    tokens: list[int]
    text: str
    language: str
    """ISO 639 code."""


@dataclass(slots=True)
class Engine:
    """One model under one shape."""

    folder: Path
    shape: Shape = field(default_factory=Shape)
    _engine: QwenEngine = field(init=False)
    _inference: Inference = field(init=False)
    _tokens: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        loaded = load(self.folder)
        engine = self._engine = QwenEngine(loaded, self.shape)
        read = engine.prompts.read

        def noted(tokens: list[int], prompt: Any) -> tuple[str, str]:
            self._tokens = list(tokens)
            return read(tokens, prompt)

        engine.prompts.read = noted  # type: ignore[method-assign]
        self._inference = Inference(engine)

    def hear(self, talk: Talk) -> dict[int, Said]:
        """Every question of a talk, in the order in which a call asks them: by the bytes that were heard."""
        utterance = Utterance(talk.name, talk.sound.format, talk.language, talk.context)
        self._inference.receive(messages.Open(utterance), 0.0)
        said, at = {}, 0
        for revision, end in enumerate(ends := talk.ends()):
            self._inference.receive(messages.Append(talk.name, at, talk.sound.audio[at:end]), 0.0)
            at = end
            final = end == ends[-1]
            ask = messages.FinalRequest(talk.name, revision, end, commit=True) if final else None
            self._inference.receive(ask or messages.PartialRequest(talk.name, revision, end), 0.0)
            said[end] = self._answer()
        return said

    def _answer(self) -> Said:
        while (work := self._inference.choose()) is not None:
            for message in self._inference.perform(work):
                if isinstance(message, messages.Heard):
                    heard = message.hypothesis
                    assert heard.error is None, heard.error
                    return Said(self._tokens, heard.text, heard.language)
        raise AssertionError("no answer")

    @torch.inference_mode()
    def seen(self, case: Case) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mel (bins, frames) as the encoder takes it, and what the encoder makes of it: (tokens, width)."""
        engine, sound = self._engine, Sound(case.talk.sound.format, case.talk.sound.audio)
        (view,) = compute_views(engine.front, engine.pages, engine.execution.staging, [(sound, len(case.samples))])
        encoder = engine.encoder
        encoding = encoder.begin(Audio(), view, exact=True)
        encoder.run([(encoding, encoder.missing(encoding))], engine.pages.frames)
        frames = engine.pages.frames[list(view.pages)].flatten(0, 1)[: view.count]
        mel = normalise(frames, torch.tensor(view.maximum)).T
        return mel.numpy(), torch.cat(encoder.finish(encoding)).numpy()

    def prompt(self, case: Case) -> list[int]:
        """Its ids, with a placeholder for every token of audio."""
        built = self._engine.prompts.build(context=case.talk.context, language=case.talk.language)
        frames = self._engine.front.frames(len(case.samples))
        return [*built.head, *[self.placeholder] * audio_tokens(frames), *built.tail]

    @property
    def placeholder(self) -> int:
        return int(self._engine.prompts.never)

    @property
    def ends(self) -> list[int]:
        return sorted(self._engine.prompts.ends)


@dataclass(frozen=True, slots=True)
class Timed:
    """A text and what the aligner says of it."""

    tokens: list[str]
    times: list[list[int]]
    """Start and end of each, in ms."""
    chances: NDArray[np.float32]
    """Of the classes at each time, before times that are out of order are repaired: (2 * words, classes)."""

    @property
    def classes(self) -> list[int]:
        return [int(each) for each in self.chances.argmax(axis=-1)]


class Aligner:
    def __init__(self, folder: Path, *, whole: bool = False) -> None:
        """`whole`: all of an utterance in one window of the encoder."""
        loaded = load_aligner(folder)
        if whole:
            assert WHOLE.window_s
            loaded.model.model.audio_tower.n_window_infer = round(100 * WHOLE.window_s)
        self._aligner = QwenAligner(loaded)
        self._chances: list[torch.Tensor] = []
        classify = self._aligner._classify

        def noted(embeddings: Any, placed: Any) -> list[torch.Tensor]:
            self._chances = classify(embeddings, placed)
            return self._chances

        self._aligner._classify = noted  # type: ignore[method-assign]

    def align(self, spoken: Sequence[AlignRequest]) -> list[Timed]:
        """In one call."""
        self._chances = []
        said = self._aligner.align(spoken)
        chances, timed = iter(self._chances), []
        for each, words in zip(spoken, said, strict=True):
            tokens = [placed.token for placed in split(each.text, each.language)]
            times = [[word.start_ms, word.end_ms] for word in words]
            timed.append(Timed(tokens, times, next(chances).numpy() if tokens else np.zeros((0, 1), np.float32)))
        return timed
