"""The sound of utterances in the engine: their bytes on the host, and their frames on the device, a page a chunk.

A frame covers 25 ms around its centre, so all but the last ones are settled as soon as their bytes are there. The last
ones see the mirrored right edge, as in the library's feature extractor, and are computed anew for every request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import torch

from asr.engines.qwen.device.execution import Staging
from asr.engines.qwen.model.mel import FrontEnd, Stretch
from asr.utterance import BYTES_PER_S, Format

MODEL_HZ = 16000
FIRST_PAGES = 64


@dataclass(frozen=True, slots=True)
class View:
    """The frames of an utterance's first samples."""

    pages: Sequence[int]
    """The page of each chunk. Behind the first `count` frames the last page holds anything."""
    count: int
    settled: int
    """This many of the frames are final. A newer view of the utterance overwrites the others."""
    maximum: float
    """The loudest value in these frames, by which the encoder clamps them."""


class FramePages:
    """Frames on the device, (pages, frames of a chunk, bins), and the pages that are free."""

    def __init__(self, frames: int, bins: int, device: torch.device, staging: Staging) -> None:
        self._staging = staging
        self.frames = torch.zeros(FIRST_PAGES, frames, bins, device=device)
        self._free = list(range(FIRST_PAGES))

    def allocate(self, count: int) -> list[int]:
        """Pages whose contents mean nothing yet. There are more when all are in use."""
        while len(self._free) < count:
            more = len(self.frames)
            self._staging.settle()  # a step that has been launched may still read the old ones
            self.frames = torch.cat([self.frames, torch.zeros_like(self.frames)])
            self._free += range(more, 2 * more)
        return [self._free.pop() for _ in range(count)]

    def release(self, pages: Sequence[int]) -> None:
        self._free += pages


class Sound:
    """The audio of one utterance so far, and the pages of its frames."""

    __slots__ = ("_maxima", "_older", "_pages", "audio", "format", "maximum", "settled")

    def __init__(self, format: Format, audio: bytes = b"") -> None:
        self.format = format
        self.audio = bytearray(audio)
        """All bytes so far, to which the next ones are added."""
        self.settled = 0
        self.maximum = -inf
        """The loudest value in the settled frames."""
        self._maxima: list[float] = []
        """The loudest value in each settled frame."""
        self._pages: list[int] = []
        self._older: list[int] = []
        """Pages of a view of less audio than has been settled."""

    @property
    def samples(self) -> int:
        """The number of samples at 16 kHz."""
        return len(self.audio) * MODEL_HZ // BYTES_PER_S[self.format]

    def close(self, pages: FramePages) -> None:
        pages.release(self._pages + self._older)
        self._pages, self._older = [], []

    def places(self, pages: FramePages, settled: int, count: int) -> tuple[int, list[int]]:
        """The first frame that has to be computed for a view, and the pages of the view."""
        each = pages.frames.shape[1]
        pages.release(self._older)
        self._older = []
        if settled >= self.settled:
            self._pages += pages.allocate(-(-count // each) - len(self._pages))
            return self.settled, self._pages[: -(-count // each)]
        # Its last frames must not overwrite settled ones.
        kept = settled // each
        self._older = pages.allocate(-(-count // each) - kept)
        return kept * each, [*self._pages[:kept], *self._older]

    def settle(self, maxima: Sequence[float], first: int, settled: int) -> float:
        """Note the maxima of a view's frames from `first` on. Returns the maximum of the whole view."""
        edge = max(maxima[settled - first :], default=-inf)
        if settled < self.settled:
            return max(max(self._maxima[:settled], default=-inf), edge)
        new = maxima[: settled - first]
        self._maxima += new
        self.settled = settled
        self.maximum = max(self.maximum, max(new, default=-inf))
        return max(self.maximum, edge)


def compute_views(
    front: FrontEnd, pages: FramePages, staging: Staging, ends: Sequence[tuple[Sound, int]]
) -> list[View]:
    """The frames of each utterance's first samples, up to its end, at 16 kHz.

    The frames that are missing are computed in one pass for all utterances.
    """
    each = pages.frames.shape[1]
    views: list[tuple[int, int, int, list[int]]] = []
    stretches: list[Stretch] = []
    where: list[tuple[int, int]] = []
    """Runs of new frames: the place of the first one in the pages, and their number."""
    for sound, end in ends:
        count, settled = front.frames(end), front.settled(end)
        first, sound_pages = sound.places(pages, settled, count)
        views.append((first, settled, count, sound_pages))
        if first < count:
            stretches.append(Stretch(sound.audio, sound.format, first, count, end))
        while first < count:
            page, at = divmod(first, each)
            length = min(count - first, each - at)
            where.append((sound_pages[page] * each + at, length))
            first += length
    maxima = _compute(front, pages, staging, stretches, where) if stretches else []
    found, done = [], 0
    for (sound, _), (first, settled, count, view_pages) in zip(ends, views, strict=True):
        maximum = sound.settle(maxima[done : done + count - first], first, settled)
        done += count - first
        found.append(View(view_pages, count, settled, maximum))
    return found


def _compute(
    front: FrontEnd, pages: FramePages, staging: Staging, stretches: Sequence[Stretch], where: Sequence[tuple[int, int]]
) -> list[float]:
    """Put the frames of all stretches into the pages and return the maximum of each frame."""
    frames, order = front(stretches)
    start, length = np.array(where).T
    place = np.repeat(start - (length.cumsum() - length), length) + np.arange(len(order))
    into, order_there = staging.down(np.stack([place[order], order]))
    pages.frames.view(-1, front.bins).index_copy_(0, into, frames)
    maxima = torch.empty(len(order), device=frames.device)
    found: list[float] = staging.lift(maxima.index_copy_(0, order_there, frames.amax(dim=1)))()
    return found
