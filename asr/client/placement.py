"""Which of several engine servers an utterance goes to. No I/O.

A leg stays with its server, and a silent one comes back to it when it has been replaced. It moves, between two
utterances, when its server takes none, or when another has clearly fewer legs or lets requests wait for less long.
Files go where the fewest are, one utterance at a time.

Of a server that has more legs than the mean, only that share moves, so a new server fills within some utterances of
each leg. Were all to move that begin to speak, those would be the ones that speak just now: the new server would have
its share of the legs and twice its share of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.client.send_queue import SendQueue
from asr.utterance import Utterance

EVEN = 4
"""Legs move if a server has two more than another, and a quarter more: several workers who all see the same difference
must not all move theirs back and forth."""


class Placement:
    def __init__(self, queues: Sequence[SendQueue]) -> None:
        """`queues` may change later."""
        self._queues = queues
        self._homes: dict[str, SendQueue] = {}
        self._owed = 0.0
        """Legs that should have moved and have not: whole ones move."""

    def choose(self, utterance: Utterance) -> SendQueue | None:
        """The queue for an utterance; None while no server is ready for it."""
        available = [queue for queue in self._queues if queue.available and queue.speaks(utterance.language)]
        if not available:
            return None
        if not utterance.live:
            return min(available, key=lambda queue: (queue.slow, queue.all_files, queue.all_legs))
        leg = utterance.stream or utterance.id
        home = self._homes.get(leg)
        best = min(available, key=lambda queue: (queue.slow, queue.all_legs, queue.all_files))
        if home is not None and home in available and not self._moves(home, best, available):
            return home
        if home is not None:
            home.leave(leg)
        best.join(leg)
        self._homes[leg] = best
        return best

    def release(self, leg: str) -> None:
        """The leg is over. Does nothing if it is not known."""
        if (home := self._homes.pop(leg, None)) is not None:
            home.leave(leg)

    def forget(self, queue: SendQueue) -> None:
        """There is no such server any more: its legs have no place."""
        self._homes = {leg: home for leg, home in self._homes.items() if home is not queue}

    def _moves(self, home: SendQueue, best: SendQueue, available: Sequence[SendQueue]) -> bool:
        """Whether a leg that begins to speak leaves its server for the best one."""
        if best.slow + 1 < home.slow:
            return True
        if home.all_legs - best.all_legs < max(2, home.all_legs / EVEN):
            return False
        mean = sum(queue.all_legs for queue in available) / len(available)
        self._owed += max(0.0, 1.0 - mean / home.all_legs)
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return True
