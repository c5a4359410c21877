"""An RTP stream's clock: sequence numbers and timestamps (RFC 3550) → positions of the leg.

A position follows the timestamp while the stream is consistent; otherwise the wall clock decides:

- a packet that does not continue the accepted stream is a stranger: it has another SSRC, a sequence number far away
  (RFC 3550 appendix A.1), or a timestamp that fits neither the sequence number nor, within half a second, the arrival;
- strangers are accepted when two of them fit together and the present stream is overdue. They continue at the position
  of their arrival: so a genuine jump or transfer loses nothing, the inserted silence has its real length, and an
  attacker who guesses numbers cannot inject audio beside a live stream;
- a stream that stays too late for the jitter buffer (its path got longer, or its clock stopped in a hold) is rebased
  after `LATE_S`;
- a sender with a faster or slower clock is moved back while the leg is silent, never within speech.

`audio.fast_path` processes plain packets, the next in sequence with the next timestamp, without this class, and updates
the row of the table itself.
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
"""Audio cannot be sent before it is spoken, so a loss that would lead this far ahead of the wall clock is a jump."""
LATE_S = 0.08
LATE_PACKETS = 5
DRIFT_MASK = 0x3F
"""Drift is checked at every 64th packet, which is every 1.3 s: often enough to find a pause in speech."""
DRIFT = 240
"""The drift that is corrected: 30 ms, half of the jitter buffer."""
DRIFT_STEP = 80
"""The silence that is cut at a time for a fast sender: 10 ms."""
OVERDUE_S = 0.03
"""A stream whose next packet is this late may have ended. Before that no other stream can replace it."""
RUN = 16
"""The number of a stranger's latest packets that are kept while the accepted stream is not overdue."""
STRANGERS = 64
"""The most strangers at once. A further one replaces the one with the fewest packets, so that noise does not keep out a
genuine stream."""
EVENT_S = 60.0
"""The longest time between a key press and a packet of its telephone event, whose timestamp is that of the press."""
_FAR = float("inf")


Payload = bytes | OpusPacket
"""A payload, whose `len` is in positions."""


class PacketArrival(NamedTuple):
    sequence: int
    timestamp: int
    ssrc: int
    payload: Payload
    """The audio; empty for packets without any (comfort noise, events, keep-alives), whose sequence numbers count."""
    now: float


class PlacedPayload(NamedTuple):
    position: int
    payload: Payload
    lost: bool
    """Whether the positions skipped before it were lost; otherwise the sender was silent."""


class RtpClock:
    __slots__ = (
        "_last_packet_s", "_late_packet", "_late_run", "_late_s", "_loss_pending", "_missing", "_runs", "discarded",
        "duplicates", "jumps", "lost", "place", "ssrc_changes",
    )  # fmt: skip

    origin_s = KnownCell("origin_s")
    """The time of position 0; None before it is known."""
    packets = Cell[int]("packets")
    next_sequence = Cell[int]("next_sequence")
    next_timestamp = Cell[int]("next_timestamp")
    next_position = Cell[int]("next_position")
    ssrc = Cell[int]("ssrc")
    jitter = Cell[float]("jitter")
    """The interarrival jitter of RFC 3550 appendix A.8, in timestamp units."""
    transit = KnownCell("transit")
    """The arrival less the position of the latest packet, in positions; None if unknown."""
    min_transit = Cell[float]("min_transit")

    def __init__(self, place: LegRow | None = None) -> None:
        """`place`: the clear row of the leg; by default the clock gets a row of its own."""
        self.place = place or LegRow()
        self.lost = 0
        """The number of sequence numbers that never arrived."""
        self.duplicates = self.discarded = self.ssrc_changes = self.jumps = 0
        self.restart()

    def report(self, clock_rate_hz: int) -> tuple[int, int, int, int] | None:
        """(SSRC, latest sequence number, packets lost, jitter in that RTP clock); None before a stream is accepted."""
        if self.ssrc < 0:
            return None
        return self.ssrc, (self.next_sequence - 1) & 0xFFFF, self.lost, int(self.jitter * (clock_rate_hz // RATE_HZ))

    def restart(self) -> None:
        """Accept any next packet, because a new media description is in force."""
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
        """The position of `now` by the wall clock."""
        return 0 if self.origin_s is None else round((now - self.origin_s) * RATE_HZ)

    def position_of(self, timestamp: int, now: float) -> int:
        """The position of a timestamp of the accepted stream, or of `now` if the two are more than 5 s apart."""
        position = self.next_position + signed(timestamp - self.next_timestamp, 32)
        due = self.arrival_position(now)
        return position if abs(position - due) <= FAR_AHEAD else due

    def receive(self, arrival: PacketArrival, floor: int, still: Callable[[], bool]) -> list[PlacedPayload]:
        """The payloads to store after this arrival, with their positions.

        `floor` is the position up to which audio was consumed. `still` returns whether the leg is silent, so that the
        stream may be moved.
        """
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
        """Whether the timestamp fits the sequence number, or the arrival."""
        step, size = signed(arrival.timestamp - self.next_timestamp, 32), len(arrival.payload)
        off = self.next_position + step - self.arrival_position(arrival.now)
        if not size:  # an event's timestamp is that of its beginning
            return -(EVENT_S * RATE_HZ if abs(ahead) <= MAX_MISORDER else JUMP) <= off <= JUMP
        if ahead < 0:
            return -FAR_AHEAD <= step < 0
        # Audio cannot be sent before it is spoken, so a step far ahead of the wall clock is a jump.
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
        # An overtaken packet fills its own gap and reverts the loss that was counted for it. Only numbers in `_missing`
        # do so: without that list a duplicate, made by a network or repeated on purpose, would look the same and hide
        # the loss of another packet (RFC 3550 appendix A.3 counts duplicates as received).
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
        # RFC 3550 appendix A.1 accepts a source after two packets in sequence. With that alone an attacker who guesses
        # the SSRC could move a live stream, so the present stream must be overdue as well. The packets are kept
        # meanwhile, so that the beginning of a genuine new stream is not lost.
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
            return []  # a duplicate, or out of order
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
        """Whether the next packet of the accepted stream is overdue by OVERDUE_S."""
        assert self.origin_s is not None
        due_s = self.origin_s + (self.next_position + (self.transit or 0.0)) / RATE_HZ
        return now - max(due_s if self.transit is not None else -_FAR, self._last_packet_s) >= OVERDUE_S

    def _rebase(self, arrival: PacketArrival, floor: int) -> None:
        """Accept `arrival` as the next in sequence, at the position of its arrival or after the present audio."""
        # The only anchor between two streams is the wall clock: timestamps begin at random (RFC 3550 section 5.1).
        # Stored or consumed audio never moves, hence the maximum.
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
        """Whether all packets have been late for `LATE_S`; called for each (partly) late packet that was not overtaken.

        A burst after a stall is late only once, and then on time again, so it must not move the timeline.
        """
        if self.packets != self._late_packet + 1:
            self._late_run, self._late_s = 0, now
        self._late_run, self._late_packet = self._late_run + 1, self.packets
        return self._late_run >= LATE_PACKETS and now - self._late_s >= LATE_S

    def _drift(self, still: Callable[[], bool]) -> int:
        """The correction of the stream, by which the fastest packet since the last check would have been on time."""
        # The fastest packet waited least in queues, so its transit reflects the clocks rather than the network.
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
    """The distance from `last` in sequence numbers; None if the two are not of one stream."""
    ahead = signed(arrival.sequence - last.sequence, 16)
    if arrival.ssrc != last.ssrc or not -RUN <= ahead <= RUN:
        return None
    step = signed(arrival.timestamp - last.timestamp, 32)
    if step == ahead * len(last.payload) or (ahead > 0 and not last.payload and 0 <= step <= FAR_AHEAD):
        return ahead
    return ahead if ahead == 1 and 0 <= step <= FAR_AHEAD else None


def signed(value: int, bits: int) -> int:
    """`value` modulo 2**bits as a signed number, which is the shorter distance on a wrapping counter."""
    half = 1 << bits - 1
    return (value + half & (1 << bits) - 1) - half
