"""This worker's own calls, as its subscribers know them: at once, before the stream has their events. No I/O.

Another worker may have ended a call, because this one stood still or was cut off (`leases`). A subscriber here hears
one story of a call: the end that the other worker has written, and nothing else, or, if it has heard more than that
already, the call's own story to its own end.
"""

from __future__ import annotations

from collections import OrderedDict

from mediaworker.events.subscription import Entry

KNOWN = 10_000
"""Calls, the most recently heard of."""


class OwnCalls:
    def __init__(self) -> None:
        self._shown: OrderedDict[str, int] = OrderedDict()
        """Call → the `seq` of its last event that was shown here."""
        self._taken: dict[str, bool] = {}
        """Live calls that another worker has ended → whether subscribers here know that end."""

    def ended_elsewhere(self, call_id: str | None) -> bool:
        """Whether the call goes on here while everybody knows that it has ended."""
        return self._taken.get(call_id or "", False)

    def shows(self, entry: Entry) -> bool:
        """Whether to show what this worker has heard of a call."""
        call_id = entry.call_id or ""
        known = self._taken.get(call_id, False)
        if entry.type == "call.ended":
            self._taken.pop(call_id, None)
        if call_id and entry.row is not None and not known:
            self._shown[call_id] = entry.seq
            self._shown.move_to_end(call_id)
            if len(self._shown) > KNOWN:
                self._shown.popitem(last=False)
        return not known

    def shows_end(self, entry: Entry, *, live: bool) -> bool:
        """Whether to show an event by which another worker ends the call. `live`: it goes on here."""
        call_id = entry.call_id or ""
        known = self._taken.get(call_id)
        if known is None:
            known = self._shown.get(call_id, 0) < entry.seq
            if live:
                self._taken[call_id] = known
            elif known:
                self._shown[call_id] = entry.seq
        return known
