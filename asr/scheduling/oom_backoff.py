"""Decides which requests are repeated, and which are dropped, after a step has run out of memory. Pure.

Such a step has answered no request and changed no state, so it is repeated in a smaller size: first without files, then
without partials, which are shed, then with half of the finals. Only a final that fails alone is given up. After some
successful steps the next larger size is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asr.scheduling.request import Lane, Request

PARTIALS = (Lane.FIRST_PARTIAL, Lane.PARTIAL)
STEPS_BEFORE_GROWTH = 32
"""The number of successful steps in a row before a larger size is tried."""


@dataclass(frozen=True, slots=True)
class Relief:
    """The decision about the requests of a failed step. Those that are not named here are repeated."""

    shed: tuple[Request, ...] = ()
    """The partials that get no answer."""
    give_up: Request | None = None
    """The request that fails, because it was alone and there is no smaller step to try."""


class OomBackoff:
    """The size that the next step may have."""

    def __init__(self, most: int) -> None:
        """`most`: the most requests in a step, when memory is not short."""
        self.limit = self._most = most
        self.files = True
        """Whether requests of files may share a step with those of calls."""
        self.exhausted = 0
        """The number of steps that have failed."""
        self._well = 0

    def on_exhausted(self, requests: Sequence[Request]) -> Relief:
        """A step with these requests needed more memory than there was."""
        self.exhausted += 1
        self._well = 0
        files = [request for request in requests if request.lane is Lane.BATCH]
        partials = tuple(request for request in requests if request.lane in PARTIALS)
        if files and len(files) < len(requests):
            self.files = False
            return Relief()
        if partials and len(partials) < len(requests):
            return Relief(shed=partials)
        if len(requests) > 1:
            self.limit = max(1, len(requests) // 2)
            return Relief(shed=partials[self.limit :])
        (only,) = requests
        return Relief(shed=(only,)) if only.lane in PARTIALS else Relief(give_up=only)

    def on_success(self) -> None:
        self._well += 1
        if self._well >= STEPS_BEFORE_GROWTH and not (self.files and self.limit == self._most):
            self._well = 0
            if self.limit < self._most:
                self.limit = min(self._most, 2 * self.limit)
            else:
                self.files = True
