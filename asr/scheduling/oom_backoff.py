"""What to do when a step needs more memory than there is. Pure.

A step that fails so has answered nobody and changed nothing, so it is done again, smaller: without files; then without
partials, which are shed; then with half of the finals; and only a final that fails alone is given up. After some steps
that went well the next size up is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asr.scheduling.request import Lane, Request

PARTIALS = (Lane.FIRST_PARTIAL, Lane.PARTIAL)
STEPS_BEFORE_GROWTH = 32
"""Steps that must go well before a larger one is tried."""


@dataclass(frozen=True, slots=True)
class Relief:
    """What to do with the requests of a step that failed; those that are not named are tried again."""

    shed: tuple[Request, ...] = ()
    """They get no answer."""
    give_up: Request | None = None
    """It fails: there is nothing smaller to try."""


class OomBackoff:
    """How much the next step may hold."""

    def __init__(self, most: int) -> None:
        """`most`: requests in a step."""
        self.limit = self._most = most
        self.files = True
        """Whether they may have a part in the steps of calls."""
        self.exhausted = 0
        """Steps that have failed."""
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
