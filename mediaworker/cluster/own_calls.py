"""This worker's own calls, as its subscribers know them: at once, before the stream has their events. No I/O.

Another worker may have ended a call, because this one stood still or was cut off (`leases`). A subscriber here hears
one story of a call: the end that the other worker has written, or, if it has heard more than that one knew, an end
behind what it has heard; and nothing else in either case.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from mediaworker.events import call_record as calls
from mediaworker.events.frame import timestamp
from mediaworker.events.schema import CallRecord, Event, TranscriptPartial
from mediaworker.events.subscription import Cursor, Entry

KNOWN = 10_000
"""Calls that have ended, the latest."""
T = TypeVar("T")


class OwnCalls:
    def __init__(self) -> None:
        self._open: dict[str, CallRecord] = {}
        """After the last event that was shown here."""
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Call → the `seq` of its own end, as it was shown here."""
        self._taken: OrderedDict[str, bool] = OrderedDict()
        """Calls that another worker has ended → whether its end goes on from what was shown here."""

    def ended_elsewhere(self, call_id: str | None) -> bool:
        """Whether another worker has ended the call, which may go on here."""
        return call_id in self._taken

    def shows(self, entry: Entry) -> bool:
        """Whether to show what this worker has heard of a call."""
        if entry.call_id in self._taken:
            return False
        if (record := entry.record) is not None:
            if record.state == "ended":
                self._open.pop(record.call_id, None)
                _keep(self._ended, record.call_id, record.seq)
            else:
                self._open[record.call_id] = record
        return True

    def shows_end(self, entry: Entry) -> bool:
        """Whether to show an event by which another worker ends the call."""
        call_id = entry.call_id or ""
        if call_id not in self._taken:
            record = self._open.get(call_id)
            shown = record.seq if record is not None else self._ended.get(call_id, 0)
            _keep(self._taken, call_id, shown < entry.seq)
        return self._taken[call_id]

    def close(self, call_id: str) -> CallRecord | None:
        """The other worker's end is there. The call, if it is one that owes its subscribers an end of their own."""
        record = self._open.pop(call_id, None)
        return None if self._taken.get(call_id) else record


def lost(
    record: CallRecord,
    history: Iterable[Event],
    cursor: Callable[[int], Cursor],
    said: Mapping[str, TranscriptPartial] = {},  # noqa: B006 - read only
) -> Iterator[Event]:
    """How a call ends whose worker is gone. `cursor`: of the first event, the second, …; the others as in `closing`."""
    # Partials are not in the record, which is of what was stored.
    heard = [said[speech.utterance_id].end_ms for speech in record.speaking if speech.utterance_id in said]
    record = replace(record, at_ms=max([record.at_ms, *heard]))
    bodies = calls.closing(record, history, reason="worker_lost", error="the worker was lost", partials=said)
    for number, body in enumerate(bodies, start=1):
        seq, now = record.seq + number, timestamp(time.time())
        yield Event(str(cursor(number)), record.call_id, seq, record.at_ms, now, body)


def _keep(calls: OrderedDict[str, T], call_id: str, value: T) -> None:
    calls[call_id] = value
    if len(calls) > KNOWN:
        calls.popitem(last=False)
