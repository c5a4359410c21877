"""Log-mel frames of growing utterances, equal to those the model's feature extractor makes of the whole.

A frame covers 25 ms around its centre, so all but the last are final as soon as their samples are there; the last one
sees the reflected right edge and is made anew for every end that is asked for. Frames here are rows: (frames, 128),
log10 of the power before the extractor's clamp at (maximum - 8), for the maximum may still grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class View:
    """The frames of an utterance's first samples."""

    frames: Tensor
    """(frames, bins), float32; of the utterance's newest view. An older one has lost those that were not settled."""
    settled: int
    """So many of them no later sample can change."""
    maximum: float

    @property
    def count(self) -> int:
        return self.frames.shape[0]


class Mel:
    """The filters: rows of samples in, rows of log-mel out, for many utterances at once."""

    def __init__(self, extractor: Any) -> None:
        """`extractor`: the library's `Qwen3ASRFeatureExtractor`."""
        self.size: int = extractor.n_fft
        self.hop: int = extractor.hop_length
        self.least: int = extractor.min_length
        """Samples; shorter ones are padded with zeros."""
        self._window = torch.hann_window(self.size)
        self._filters = torch.from_numpy(extractor.mel_filters).float()
        self.bins = self._filters.shape[1]

    def __call__(self, segments: Sequence[Samples]) -> list[Tensor]:
        """Of each segment the frames that lie in it whole: (len - size) // hop + 1 of them."""
        if not segments:
            return []
        cut = [torch.from_numpy(segment).unfold(0, self.size, self.hop) for segment in segments]
        counts = [each.shape[0] for each in cut]
        windowed = torch.empty(sum(counts), self.size)
        for each, part in zip(cut, torch.split(windowed, counts), strict=True):
            torch.mul(each, self._window, out=part)
        spectrum = torch.fft.rfft(windowed)
        power = spectrum.real.square() + spectrum.imag.square()
        frames = (power @ self._filters).clamp(min=1e-10).log10()
        return list(torch.split(frames, counts))


class Features:
    """The samples of one utterance and its frames so far."""

    def __init__(self, mel: Mel) -> None:
        self._mel = mel
        self._samples = np.zeros(0, np.float32)
        self._count = 0
        self._frames = torch.zeros(0, mel.bins)
        """Room for more than there are. Those that are not settled stand behind the settled ones."""
        self._settled = 0
        self._maxima = np.zeros(0, np.float32)
        """Of each settled frame and all before it."""

    def append(self, samples: Samples) -> None:
        """float32 in [-1, 1) at 16 kHz."""
        need = self._count + len(samples)
        if need > len(self._samples):
            grown = np.zeros(max(need, 2 * len(self._samples), 32768), np.float32)
            grown[: self._count] = self._samples[: self._count]
            self._samples = grown
        self._samples[self._count : need] = samples
        self._count = need

    def _final(self, end: int) -> int:
        """Frames that need nothing past `end`."""
        return max(0, (end - self._mel.size // 2) // self._mel.hop + 1)

    def segments(self, end: int) -> list[Samples]:
        """What `Mel` must see before `view(end)`: the new settled frames, and the frames at the edge."""
        mel = self._mel
        if end < mel.least:
            padded = np.pad(self._samples[:end], (0, mel.least - end))
            reflected = np.pad(padded, mel.size // 2, mode="reflect")
            return [reflected[: (self._total(end) - 1) * mel.hop + mel.size]]
        out: list[Samples] = []
        first, final = self._settled, self._final(self._count)
        if final > first:
            stop = (final - 1) * mel.hop + mel.size // 2
            if first == 0:
                left = self._samples[1 : mel.size // 2 + 1][::-1]
                out.append(np.concatenate([left, self._samples[:stop]]))
            else:
                out.append(self._samples[first * mel.hop - mel.size // 2 : stop])
        if (total := self._total(end)) > (final := self._final(end)):
            low = final * mel.hop - mel.size // 2
            edge = np.pad(self._samples[low:end], (0, mel.size // 2), mode="reflect")
            out.append(edge[: (total - 1 - final) * mel.hop + mel.size])
        return out

    def _total(self, end: int) -> int:
        return max(end, self._mel.least) // self._mel.hop

    def view(self, end: int, made: Sequence[Tensor]) -> View:
        """`made`: what `Mel` gave for `segments(end)`; nothing has been appended since."""
        total, made = self._total(end), list(made)
        if end < self._mel.least:
            return View(made[0], 0, float(made[0].max()))
        if self._final(self._count) > self._settled:
            self._keep(made.pop(0))
        settled = min(self._final(end), total)
        maximum = float(self._maxima[settled - 1]) if settled else -np.inf
        if not made:
            return View(self._frames[:total], settled, maximum)
        if settled < self._settled:  # an answer about less than has come: the edge is not at the end
            frames = torch.cat([self._frames[:settled], made[0]])
        else:
            self._write(settled, made[0])
            frames = self._frames[:total]
        return View(frames, settled, max(maximum, float(made[0].max())))

    def _write(self, at: int, frames: Tensor) -> None:
        need = at + frames.shape[0]
        if need > self._frames.shape[0]:
            grown = torch.zeros(max(need, 2 * self._frames.shape[0], 256), self._mel.bins)
            grown[:at] = self._frames[:at]
            self._frames = grown
        self._frames[at:need] = frames

    def _keep(self, frames: Tensor) -> None:
        self._write(self._settled, frames)
        self._settled += frames.shape[0]
        before = self._maxima[-1:] if len(self._maxima) else np.full(1, -np.inf, np.float32)
        grown = np.maximum.accumulate(np.concatenate([before, frames.amax(dim=1).numpy()]))[1:]
        self._maxima = np.concatenate([self._maxima, grown])


def views(mel: Mel, wanted: Sequence[tuple[Features, int]]) -> list[View]:
    """Of each utterance's first so many samples; the frames that are missing are made all together."""
    segments = [features.segments(end) for features, end in wanted]
    made = iter(mel([segment for each in segments for segment in each]))
    return [
        features.view(end, [next(made) for _ in each]) for (features, end), each in zip(wanted, segments, strict=True)
    ]


def normalise(frames: Tensor, maximum: Tensor) -> Tensor:
    """What the encoder takes: nothing below the loudest frame's 8 powers of ten."""
    return (torch.maximum(frames, maximum - 8.0) + 4.0) / 4.0
