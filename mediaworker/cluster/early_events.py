"""This worker's own events that were shown before the stream had them, for those who subscribe meanwhile. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from mediaworker.events.subscription import Entry

ROOM = 20_000


class EarlyEvents:
    def __init__(self) -> None:
        self.lost = False
        """Some have gone for want of room since the stream had all."""
        self._entries: dict[int, Entry] = {}
        """By their rows in this worker's own store."""
        self._late: set[int] = set()
        """Rows of those that the stream had before they were shown."""

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return iter(self._entries.items())

    def put(self, row: int, entry: Entry) -> None:
        """It is shown."""
        if row in self._late:
            return
        self._entries[row] = entry
        if len(self._entries) > ROOM:
            self._entries.pop(next(iter(self._entries)))
            self.lost = True

    def stored(self, row: int, *, waiting: bool) -> None:
        """It has come from the stream. `waiting`: own events wait just now (`own_events`), perhaps this one too."""
        if not waiting:
            self._late.clear()
        if self._entries.pop(row, None) is None and waiting:
            self._late.add(row)
        if not self._entries:
            self.lost = False

    def forget(self, call_id: str) -> None:
        """Another worker has ended the call: what was shown of it here, nobody is told any more."""
        self._entries = {row: entry for row, entry in self._entries.items() if entry.call_id != call_id}
