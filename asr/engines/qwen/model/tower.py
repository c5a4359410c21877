"""The audio tower's arithmetic, over what is packed from many utterances: chunks through the convolutions, windows
through the layers. What has to go through it is the matter of `encoder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from asr.engines.qwen.device.execution import Graphs, Staging, bucket, buckets
from asr.engines.qwen.device.kernels import Kernels, Windows
from asr.engines.qwen.model.fused import AudioLayers
from asr.engines.qwen.model.mel import normalise

WINDOWS = 64
"""Windows in one pass of the layers with fixed shapes."""


class Tower:
    """Runs the model's own weights."""

    def __init__(
        self, model: Any, kernels: Kernels, graphs: Graphs, staging: Staging, *, chunks: int, tokens: int, window: int,
    ) -> None:  # fmt: skip
        """`model`: fused. `chunks`, `tokens`: of a pass at most. `window`: tokens of a window at most."""
        tower = model.model.audio_tower
        self._tower, self._graphs, self._staging = tower, graphs, staging
        self._layers = AudioLayers(tower, model.model.multi_modal_projector, kernels)
        self._chunk = 2 * int(tower.n_window)
        weight = tower.conv2d1.weight
        self._dtype, self._device = weight.dtype, weight.device
        self._most, self.window = tokens, window
        self.bins, self.width = int(tower.config.num_mel_bins), int(tower.config.d_model)
        if graphs.fixed:
            self._chunks, self._tokens = buckets(chunks), buckets(tokens)
            shape = (chunks, self._chunk, self.bins)
            self._frames = torch.zeros(shape, device=self._device)
            self._about = torch.zeros(chunks, 2, device=self._device)
            self._hidden = torch.zeros(tokens, self.width, dtype=self._dtype, device=self._device)
            self._cu_seqlens = torch.zeros(WINDOWS + 1, dtype=torch.int32, device=self._device)

    # -- convolutions -----------------------------------------------------------------------------------------------

    def convolve(self, pages: Tensor, chosen: Sequence[int], maxima: Sequence[float], lengths: Sequence[int]) -> Tensor:
        """Frames of seconds, (pages, frames, bins), on the device and not clamped; which of the pages, the maximum that
        they are clamped by, and how many frames they have → (chosen, tokens, width). Where there are fewer frames than
        in a second the last tokens mean nothing."""
        count = len(chosen)
        size = bucket(count, self._chunks) if self._graphs.fixed else count
        assert size is not None, "more chunks than in a pass"
        about = np.zeros((size, 2), np.float32)
        about[:count] = np.column_stack([maxima, lengths])
        frames = pages[self._staging.down(np.array(chosen))]
        if not self._graphs.fixed:
            return self._convolve(frames, self._staging.down(about))
        into, beside = self._frames[:size], self._about[:size]
        into[:count].copy_(frames)
        self._staging.down(about, beside)
        made = self._graphs.run(("chunks", size), lambda: self._convolve(into, beside))
        return made[:count].clone()

    def _convolve(self, frames: Tensor, about: Tensor) -> Tensor:
        maxima, lengths = about.T[:, :, None, None]
        inside = torch.arange(self._chunk, device=frames.device)[:, None] < lengths
        x = torch.where(inside, normalise(frames, maxima), 0.0)
        x = x.transpose(1, 2)[:, None].to(self._dtype)
        tower = self._tower
        for convolution in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
            x = functional.gelu(convolution(x))
        count, channels, bins, steps = x.shape
        x = tower.conv_out(x.permute(0, 3, 1, 2).reshape(count, steps, channels * bins))
        out: Tensor = x + tower.positional_embedding.positional_embedding[:steps].to(x.dtype)  # anew in each chunk
        return out

    # -- layers -----------------------------------------------------------------------------------------------------

    def attend(self, windows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Chunks of each window, (tokens, width) → its embeddings, (tokens, width of the text model)."""
        out: list[Tensor] = []
        part: list[Sequence[Tensor]] = []
        room = self._most
        for window in windows:
            length = sum(chunk.shape[0] for chunk in window)
            if part and (len(part) == WINDOWS or length > room):
                out += self._attend(part)
                part, room = [], self._most
            part.append(window)
            room -= length
        return [*out, *self._attend(part)]

    def _attend(self, windows: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
        lengths = [sum(chunk.shape[0] for chunk in window) for window in windows]
        count, together = sum(lengths), torch.cat([chunk for window in windows for chunk in window])
        size = bucket(count, self._tokens) if self._graphs.fixed else None
        if size is None:
            cu_seqlens = self._staging.down(np.cumsum([0, *lengths], dtype=np.int32))
            return torch.split(self._layers(together, Windows(cu_seqlens, lengths)), lengths)
        ends = np.full(WINDOWS + 1, count, np.int32)
        ends[0], ends[1 : len(lengths) + 1] = 0, np.cumsum(lengths)
        self._staging.down(ends, self._cu_seqlens)
        self._hidden[:count].copy_(together)
        return torch.split(self._of_size(size)[:count].clone(), lengths)

    def _of_size(self, size: int) -> Tensor:
        into, windows = self._hidden[:size], Windows(self._cu_seqlens, None)
        return self._graphs.run(("windows", size), lambda: self._layers(into, windows))

    def capture(self) -> int:
        """Record every size, largest first. -> how many."""
        if not self._graphs.fixed:
            return 0
        for size in reversed(self._chunks):
            self.convolve(self._frames[:1], [0] * size, [0.0] * size, [1] * size)
        for size in reversed(self._tokens):
            self._staging.down(np.array([0, *[size] * WINDOWS], np.int32), self._cu_seqlens)
            self._of_size(size)
        return len(self._chunks) + len(self._tokens)
