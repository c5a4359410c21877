"""Turns the bytes of calls into log-mel frames: many utterances at once, on the device that computes everything else.

Bytes go down as they came, with as much before each stretch of frames as its filters reach back: nothing of an
utterance is kept here. They become what the model's own feature extractor makes of the whole utterance, except that
frames are rows, (frames, 128), log10 of the power before the extractor's clamp at (maximum - 8), for the maximum may
still grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.engines.qwen.device.execution import Staging, bucket, buckets
from asr.samples import decode
from asr.utterance import Format
from audio.resample import MEMORY, TAPS

_NOTHING = 256
"""The code of silence before the beginning."""
_ALAW = 257
"""The index at which the table of A-law begins, behind that of µ-law."""

TRANSFORMS = buckets(1 << 17)
"""Frames that a Fourier transform is of: up to the half hour of sound that a step may bring."""
BOTH_SIDES = np.concatenate([TAPS[::-1], TAPS]).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames `first` to `stop` of one utterance, which counts up to `end`: there it is mirrored."""

    audio: bytes | bytearray
    format: Format
    first: int
    stop: int
    end: int
    """The end in samples at 16 kHz."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Stretches one behind the other."""

    codes: NDArray[np.int16]
    samples: NDArray[np.int16]
    inner: NDArray[np.int64]
    """The first sample of each frame that is whole."""
    edge: NDArray[np.int64]
    """The frames at an edge, (4, frames): the first sample, where sample 0 is, the end, and where the sound is
    mirrored."""
    order: NDArray[np.int64]
    """The places of the whole ones, then of the others."""


class FrontEnd:
    """Decoding, resampling and the mel filters."""

    def __init__(self, extractor: Any, device: torch.device, staging: Staging) -> None:
        """`extractor`: the library's `Qwen3ASRFeatureExtractor`."""
        self.size: int = extractor.n_fft
        self.hop: int = extractor.hop_length
        self.least: int = extractor.min_length
        """Samples; shorter utterances are filled up with zeros."""
        self._staging, self._device = staging, device
        self._window = torch.hann_window(self.size, device=device)
        kind = torch.float32 if device.type == "cpu" else torch.float64
        self._filters = torch.from_numpy(extractor.mel_filters).to(device, kind)
        """The mel filters: on a GPU in 64 bits, since matrices of 32 are multiplied in TF32 there."""
        self.bins = self._filters.shape[1]
        codes = bytes(range(256))
        tables = [np.append(decode(law, codes), 0) for law in ("PCMU", "PCMA")]
        self._table = torch.from_numpy(np.concatenate(tables).astype(np.float32) * np.float32(1 / 32768)).to(device)
        self._within = torch.arange(self.size, device=device)
        taps = torch.from_numpy(BOTH_SIDES).to(device)
        self._between = between_by_taps if device.type == "cpu" else partial(between_at_once, taps=taps)

    def frames(self, samples: int) -> int:
        """The number of frames of an utterance of this many samples at 16 kHz."""
        return max(samples, self.least) // self.hop

    def settled(self, samples: int) -> int:
        """The number of frames that no later sample can change."""
        if samples < self.least:
            return 0
        return min(self.frames(samples), max(0, (samples - self.size // 2) // self.hop + 1))

    def __call__(self, stretches: Sequence[Stretch]) -> tuple[Tensor, NDArray[np.int64]]:
        """Frames, (frames, bins), on the device, and the place of each in the order of the stretches."""
        layout = self._lay_out(stretches)
        return self._compute(layout), layout.order

    def _lay_out(self, stretches: Sequence[Stretch]) -> _Layout:
        """Lay out on the host what goes down, and the samples of each frame."""
        half = self.size // 2
        first, stop, end = np.array([(each.first, each.stop, each.end) for each in stretches], np.int64).T
        # The frames reach up to half a frame to either side, and to what is mirrored at the beginning.
        low = np.maximum(0, first * self.hop - half)
        high = np.minimum(end, np.maximum((stop - 1) * self.hop + half, half + 1))
        wide = np.array([each.format == "L16" for each in stretches])
        narrow = np.flatnonzero(~wide)
        before = low[narrow] // 2 - MEMORY
        codes, at = _together([stretches[each] for each in narrow.tolist()], before, (high[narrow] + 1) // 2, "u1")
        begin = np.empty(len(stretches), np.int64)
        begin[narrow] = 2 * (at - before - MEMORY)
        chosen = np.flatnonzero(wide)
        samples, at = _together([stretches[each] for each in chosen.tolist()], low[chosen], high[chosen], "<i2")
        begin[chosen] = 2 * max(0, len(codes) - MEMORY) + at - low[chosen]
        count = stop - first
        owner = np.repeat(np.arange(len(stretches)), count)
        start = (np.arange(len(owner)) - (count.cumsum() - count - first)[owner]) * self.hop - half
        whole = (start >= 0) & (start + self.size <= end[owner])
        inner, outer = np.flatnonzero(whole), np.flatnonzero(~whole)
        outer_owner = owner[outer]
        edge = start[outer], begin[outer_owner], end[outer_owner], np.maximum(end, self.least)[outer_owner]
        order = np.concatenate([inner, outer])
        return _Layout(codes, samples, begin[owner[inner]] + start[inner], np.stack(edge), order)

    def _compute(self, layout: _Layout) -> Tensor:
        """Compute the frames on the device."""
        down = self._staging.down
        count = len(layout.inner)
        places = down(np.concatenate([layout.inner, layout.edge.reshape(-1)]))
        # Never shorter than a frame.
        sound = torch.cat([
            self._upsampled(self._table[down(layout.codes).int()]),
            down(layout.samples).float() * (1 / 32768),
            torch.zeros(self.size, device=self._device),
        ])  # fmt: skip
        frames_of = self._rows(len(layout.order))
        rows = frames_of[: len(layout.order)]
        torch.index_select(sound.unfold(0, self.size, 1), 0, places[:count], out=rows[:count])
        rows[count:] = self._mirrored(sound, places[count:].view(4, -1))
        spectrum = torch.fft.rfft(frames_of.mul_(self._window))[: len(layout.order)]
        power = spectrum.real.square().add_(spectrum.imag.square())
        frames: Tensor = (power.to(self._filters) @ self._filters).float().clamp_(min=1e-10).log10_()
        return frames

    def _rows(self, count: int) -> Tensor:
        """Memory for this many frames or a few more: on a GPU each size of a Fourier transform costs a plan, which
        takes the host 0.2 ms and keeps memory of the device that torch does not know of (pytorch issue 94893)."""
        size = count if self._device.type == "cpu" else bucket(count, TRANSFORMS) or count
        return torch.empty(size, self.size, device=self._device)

    def _mirrored(self, sound: Tensor, edge: Tensor) -> Tensor:
        """Samples of the frames at either end, (frames, size)."""
        start, begin, end, mirror = edge[:, :, None]
        place = (start + self._within).abs()
        place = torch.where(place >= mirror, 2 * (mirror - 1) - place, place)
        found = sound[(begin + place).clamp(max=len(sound) - 1)]
        return torch.where(place < end, found, 0.0)

    def _upsampled(self, sound: Tensor) -> Tensor:
        """8 kHz, (n,) → 16 kHz, (2 (n - MEMORY),), the same bits however a stream is cut."""
        count, about = max(0, len(sound) - MEMORY), len(TAPS)
        out = sound.new_empty(count, 2)
        if count:
            out[:, 0] = sound[about - 1 : about - 1 + count]
            out[:, 1] = self._between(sound)
        return out.view(-1)


def between_by_taps(sound: Tensor) -> Tensor:
    """8 kHz, (n,) → the samples in between, (n - MEMORY,): the same operations as of `audio.resample.Upsampler`."""
    count, about = len(sound) - MEMORY, len(TAPS)
    out, pair = sound.new_zeros(count), sound.new_empty(count)
    for index, tap in enumerate(TAPS.tolist()):
        low, high = about - 1 - index, about + index
        torch.add(sound[low : low + count], sound[high : high + count], out=pair)
        out += pair.mul_(tap)
    return out


def between_at_once(sound: Tensor, taps: Tensor) -> Tensor:
    """The same in three operations instead of 48, each of which a GPU's host would have to start. `taps`: `BOTH_SIDES`.
    The sum is in 64 bits, so that its order does not show."""
    return (sound.unfold(0, len(taps), 1).double() @ taps).float()


def _together(
    stretches: Sequence[Stretch], low: NDArray[np.int64], high: NDArray[np.int64], kind: str
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """`low` to `high` of each, one behind the other, and where each begins."""
    length = high - low
    at = length.cumsum() - length
    out = np.full(int(length.sum()), _NOTHING, np.int16)
    width = np.dtype(kind).itemsize
    for each, first, stop, place in zip(stretches, low.tolist(), high.tolist(), at.tolist(), strict=True):
        begin = max(0, first)
        into = out[place + begin - first : place + stop - first]
        into[:] = np.frombuffer(each.audio, kind, stop - begin, begin * width)
        if each.format == "PCMA":
            into += _ALAW
    return out, at


def normalise(frames: Tensor, maximum: Tensor) -> Tensor:
    """The encoder's input: nothing below the loudest frame's 8 powers of ten."""
    return (torch.maximum(frames, maximum - 8.0) + 4.0) / 4.0
