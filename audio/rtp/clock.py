"""An RTP stream's clock: sequence numbers and timestamps (RFC 3550) → positions of the leg.

A position follows the timestamp as long as the stream makes sense; where it does not, the wall clock decides:

- a packet that does not go on from what is there is a stranger: another SSRC, a sequence number far away (RFC 3550
  appendix A.1), or a timestamp that fits neither the sequence number nor, within half a second, the arrival;
- strangers are believed when two of them fit together and the stream of now is overdue, and go on from the position of
  their arrival: nothing of a genuine jump or transfer is lost, the silence filled in is as long as it really was, and
  whoever guesses numbers beside a stream that is alive is not heard;
- a stream that stays too late for the reorder wait (its path got longer, or it stopped its clock in a hold) is rebased
  after `LATE_S`;
- a sender whose clock is faster or slower is moved back in place when the leg is silent, never within speech.

`audio.fast_path` takes plain packets, the next in sequence with the next timestamp, past this class and updates
its row of the table itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from audio.codecs.opus import OpusPacket
from audio.leg_table import Cell, KnownCell, LegRow

RATE_HZ = 8000
MAX_DROPOUT = 3000
"""RFC 3550 appendix A.1: a sequence number further ahead than this is another stream."""
MAX_MISORDER = 100
JUMP = RATE_HZ // 2
FAR_AHEAD = 5 * RATE_HZ
"""Nobody sends audio before it is spoken: loss that would lead this far ahead of the wall clock is a jump, too."""
LATE_S = 0.08
LATE_PACKETS = 5
DRIFT_MASK = 0x3F
"""Drift is looked after at every 64th packet, which is 1.3 s: often enough to meet a pause in speech."""
DRIFT = 240
"""30 ms, half the reorder wait."""
DRIFT_STEP = 80
"""10 ms: how much is cut from silence at a time when the sender is fast."""
OVERDUE_S = 0.03
"""A stream whose next packet is this late may have ended; while it goes on, nobody takes its place."""
RUN = 16
"""A stranger's last 16 packets are kept while the stream of now is not overdue yet."""
STRANGERS = 64
"""At most 64 strangers at once; then the one with the fewest packets makes room, so that noise does not keep out a
stream."""
EVENT_S = 60.0
"""A telephone event says when its key went down: so long ago at most."""
_FAR = float("inf")


Payload = bytes | OpusPacket
"""A payload has a length in positions."""


class PacketArrival(NamedTuple):
    sequence: int
    timestamp: int
    ssrc: int
    payload: Payload
    """Empty: nothing to place (comfort noise, events, keep-alives), but the sequence number counts."""
    now: float


class PlacedPayload(NamedTuple):
    position: int
    payload: Payload
    lost: bool
    """The positions skipped before it were lost on the way; otherwise the sender was silent."""


class RtpClock:
    __slots__ = (
        "_last_packet_s", "_late_packet", "_late_run", "_late_s", "_loss_pending", "_missing", "_runs", "discarded",
        "duplicates", "jumps", "lost", "place", "ssrc_changes",
    )  # fmt: skip

    origin_s = KnownCell("origin_s")
    """When position 0 is; None: not yet."""
    packets = Cell[int]("packets")
    next_sequence = Cell[int]("next_sequence")
    next_timestamp = Cell[int]("next_timestamp")
    next_position = Cell[int]("next_position")
    ssrc = Cell[int]("ssrc")
    jitter = Cell[float]("jitter")
    """RFC 3550 appendix A.8, in timestamp units."""
    transit = KnownCell("transit")
    """Arrival less position of the latest packet, in positions."""
    min_transit = Cell[float]("min_transit")

    def __init__(self, place: LegRow | None = None) -> None:
        """Starts over in this row, which is clear; by default in one of its own."""
        self.place = place or LegRow()
        self.lost = 0
        """Sequence numbers that never came."""
        self.duplicates = self.discarded = self.ssrc_changes = self.jumps = 0
        self.restart()

    def report(self, clock_rate_hz: int) -> tuple[int, int, int, int] | None:
        """SSRC, latest sequence number, packets lost, jitter in that RTP clock; None before a stream is believed."""
        if self.ssrc < 0:
            return None
        return self.ssrc, (self.next_sequence - 1) & 0xFFFF, self.lost, int(self.jitter * (clock_rate_hz // RATE_HZ))

    def restart(self) -> None:
        """Believe the next packet, whatever it says: a new media description is in force."""
        self.ssrc = -1
        self.next_sequence = self.next_timestamp = -1
        self._runs: list[deque[PacketArrival]] = []
        self._last_packet_s = -_FAR
        self._missing: set[int] = set()
        self._loss_pending = False
        self._late_packet, self._late_run, self._late_s = -1, 0, 0.0
        self.transit = None
        self.min_transit = _FAR

    def arrival_position(self, now: float) -> int:
        """The position that `now` is on the wall clock."""
        return 0 if self.origin_s is None else round((now - self.origin_s) * RATE_HZ)

    def position_of(self, timestamp: int, now: float) -> int:
        """The position of a timestamp of the believed stream, or of `now` when the two are more than 5 s apart."""
        position = self.next_position + signed(timestamp - self.next_timestamp, 32)
        due = self.arrival_position(now)
        return position if abs(position - due) <= FAR_AHEAD else due

    def receive(self, arrival: PacketArrival, floor: int, still: Callable[[], bool]) -> list[PlacedPayload]:
        """Where to put what has come. `floor`: consumed so far; `still`: is the leg silent, so that it may be moved?"""
        if self.origin_s is None:
            self.origin_s = arrival.now
        if self.ssrc < 0:
            self._rebase(arrival, floor)
        ahead = signed(arrival.sequence - self.next_sequence, 16)
        if arrival.ssrc != self.ssrc or not -MAX_MISORDER <= ahead <= MAX_DROPOUT or not self._fits(arrival, ahead):
            return self._probation(arrival, floor, still)
        if ahead < 0:
            return self._behind(arrival)
        return self._forward(arrival, ahead, floor, still)

    def _fits(self, arrival: PacketArrival, ahead: int) -> bool:
        """The timestamp tells the same story as the sequence number, or as the arrival."""
        step, size = signed(arrival.timestamp - self.next_timestamp, 32), len(arrival.payload)
        off = self.next_position + step - self.arrival_position(arrival.now)
        if not size:  # an event's timestamp is that of its beginning
            return -(EVENT_S * RATE_HZ if abs(ahead) <= MAX_MISORDER else JUMP) <= off <= JUMP
        if ahead < 0:
            return -FAR_AHEAD <= step < 0
        # Nobody sends audio before it is spoken: what leads far ahead of the wall clock is a jump, too.
        if step == ahead * size:
            return off <= FAR_AHEAD
        return step >= 0 and abs(off) <= JUMP and not any(_follows(run[-1], arrival) for run in self._runs)

    def _forward(
        self, arrival: PacketArrival, ahead: int, floor: int, still: Callable[[], bool]
    ) -> list[PlacedPayload]:
        self.packets += 1
        self._skip_sequences(ahead)
        lost = ahead > 0 or self._loss_pending
        self._loss_pending = lost
        self._last_packet_s = arrival.now
        self.next_sequence = arrival.sequence + 1 & 0xFFFF
        size = len(arrival.payload)
        if not size:
            return []
        position = self.next_position + signed(arrival.timestamp - self.next_timestamp, 32)
        if position < floor and self._stays_late(arrival.now):
            position = max(self.arrival_position(arrival.now), self.next_position, floor)
            self._moved()
            self.jumps += 1
        elif not arrival.sequence & DRIFT_MASK:
            position += 0 if lost else self._drift(still)
        self._measure(arrival.now, position)
        self._loss_pending = False
        self.next_timestamp = arrival.timestamp + size & 0xFFFFFFFF
        self.next_position = position + size
        return [PlacedPayload(position, arrival.payload, lost)]

    def _behind(self, arrival: PacketArrival) -> list[PlacedPayload]:
        # A packet that was overtaken fills its own gap and takes back the loss that was counted for it. Only numbers in
        # `_missing` do so: without that list a copy, which networks make and senders repeat on purpose, would look the
        # same and make the loss of another packet disappear (RFC 3550 appendix A.3 counts copies as received).
        if arrival.sequence not in self._missing:
            self.duplicates += 1
            return []
        self._missing.discard(arrival.sequence)
        self.packets += 1
        self.lost -= 1
        self._last_packet_s = arrival.now
        if not arrival.payload:
            return []
        step = signed(arrival.timestamp - self.next_timestamp, 32)
        return [PlacedPayload(self.next_position + step, arrival.payload, True)]

    def _probation(self, arrival: PacketArrival, floor: int, still: Callable[[], bool]) -> list[PlacedPayload]:
        # RFC 3550 appendix A.1 restarts at two packets in sequence from a source. That alone would let anybody who
        # guesses the SSRC move a live stream, so here the stream of now must be overdue as well. The packets are kept
        # meanwhile, so that the beginning of a genuine new stream is heard.
        self.discarded += 1
        for run in self._runs:
            ahead = _follows(run[-1], arrival)
            if ahead is not None:
                break
        else:
            if len(self._runs) >= STRANGERS:
                self._runs.remove(min(self._runs, key=len))
            self._runs.append(deque([arrival], RUN))
            return []
        if ahead <= 0:
            return []  # once more, or out of order
        run.append(arrival)
        if not self._overdue(arrival.now):
            return []
        self._runs = []
        self.discarded -= len(run)
        first = run[0]
        if first.ssrc == self.ssrc:
            self.jumps += 1
            ahead = signed(first.sequence - self.next_sequence, 16)
            self.lost += ahead if 0 < ahead <= MAX_DROPOUT else 0
        else:
            self.ssrc_changes += 1
        self._rebase(first, floor)
        placed: list[PlacedPayload] = []
        for each in run:
            placed += self._forward(each, signed(each.sequence - self.next_sequence, 16), floor, still)
        return placed

    def _overdue(self, now: float) -> bool:
        """The next packet of the believed stream should have come a while ago."""
        assert self.origin_s is not None
        due_s = self.origin_s + (self.next_position + (self.transit or 0.0)) / RATE_HZ
        return now - max(due_s if self.transit is not None else -_FAR, self._last_packet_s) >= OVERDUE_S

    def _rebase(self, arrival: PacketArrival, floor: int) -> None:
        """Take `arrival` as the next in sequence, at the position of its arrival or after what is there."""
        # The only anchor between two streams is the wall clock: timestamps begin at random (RFC 3550 section 5.1). What
        # has been placed or consumed never moves, hence the maximum.
        self.ssrc = arrival.ssrc
        self.next_sequence, self.next_timestamp = arrival.sequence, arrival.timestamp
        self.next_position = max(self.arrival_position(arrival.now), self.next_position, floor)
        self._loss_pending = False
        self._moved()

    def _moved(self) -> None:
        self._missing.clear()
        self._late_packet = -1
        self.transit, self.min_transit = None, _FAR

    def _skip_sequences(self, ahead: int) -> None:
        self.lost += ahead
        for back in range(min(ahead, MAX_MISORDER)):
            self._missing.add(self.next_sequence + ahead - 1 - back & 0xFFFF)
        if len(self._missing) > 4 * MAX_MISORDER:
            newest = self.next_sequence + ahead
            self._missing = {s for s in self._missing if signed(newest - s, 16) <= MAX_MISORDER}

    def _stays_late(self, now: float) -> bool:
        """Called for a packet that is (partly) too late although nothing overtook it: are all, for `LATE_S` by now?

        A burst after a stall is late all at once, and then on time again; it must not move the timeline.
        """
        if self.packets != self._late_packet + 1:
            self._late_run, self._late_s = 0, now
        self._late_run, self._late_packet = self._late_run + 1, self.packets
        return self._late_run >= LATE_PACKETS and now - self._late_s >= LATE_S

    def _drift(self, still: Callable[[], bool]) -> int:
        """How far to move the stream: to where the fastest packets since the last look would have been on time."""
        # The fastest packet has waited least in queues, so its transit shows the clocks and not the network.
        transit, self.min_transit = self.min_transit, _FAR
        if not DRIFT < abs(transit) < _FAR or not still():
            return 0
        self.transit = None
        return round(transit) if transit > 0 else -DRIFT_STEP

    def _measure(self, now: float, position: int) -> None:
        assert self.origin_s is not None
        transit = (now - self.origin_s) * RATE_HZ - position
        if self.transit is not None:  # RFC 3550 section 6.4.1
            self.jitter += (abs(transit - self.transit) - self.jitter) / 16
        self.transit = transit
        self.min_transit = min(self.min_transit, transit)


def _follows(last: PacketArrival, arrival: PacketArrival) -> int | None:
    """How many sequence numbers after `last`; None: the two are not of one stream."""
    ahead = signed(arrival.sequence - last.sequence, 16)
    if arrival.ssrc != last.ssrc or not -RUN <= ahead <= RUN:
        return None
    step = signed(arrival.timestamp - last.timestamp, 32)
    if step == ahead * len(last.payload) or (ahead > 0 and not last.payload and 0 <= step <= FAR_AHEAD):
        return ahead
    return ahead if ahead == 1 and 0 <= step <= FAR_AHEAD else None


def signed(value: int, bits: int) -> int:
    """`value` modulo 2**bits as a signed number: the shorter way round a wrapping counter."""
    half = 1 << bits - 1
    return (value + half & (1 << bits) - 1) - half
