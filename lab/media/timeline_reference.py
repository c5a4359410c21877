"""What a leg's timeline has to be, written as plainly as possible: an array with one entry for each position.

It is told the truth about each packet, whose numbers do not wrap, and follows the rules of `audio.rtp.clock` by the
letter. Nothing of the leg's own code is used; only whether the VAD hears speech just now is asked from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audio import RtpPacket
from audio.codecs.g711 import ulaw_decode

UNKNOWN, RECEIVED, AWAITED, SILENT, LOST = range(5)
WINDOW = 256
JITTER_S = 0.060


@dataclass(frozen=True)
class Sent:
    """A packet as its sender means it."""

    ssrc: int
    number: int
    time: int
    payload: bytes
    payload_type: int = 0

    @property
    def heard(self) -> bytes:
        return self.payload if self.payload_type == 0 else b""

    def __bytes__(self) -> bytes:
        number, time = self.number & 0xFFFF, self.time & 0xFFFFFFFF
        return bytes(RtpPacket(self.payload_type, number, time, self.ssrc, self.payload))


class Reference:
    def __init__(self, length: int, idle: Callable[[], bool]) -> None:
        self.kind, self.code = bytearray(length), bytearray(b"\xff") * length
        self.idle = idle
        self.origin: float | None = None
        self.consumed = self.end = 0
        self.packets = self.lost_packets = self.duplicates = self.late = 0
        self.jumps = self.ssrc_changes = self.discarded = 0
        self.next_number = self.next_time = self.offset = 0
        self.ssrc = -1
        self.missing: set[int] = set()
        self.runs: list[list[tuple[Sent, float]]] = []
        self.loss_pending = False
        self.heard_at = self.expected_at = float("-inf")
        self.late_run, self.late_since, self.late_packet = 0, 0.0, -1
        self.earliest = float("inf")

    # -- consumption ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        if self.origin is None:
            return
        reach = max(self.complete(), (now - self.origin - JITTER_S) * 8000)  # what a tick completes waits for the next
        while (stop := self.consumed + WINDOW) <= reach + 0.5:
            if stop > self.complete() and now < self.origin + JITTER_S + stop * 0.000125:
                break
            for position in range(self.consumed, self.consumed + WINDOW):
                if self.kind[position] == AWAITED:
                    self.kind[position] = LOST
            self.consumed += WINDOW

    def complete(self) -> int:
        awaited = self.kind.find(AWAITED, self.consumed, self.end)
        return self.end if awaited < 0 else awaited

    def lost(self, start: int, stop: int) -> int:
        """With what is awaited no more; nobody knows what comes after the last packet."""
        return self.kind.count(LOST, start, min(stop, self.end))

    # -- arrival --------------------------------------------------------------------------------------------------

    def arrive(self, sent: Sent, now: float) -> None:
        if sent.payload_type not in (0, 13, 101) and sent.ssrc != self.ssrc:
            return
        if self.origin is None:
            self.origin = now
            self.follow(sent, now)
        ahead = sent.number - self.next_number
        if sent.ssrc != self.ssrc or not -100 <= ahead <= 3000 or not self.fits(sent, ahead, now):
            self.stranger(sent, now)
        elif ahead < 0:
            self.overtaken(sent, now)
        else:
            self.forward(sent, now)

    def due(self, now: float) -> int:
        assert self.origin is not None
        return round((now - self.origin) * 8000)

    def fits(self, sent: Sent, ahead: int, now: float) -> bool:
        off = sent.time + self.offset - self.due(now)
        step, size = sent.time - self.next_time, len(sent.heard)
        if not size:
            return (-480_000 if abs(ahead) <= 100 else -4000) <= off <= 4000
        if ahead < 0:
            return -40_000 <= step < 0
        if step == ahead * size:
            return off <= 40_000
        goes_on = any(follows(run[-1][0], sent) not in (None, 0) for run in self.runs)
        return step >= 0 and abs(off) <= 4000 and not goes_on

    def forward(self, sent: Sent, now: float) -> None:
        ahead, size = sent.number - self.next_number, len(sent.heard)
        self.packets += 1
        self.lost_packets += ahead
        self.missing |= set(range(sent.number - min(ahead, 100), sent.number))
        if len(self.missing) > 400:
            self.missing = {number for number in self.missing if number >= sent.number - 100}
        lost = ahead > 0 or self.loss_pending
        self.loss_pending = lost
        self.heard_at = now
        self.next_number = sent.number + 1
        if not size:
            return
        position = sent.time + self.offset
        if position < self.consumed and self.stays_late(now):
            position = max(self.due(now), self.next_time + self.offset, self.consumed)
            self.moved()
            self.jumps += 1
        elif sent.number % 64 == 0 and not lost:
            early, self.earliest = self.earliest, float("inf")
            if 240 < abs(early) < float("inf") and self.still(sent):
                position += round(early) if early > 0 else -80
        assert self.origin is not None
        transit = (now - self.origin) * 8000 - position
        self.earliest = min(self.earliest, transit)
        self.loss_pending = False
        self.offset = position - sent.time
        self.next_time = sent.time + size
        self.expected_at = now + size / 8000
        self.place(position, sent.heard, lost)

    def overtaken(self, sent: Sent, now: float) -> None:
        if sent.number not in self.missing:
            self.duplicates += 1
            return
        self.missing.discard(sent.number)
        self.packets += 1
        self.lost_packets -= 1
        self.heard_at = now
        if sent.heard:
            self.place(sent.time + self.offset, sent.heard, True)

    def stranger(self, sent: Sent, now: float) -> None:
        self.discarded += 1
        mine = [run for run in self.runs if follows(run[-1][0], sent) is not None]
        if not mine:
            if len(self.runs) == 64:
                shortest = min(len(run) for run in self.runs)
                self.runs.remove(next(run for run in self.runs if len(run) == shortest))
            self.runs.append([(sent, now)])
            return
        ahead = follows(mine[0][-1][0], sent)
        if ahead is None or ahead <= 0:
            return
        mine[0].append((sent, now))
        if now - max(self.heard_at, self.expected_at) < 0.03:
            return
        believed = mine[0][-16:]
        first, arrived = believed[0]
        if first.ssrc == self.ssrc:
            self.jumps += 1
            self.lost_packets += first.number - self.next_number if 0 < first.number - self.next_number <= 3000 else 0
        else:
            self.ssrc_changes += 1
        self.discarded -= len(believed)
        self.runs = []
        self.follow(first, arrived)
        for each, then in believed:
            self.forward(each, then)

    def follow(self, sent: Sent, now: float) -> None:
        """`sent` is next, at the position of its arrival or after what is there."""
        position = max(self.due(now), self.next_time + self.offset, self.consumed)
        self.ssrc, self.next_number, self.next_time = sent.ssrc, sent.number, sent.time
        self.offset = position - sent.time
        self.loss_pending = False
        self.moved()

    def moved(self) -> None:
        self.missing = set()
        self.late_packet = -1
        self.earliest = float("inf")
        self.expected_at = float("-inf")

    def stays_late(self, now: float) -> bool:
        if self.packets != self.late_packet + 1:
            self.late_run, self.late_since = 0, now
        self.late_run, self.late_packet = self.late_run + 1, self.packets
        return self.late_run >= 5 and now - self.late_since >= 0.08

    def still(self, sent: Sent) -> bool:
        if not self.idle():
            return False
        upto = max(self.consumed, self.end)
        before = self.code[max(0, self.consumed - 4096) : max(0, self.consumed - 1024)] or b"\xff"
        recent = self.code[max(0, self.consumed - 1024) : upto] + sent.heard
        return bool(loudest(recent) <= 2 * loudest(before) + 256)

    # -- the array ------------------------------------------------------------------------------------------------

    def place(self, position: int, payload: bytes, lost: bool) -> None:
        stop, stored = position + len(payload), 0
        for each in range(self.end, position):
            self.kind[each] = SILENT if not lost else LOST if each < self.consumed else AWAITED
        for each, code in zip(range(position, stop), payload, strict=True):
            if each >= self.end and each < self.consumed:
                self.kind[each] = LOST
            elif each >= self.consumed and (each >= self.end or self.kind[each] == AWAITED):
                self.kind[each], self.code[each] = RECEIVED, code
                stored += 1
        self.end = max(self.end, stop)
        if stop <= self.consumed or (not stored and LOST in self.kind[position:stop]):
            self.late += 1
        elif not stored:
            self.duplicates += 1


def follows(last: Sent, sent: Sent) -> int | None:
    ahead, step = sent.number - last.number, sent.time - last.time
    if sent.ssrc != last.ssrc or not -16 <= ahead <= 16:
        return None
    if step == ahead * len(last.heard) or (ahead > 0 and not last.heard and 0 <= step <= 40_000):
        return ahead
    return ahead if ahead == 1 and 0 <= step <= 40_000 else None


def loudest(codes: bytes | bytearray) -> int:
    return int(np.abs(ulaw_decode(bytes(codes)).astype(np.int32)).max())
