"""Which of several inference processes an utterance goes to. No I/O.

A leg stays with its process, and a silent one comes back to it when it has been replaced. It moves, between two
utterances, when its process takes none, or has at least two legs more than another: after a restart the processes are
even again within an utterance of each leg. Files go where the fewest are, one utterance at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.client.send_queue import SendQueue
from asr.utterance import Utterance


class Placement:
    def __init__(self, queues: Sequence[SendQueue]) -> None:
        self._queues = queues
        self._homes: dict[str, SendQueue] = {}

    def choose(self, utterance: Utterance) -> SendQueue | None:
        """The queue for an utterance; None while no process is ready."""
        available = [queue for queue in self._queues if queue.available]
        if not available:
            return None
        if not utterance.live:
            return min(available, key=lambda queue: (queue.files, queue.legs))
        leg = utterance.stream or utterance.id
        home = self._homes.get(leg)
        best = min(available, key=lambda queue: (queue.legs, queue.files))
        if home is not None and home.available and home.legs - best.legs < 2:
            return home
        if home is not None:
            home.legs -= 1
        best.legs += 1
        self._homes[leg] = best
        return best

    def release(self, leg: str) -> None:
        """The leg is over. Does nothing if it is not known."""
        if (home := self._homes.pop(leg, None)) is not None:
            home.legs -= 1
