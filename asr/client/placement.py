"""Decides which of several engine servers an utterance goes to. No I/O.

A leg stays with its server. It moves between two utterances if its server accepts none, or if another server has
clearly fewer legs or much shorter delays. A leg that is silent while its server is replaced comes back to it. Each
utterance of a file goes to the server with the fewest files.

When a server has too many legs, only its surplus over the mean moves, so a new server fills over several utterances of
each leg. If every leg that begins to speak moved, the new server would fill with the legs that speak at that moment. It
would then have its share of the legs, but twice its share of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.client.send_queue import SendQueue
from asr.utterance import Utterance

EVEN = 4
"""Legs move only if a server has at least two more than another, and a quarter (1/`EVEN`) more. Several workers see the
same difference at the same time; without this margin they would all move their legs back and forth."""


class Placement:
    """The server at which each leg is placed."""

    def __init__(self, queues: Sequence[SendQueue]) -> None:
        """`queues`: the send queues of all servers; the owner may change the list later."""
        self._queues = queues
        self._homes: dict[str, SendQueue] = {}
        self._owed = 0.0
        """The number of legs that should have moved but have not. It grows by fractions; a leg moves when it reaches
        1."""

    def choose(self, utterance: Utterance) -> SendQueue | None:
        """Return the queue for an utterance; None while no server accepts it."""
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
        """The leg is over. It does nothing if the leg has no place."""
        if (home := self._homes.pop(leg, None)) is not None:
            home.leave(leg)

    def forget(self, queue: SendQueue) -> None:
        """The server has been removed: its legs have no place any more."""
        self._homes = {leg: home for leg, home in self._homes.items() if home is not queue}

    def _moves(self, home: SendQueue, best: SendQueue, available: Sequence[SendQueue]) -> bool:
        """Whether a leg that begins to speak moves from its server to the best one."""
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
