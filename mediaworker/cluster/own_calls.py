"""This worker's own calls as its subscribers see them: at once, before the stream has their events. No I/O.

Another worker may have ended a call, because this one was suspended or cut off (`leases`). A subscriber here must see
one consistent end. If the other worker's end continues what was shown here, subscribers get that end. If more had been
shown here than the other worker knew, they get an end of their own after it. In both cases nothing else follows.
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
"""The number of ended calls that are remembered, the latest ones."""
T = TypeVar("T")


class OwnCalls:
    def __init__(self) -> None:
        self._open: dict[str, CallRecord] = {}
        """Open calls as they were after the last event shown here."""
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Call → the `seq` of this worker's own end of it, if that was shown here."""
        self._ended_by_others: OrderedDict[str, bool] = OrderedDict()
        """Calls that another worker has ended → whether its end continues what was shown here."""

    def ended_elsewhere(self, call_id: str | None) -> bool:
        """Whether another worker has ended the call, although it may go on here."""
        return call_id in self._ended_by_others

    def shows(self, entry: Entry) -> bool:
        """Whether to show this worker's own event of a call."""
        if entry.call_id in self._ended_by_others:
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
        if call_id not in self._ended_by_others:
            record = self._open.get(call_id)
            shown = record.seq if record is not None else self._ended.get(call_id, 0)
            _keep(self._ended_by_others, call_id, shown < entry.seq)
        return self._ended_by_others[call_id]

    def close(self, call_id: str) -> CallRecord | None:
        """The call, once the other worker's end has arrived, if subscribers here need a separate end; else None."""
        record = self._open.pop(call_id, None)
        return None if self._ended_by_others.get(call_id) else record


def lost(
    record: CallRecord,
    history: Iterable[Event],
    cursor: Callable[[int], Cursor],
    said: Mapping[str, TranscriptPartial] = {},  # noqa: B006 - read only
) -> Iterator[Event]:
    """The events that end the call of a lost worker.

    `cursor` returns the cursor of the first event, the second, and so on. The other arguments are those of `closing`.
    """
    # The record covers stored events only, and partials are not stored.
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
