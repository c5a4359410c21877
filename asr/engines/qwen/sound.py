"""The sound of utterances in the engine: their bytes on the host, and their frames on the device, a page a chunk.

A frame covers 25 ms around its centre, so all but the last are settled as soon as their bytes are there; the last ones
see the mirrored right edge and are made anew for every end that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from asr.engines.qwen.device.interface import Staging
from asr.engines.qwen.model.mel import FrontEnd, Stretch
from asr.utterance import BYTES_PER_S, Format

MODEL_HZ = 16000
FIRST_PAGES = 64


@dataclass(frozen=True, slots=True)
class View:
    """The frames of an utterance's first samples."""

    pages: Sequence[int]
    """Where the frames of each chunk are; behind `count` there is anything."""
    count: int
    settled: int
    """So many of them no later sample can change. An older view has lost the others."""
    maximum: float


class Pages:
    """Frames on the device, (pages, frames of a chunk, bins), and which of them are free."""

    def __init__(self, frames: int, bins: int, device: torch.device, staging: Staging) -> None:
        self._staging = staging
        self.frames = torch.zeros(FIRST_PAGES, frames, bins, device=device)
        self._free = list(range(FIRST_PAGES))

    def take(self, count: int) -> list[int]:
        while len(self._free) < count:
            more = len(self.frames)
            self._staging.settle()  # a step that has been launched may still read the old ones
            self.frames = torch.cat([self.frames, torch.zeros_like(self.frames)])
            self._free += range(more, 2 * more)
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: Sequence[int]) -> None:
        self._free += pages


class Sound:
    """One utterance's, so far."""

    __slots__ = ("_maxima", "_other", "_pages", "audio", "format", "maximum", "settled")

    def __init__(self, format: Format) -> None:
        self.format = format
        self.audio = bytearray()
        self.settled = 0
        self.maximum = -inf
        """Of the settled frames."""
        self._maxima: list[float] = []
        """Of each of them."""
        self._pages: list[int] = []
        self._other: list[int] = []
        """Of a view of less than has been looked at before."""

    @property
    def samples(self) -> int:
        """At 16 kHz."""
        return len(self.audio) * MODEL_HZ // BYTES_PER_S[self.format]

    def append(self, audio: bytes) -> None:
        self.audio += audio

    def close(self, pages: Pages) -> None:
        pages.give(self._pages + self._other)
        self._pages, self._other = [], []

    def places(self, pages: Pages, settled: int, count: int) -> tuple[int, list[int]]:
        """From which frame on frames have to be made for a view, and its pages."""
        each = pages.frames.shape[1]
        pages.give(self._other)
        self._other = []
        if settled >= self.settled:
            self._pages += pages.take(-(-count // each) - len(self._pages))
            return self.settled, self._pages[: -(-count // each)]
        # Its last frames must not overwrite settled ones.
        kept = settled // each
        self._other = pages.take(-(-count // each) - kept)
        return kept * each, [*self._pages[:kept], *self._other]

    def settle(self, maxima: Sequence[float], first: int, settled: int) -> float:
        """`maxima`: of the frames from `first` on, of a view's. -> the view's maximum."""
        edge = max(maxima[settled - first :], default=-inf)
        if settled < self.settled:
            return max(max(self._maxima[:settled], default=-inf), edge)
        new = maxima[: settled - first]
        self._maxima += new
        self.settled = settled
        self.maximum = max(self.maximum, max(new, default=-inf))
        return max(self.maximum, edge)


def look(front: FrontEnd, pages: Pages, staging: Staging, wanted: Sequence[tuple[Sound, int]]) -> list[View]:
    """Of each utterance's first so many samples at 16 kHz; the frames that are missing are made all together."""
    each = pages.frames.shape[1]
    views: list[tuple[int, int, int, list[int]]] = []
    stretches: list[Stretch] = []
    where: list[tuple[int, int]] = []
    """Places of new frames in the pages, and how many are there in a row."""
    for sound, end in wanted:
        count, settled = front.frames(end), front.settled(end)
        first, mine = sound.places(pages, settled, count)
        views.append((first, settled, count, mine))
        if first < count:
            stretches.append(Stretch(sound.audio, sound.format, first, count, end))
        while first < count:
            page, at = divmod(first, each)
            length = min(count - first, each - at)
            where.append((mine[page] * each + at, length))
            first += length
    maxima = _make(front, pages, staging, stretches, where) if stretches else []
    found, done = [], 0
    for (sound, _), (first, settled, count, mine) in zip(wanted, views, strict=True):
        maximum = sound.settle(maxima[done : done + count - first], first, settled)
        done += count - first
        found.append(View(mine, count, settled, maximum))
    return found


def _make(
    front: FrontEnd, pages: Pages, staging: Staging, stretches: Sequence[Stretch], where: Sequence[tuple[int, int]]
) -> list[float]:
    """The frames of all stretches, put into the pages. -> the maximum of each frame."""
    frames, order = front(stretches)
    start, length = np.array(where).T
    place = np.repeat(start - (length.cumsum() - length), length) + np.arange(len(order))
    into, order_there = staging.down(np.stack([place[order], order]))
    pages.frames.view(-1, front.bins).index_copy_(0, into, frames)
    maxima = torch.empty(len(order), device=frames.device)
    found: list[float] = staging.lift(maxima.index_copy_(0, order_there, frames.amax(dim=1)))()
    return found
