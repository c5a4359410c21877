"""Replays one call of an RTP capture: a list of timed actions on the worker's call."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from operator import itemgetter

from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.media_loop import TICK_S
from mediaworker.replay.datagrams import Datagram
from mediaworker.replay.source import Packets
from mediaworker.replay.streams import CapturedStream, Description
from sip.media.latching import SourceLatch

Action = Callable[[float], None]
"""A step of a replay; its argument is the time at which it happens."""


class RtpCall:
    """The actions of one call, whose legs begin and end together. `open_call` is `CallRegistry.open`; `opened` is
    called for each leg."""

    def __init__(
        self,
        name: str,
        streams: list[int],
        source: Packets,
        open_call: Callable[..., Call],
        opened: Callable[[Call, str, SourceLatch], None],
    ) -> None:
        self._name, self._source, self._open_call, self._opened = name, source, open_call, opened
        names = ["main"] if len(streams) == 1 else [str(number) for number in range(len(streams))]
        self._legs = dict(zip(names, streams, strict=True))
        self._latches = {leg: SourceLatch() for leg in names}
        self._call: Call

    def actions(self) -> Iterator[tuple[float, Action]]:
        """Yield (time, action) in order; times are seconds since the beginning of the source."""
        begin_s = self._source.begin_s
        first_s = min(self._stream(leg).packets[0].at_s for leg in self._legs) - begin_s
        yield first_s, self._open
        feeds = [feed for leg in self._legs for feed in (self._arrivals(leg), self._descriptions(leg))]
        latest_s = first_s
        for at_s, act in heapq.merge(*feeds, key=itemgetter(0)):
            latest_s = max(latest_s, at_s - begin_s)
            yield latest_s, act
        yield latest_s + TICK_S, lambda now: self._call.end("hangup")

    def _stream(self, leg: str) -> CapturedStream:
        return self._source.streams[self._legs[leg]]

    def _arrivals(self, leg: str) -> Iterator[tuple[float, Action]]:
        for at_s, datagram, _ in self._source.arrivals[self._legs[leg]]:
            yield at_s, lambda now, datagram=datagram: self._deliver(leg, datagram, now)  # type: ignore[misc]

    def _descriptions(self, leg: str) -> Iterator[tuple[float, Action]]:
        for description in self._stream(leg).descriptions[1:]:
            yield description.at_s, lambda now, new=description: self._describe(leg, new)  # type: ignore[misc]

    def _open(self, now: float) -> None:
        specs = []
        for leg in self._legs:
            first = self._stream(leg).descriptions[0]
            specs.append(
                LegSpec(leg, first.codec, telephone_event=first.telephone_event, payload_type=first.payload_type)
            )
        self._call = self._open_call(source="sip", legs=specs, external_id=self._name)
        for leg, latch in self._latches.items():
            latch.expect(self._stream(leg).source, now)
            self._opened(self._call, leg, latch)

    def _deliver(self, leg: str, datagram: Datagram, now: float) -> None:
        if datagram.payload[1:2] and 192 <= datagram.payload[1] <= 223:
            return  # RTCP on the same port (RFC 5761), which the worker's socket separates from RTP
        for accepted, came_s in self._latches[leg].accept(datagram.payload, datagram.source, now):
            self._call.members[leg].audio.receive_rtp(accepted, came_s)

    def _describe(self, leg: str, said: Description) -> None:
        self._call.media_changed(leg, said.codec, said.telephone_event, said.payload_type)
