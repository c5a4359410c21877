"""Room for audio that several sources share. No I/O."""

from __future__ import annotations

from collections import Counter


class Shares:
    """Bytes of audio, by source: `Utterance.source`, which tells the workers of an engine server apart.

    A source may fill all of the room while it is alone, and an equal share while others have audio there. So nobody
    is refused anything for what another one has sent, and together they have at most twice the room.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[str] = Counter()

    def add(self, source: str, size: int) -> None:
        """`size` may be negative."""
        self.total += size
        self._of[source] += size
        if not self._of[source]:
            del self._of[source]

    def of(self, source: str) -> int:
        """Bytes that the source has there."""
        return self._of[source]

    def clear(self) -> None:
        self.total = 0
        self._of.clear()

    def fills(self, room: float, source: str) -> bool:
        """Whether the room is full, and the source has its share of it."""
        return self.total >= room and self._of[source] * len(self._of) >= room

    def exceeds(self, room: float, source: str) -> bool:
        """Whether there is more than the room holds, and the source has more than its share of it."""
        return self.total > room and self._of[source] * len(self._of) > room
