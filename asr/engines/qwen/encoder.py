"""The audio tower over growing utterances: what is finished is computed once, and many utterances share one pass.

Convolutions see seconds (chunks of 100 frames), attention sees windows of some seconds and no further, so a finished
window has its final embeddings. Both depend on the loudest frame so far: as Whisper's (arXiv 2212.04356), the features
are clamped to 8 powers of ten below it. When a louder frame comes, finished windows are computed anew for a
final and not for a partial: anew for each partial, a call that grows louder would cost its whole audio at every word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from asr.engines.qwen.device.execution import Graphs, Staging
from asr.engines.qwen.device.kernels import Kernels
from asr.engines.qwen.model.tower import Tower
from asr.engines.qwen.sound import View

CONV_CHUNKS = 32
"""Chunks in one pass of the convolutions, which need 60 times the memory of their input."""
GPU_CONV_CHUNKS = 128
"""`CONV_CHUNKS` on a GPU: such a pass takes 9 % less time for each chunk, and holds all chunks of a step."""
PASS_TOKENS = 2048
"""Tokens in one pass of the layers; with fixed shapes, the largest size."""


@dataclass(slots=True)
class _Made:
    """A piece of the audio, and the maximum it was made with."""

    maximum: float
    tokens: Tensor


@dataclass(slots=True)
class Audio:
    """The embeddings of one utterance so far."""

    chunks: dict[int, _Made] = field(default_factory=dict)
    """The output of the convolutions, of chunks of windows that are not finished."""
    windows: dict[int, _Made] = field(default_factory=dict)
    """Finished ones."""


@dataclass(slots=True)
class Encoding:
    """An utterance on its way through the encoder."""

    audio: Audio
    view: View
    done: dict[int, Tensor] = field(default_factory=dict)
    """Embeddings by window."""


class Encoder:
    """Runs the model's own weights; holds no utterance's state."""

    def __init__(
        self, model: Any, kernels: Kernels, graphs: Graphs, staging: Staging, *, window_s: float | None = None
    ) -> None:
        """`model`: fused. `window_s`: seconds that attend to each other, instead of the model's own."""
        tower = model.model.audio_tower
        self.chunk = 2 * int(tower.n_window)
        """Frames per chunk."""
        self.window = int(tower.n_window_infer) if window_s is None else round(100 * window_s)
        """Frames per window, a multiple of a chunk."""
        if self.window <= 0 or self.window % self.chunk:
            raise ValueError(f"a window is a multiple of {self.chunk / 100:g} s")
        self._staging = staging
        self.pass_chunks = GPU_CONV_CHUNKS if staging.asynchronous else CONV_CHUNKS
        self.tower = Tower(
            model, kernels, graphs, staging, chunks=self.pass_chunks, tokens=PASS_TOKENS,
            window=self.window // self.chunk * -(-self.chunk // 8),
        )  # fmt: skip
        self.convolved_chunks = self.attended_windows = self.attended_tokens = 0

    def capture(self) -> int:
        """Record the graphs of the tower. Returns their number."""
        return self.tower.capture()

    def begin(self, audio: Audio, view: View, *, exact: bool) -> Encoding:
        """Plan the work for this view of the utterance; `run` does it.

        `exact`: finished windows whose maximum is no longer the utterance's are made anew, so that what comes out is
        that of the whole utterance at once; otherwise they keep the maximum they were made with.
        """
        encoding = Encoding(audio, view)
        for number in range(view.settled // self.window):  # a request may be about less audio than one before it
            known = audio.windows.get(number)
            if known is not None and (known.maximum == view.maximum or not exact):
                encoding.done[number] = known.tokens
        return encoding

    def _windows(self, view: View) -> int:
        return -(-view.count // self.window)

    def missing(self, encoding: Encoding) -> int:
        """Windows still to be computed."""
        return self._windows(encoding.view) - len(encoding.done)

    def run(self, work: Sequence[tuple[Encoding, int]], pages: Tensor) -> None:
        """Compute the first so many missing windows of each, all of them together. `pages`: see `sound.Pages`."""
        todo = [
            (encoding, number)
            for encoding, limit in work
            for number in [n for n in range(self._windows(encoding.view)) if n not in encoding.done][:limit]
        ]
        if not todo:
            return
        self._convolve(todo, pages)
        embedded = self.tower.attend([self._tokens(encoding, number) for encoding, number in todo])
        self.attended_windows += len(todo)
        self.attended_tokens += sum(each.shape[0] for each in embedded)
        for (encoding, number), embeddings in zip(todo, embedded, strict=True):
            encoding.done[number] = embeddings
            view = encoding.view
            if (number + 1) * self.window <= view.settled:
                # It stays, and would hold the buffer of the whole pass.
                encoding.done[number] = embeddings = embeddings.clone()
                encoding.audio.windows[number] = _Made(view.maximum, embeddings)
                for chunk in self._chunks(view, number):
                    del encoding.audio.chunks[chunk]

    def finish(self, encoding: Encoding) -> list[Tensor]:
        """The embeddings of all windows, (tokens, width) each; of a finished one it is the very same object again."""
        return [encoding.done[number] for number in range(self._windows(encoding.view))]

    def _chunks(self, view: View, window: int) -> range:
        """The chunks of a window."""
        first, stop = window * self.window, min((window + 1) * self.window, view.count)
        return range(first // self.chunk, -(-stop // self.chunk))

    def _convolve(self, todo: Sequence[tuple[Encoding, int]], pages: Tensor) -> None:
        """Have the convolutions of every chunk of these windows."""
        missing = [
            (encoding, chunk)
            for encoding, window in todo
            for chunk in self._chunks(encoding.view, window)
            if (known := encoding.audio.chunks.get(chunk)) is None
            or known.maximum != encoding.view.maximum
            or (chunk + 1) * self.chunk > encoding.view.settled
        ]
        for first in range(0, len(missing), self.pass_chunks):
            part = missing[first : first + self.pass_chunks]
            views = [encoding.view for encoding, _ in part]
            ends = [(chunk + 1) * self.chunk for _, chunk in part]
            lengths = [min(self.chunk, self.chunk + view.count - end) for view, end in zip(views, ends, strict=True)]
            made = self.tower.convolve(
                pages,
                [view.pages[chunk] for view, (_, chunk) in zip(views, part, strict=True)],
                [view.maximum for view in views],
                lengths,
            )
            settled = [end <= view.settled for view, end in zip(views, ends, strict=True)]
            # Those stay, and would hold the buffer of the whole pass.
            kept = iter(made[self._staging.down(np.flatnonzero(settled))].unbind())
            for (encoding, chunk), length, tokens, stays in zip(part, lengths, made.unbind(), settled, strict=True):
                if stays:
                    encoding.audio.chunks[chunk] = _Made(encoding.view.maximum, next(kept))
                else:  # one that still grows is of use in this pass only: no maximum equals NaN
                    encoding.audio.chunks[chunk] = _Made(math.nan, tokens[: -(-length // 8)])
        self.convolved_chunks += len(missing)

    def _tokens(self, encoding: Encoding, window: int) -> list[Tensor]:
        """The embeddings of each chunk of a window, (tokens, width)."""
        return [encoding.audio.chunks[chunk].tokens for chunk in self._chunks(encoding.view, window)]
