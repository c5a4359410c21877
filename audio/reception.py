"""What comes into a leg: RTP packets or stream chunks, each stored at the position it belongs to.

`receive_rtp` and `receive_chunk` never raise on what a peer sends; they count. The plain packets of all legs, next in
sequence and in time, are taken together (`audio.rtp.fast_path`); `receive_rtp` takes any packet, one at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from audio.chunks import REACH, ChunkClock
from audio.codecs import g711
from audio.codecs.codec import Codec
from audio.codecs.opus import OpusError, OpusPacket, OpusWindows
from audio.leg_table import NEVER, Cell, LegRow
from audio.ring import AHEAD, WINDOW, load, store
from audio.rtp import packet as rtp
from audio.rtp.clock import RATE_HZ, PacketArrival, Payload, RtpClock, signed
from audio.rtp.dtmf import DigitCollector
from audio.timeline import LegTimeline

if TYPE_CHECKING:
    from audio.block import Block
    from audio.detector import Detector
    from audio.leg import Leg

TICKS = Codec.OPUS.clock_rate_hz // RATE_HZ
Transport = Literal["rtp", "stream"]


class Reception:
    """The receiving half of a `audio.leg.Leg`, which is never made without the other half."""

    __slots__ = (
        "_bytes", "_chunks", "_clock", "_closed_at", "_detector", "_digits", "_mask", "_opus", "_overlaps",
        "_payload_type", "_refusing", "_ring", "_timeline", "_timestamp", "block", "codec", "event_clock_hz",
        "index", "late", "malformed", "place", "refused", "row", "rtcp", "stall_s", "telephone_event", "transport",
        "wrong_payload",
    )  # fmt: skip

    codec: Codec
    telephone_event: int | None
    event_clock_hz: int
    """The digits' clock, which the SDP names."""
    _mask: bytes | None
    _payload_type: int
    _bytes: int
    _ring: memoryview
    _opus: OpusWindows | None
    _consumed = Cell[int]("consumed")
    _received = Cell[int]("received")
    _base_s = Cell[float]("base_s")

    def __init__(self, detector: Detector, block: Block, row: int, transport: Transport) -> None:
        self._detector, self.transport = detector, transport
        self.block, self.row = block, row
        self.index = block.base + row
        """The leg's row among all, for `Detector.receive`; -1: closed."""
        self.place = LegRow(detector.table, self.index)
        self._clock, self._timeline = RtpClock(self.place), LegTimeline(self.place)
        self._chunks, self._digits = ChunkClock(), DigitCollector()
        self._closed_at: int | None = None
        self._refusing = False
        self._timestamp = 0  # Opus: the latest of the believed stream, beyond its 32 bits
        self.stall_s = detector.stall_s
        """A stream's silence before its timeline goes on without it; infinity: it waits for the next chunk."""
        self.late = 0
        """Packets or chunks that came after their window had gone on as silence."""
        self.refused = 0
        """Positions refused because they would have overwritten audio that is still to be read."""
        self.malformed = self.wrong_payload = self.rtcp = self._overlaps = 0

    def attach(self, block: Block, row: int) -> None:
        """Live in this row from now on."""
        self.block, self.row = block, row
        self.index = block.base + row
        self.place.move(self._detector.table, self.index)

    @property
    def closed(self) -> bool:
        return self._closed_at is not None

    @property
    def position(self) -> int:
        """How far the VAD has consumed."""
        return self._consumed if self._closed_at is None else self._closed_at

    @property
    def ahead(self) -> int:
        """Positions received beyond `position`. A stream shell stops reading its socket above 5 s (40,000)."""
        return max(0, self._timeline.end - self.position)

    def start(self, now: float) -> None:
        """Position 0 is now, though nothing has come: silence advances, and endpoints fire."""
        self.anchor(now)
        if not self.closed:
            self._chunks.arrival_s = now
            self._rearm()

    def anchor(self, now: float) -> None:
        """Position 0 is now; the leg still waits for its first audio. No effect once the leg has an origin."""
        if self._clock.origin_s is None:
            self._clock.origin_s = now

    def _rearm(self) -> None:
        """Set what is complete, and from when on a missing window goes on as silence."""
        timeline, chunks = self._timeline, self._chunks
        overtaken = bool(timeline.gaps) and timeline.gaps[0][0] < timeline.begin
        if overtaken and chunks.arrival_s >= chunks.begun_s + self._detector.jitter_s:
            # The next chunk says so, not the clock: a window is not torn from what is still to come of it.
            timeline.give_up(timeline.begin)
            overtaken = False
        self._received = timeline.received
        if self.transport == "rtp":
            assert self._clock.origin_s is not None
            self._base_s = self._clock.origin_s + self._detector.jitter_s
        elif timeline.gaps and not overtaken:
            # A later chunk shows the loss; one that was overtaken may still come within the reorder wait.
            chunks.gap_s = chunks.arrival_s if chunks.gap_s is None else chunks.gap_s
            stop = (timeline.received // WINDOW + 1) * WINDOW
            self._base_s = chunks.gap_s + self._detector.jitter_s - stop / RATE_HZ
        else:
            chunks.gap_s = None
            self._base_s = chunks.arrival_s + self.stall_s - max(timeline.end, self.position) / RATE_HZ

    # -- RTP ----------------------------------------------------------------------------------------------------------

    def receive_rtp(self, datagram: bytes, now: float) -> None:
        """One datagram from the leg's socket, at `now`. Whatever is wrong with it is counted."""
        if self.closed:
            return
        if rtp.is_rtcp(datagram):
            self.rtcp += 1
            return
        try:
            packet = rtp.RtpPacket.parse(datagram)
        except rtp.RtpError:
            self.malformed += 1
            return
        clock, timestamp = self._clock, packet.timestamp
        payload: Payload = packet.payload
        if self._opus is not None:
            timestamp = self._positions(packet)
        if packet.payload_type != self._payload_type:
            payload = b""  # no audio of this leg, but it has a number in the sequence
            if packet.payload_type not in (self.telephone_event, rtp.COMFORT_NOISE):
                self.wrong_payload += 1
                if packet.ssrc != clock.ssrc:
                    return
        elif self._opus is not None and payload:
            try:
                payload = OpusPacket(packet.payload)
            except OpusError:
                self.malformed += 1
                return
        arrival = PacketArrival(packet.sequence, timestamp, packet.ssrc, payload, now)
        for placed in clock.receive(arrival, self._consumed, partial(self._still, packet.payload)):
            self._place(placed.position, placed.payload, lost=placed.lost)
        if packet.ssrc == clock.ssrc:
            if packet.payload_type == self.telephone_event:
                self._event(packet, timestamp, now)
        self._rearm()

    def _still(self, payload: bytes) -> bool:
        """The leg is silent, and not because the VAD has yet to see an onset: the latest is no louder than before."""
        if not self._detector.bank.idle(self.index):
            return False
        if self.codec.wide:
            return True
        recent, before = self.position - 1024, self.position - 4096
        codes = load(self._ring, before, max(self.position, self._timeline.end)).translate(self._mask) + payload
        samples = g711.alaw_decode(codes) if self.codec is Codec.PCMA else g711.ulaw_decode(codes)
        levels = np.abs(samples.astype(np.int32))
        return bool(levels[recent - before :].max() <= 2 * levels[: recent - before].max() + 256)

    def _positions(self, packet: rtp.RtpPacket) -> int:
        """The timestamp of an Opus stream in positions: counted on beyond its 32 bits, of which 6 is no divisor."""
        extended = self._timestamp + signed(packet.timestamp - self._timestamp, 32)
        if self._clock.ssrc in (packet.ssrc, -1):
            self._timestamp = extended
        return extended // TICKS & 0xFFFFFFFF

    def _event(self, packet: rtp.RtpPacket, timestamp: int, now: float) -> None:
        try:
            event = rtp.TelephoneEvent.parse(packet.payload)
        except rtp.RtpError:
            self.malformed += 1
            return
        if self.event_clock_hz != RATE_HZ:
            event = replace(event, duration=event.duration * RATE_HZ // self.event_clock_hz)
        position = max(0, self._clock.position_of(timestamp, now))
        for press in self._digits.receive(event, timestamp, position, now):
            self._detector.publish(press.of(cast("Leg", self)))
        self._detector.watch_digits(cast("Leg", self), self._digits.open is not None)

    def flush_digit(self, now: float) -> None:
        """Publish a digit whose end was lost, once its packets have stopped."""
        for press in self._digits.expire(now):
            self._detector.publish(press.of(cast("Leg", self)))
        self._detector.watch_digits(cast("Leg", self), self._digits.open is not None)

    # -- streams ------------------------------------------------------------------------------------------------------

    def receive_chunk(self, position: int | None, payload: bytes, now: float) -> None:
        """Audio of a stream transport: G.711 codes, G.722 bytes, or int16 little-endian at 16 kHz for L16.

        `position`: where it says it starts; None: after what came before. Chunks may come out of order and positions
        may be a few milliseconds off (`audio.chunks`); a chunk for what has already gone on as silence is late.
        """
        if self._closed_at is not None:
            return
        size, rest = divmod(len(payload), self._bytes)
        if rest or not size or (position is not None and not 0 <= position < 1 << 48):
            self.malformed += 1
            return
        cells, row, chunks = self.place.cells, self.place.row, self._chunks
        goes_on = position == cells["end"][row] == cells["received"][row]
        if position is not None and goes_on and chunks.exact and not self._refusing:
            # The plain chunk: it goes on exactly where the one before ended, and nothing is missing.
            consumed, end, offset = cells["consumed"][row], position + size, position * self._bytes % len(self._ring)
            if consumed <= position and end <= consumed + AHEAD and offset + len(payload) <= len(self._ring):
                self._ring[offset : offset + len(payload)] = payload.translate(self._mask)
                chunks.packets += 1
                chunks.arrival_s = now
                cells["end"][row] = cells["received"][row] = end
                cells["base_s"][row] = now + self.stall_s - end / RATE_HZ
                return
        self._receive_chunk(position, size, payload, now)

    def defer(self, now: float) -> None:
        """The stream's sender was held back until now: only from here on is its silence its own."""
        if not self.closed and self._chunks.packets:
            self._chunks.arrival_s = now
            self._rearm()

    def resume(self, size: int, now: float) -> None:
        """A live sender has paused for longer than `stall_s`, and has now sent `size` positions: they are said now, and
        not as long ago as that wait has put the leg behind the clock. What was not sent is silence."""
        if self.closed or not self._chunks.packets or now - self._chunks.arrival_s < self.stall_s:
            return
        assert self._clock.origin_s is not None
        here = min(round((now - self._clock.origin_s) * RATE_HZ) - size, self.position + AHEAD // 2)
        if here > max(self._timeline.end, self.position):
            self._timeline.claim(here, here, self.position, lost=False)
            self._rearm()

    def _receive_chunk(self, position: int | None, size: int, payload: bytes, now: float) -> None:
        chunks, timeline = self._chunks, self._timeline
        start = max(timeline.end, self.position)
        if position is not None:
            start = chunks.place(position, size, timeline, silent=self._detector.bank.idle(self.index))
        if not chunks.packets:
            self._begin(start, now)
        chunks.arrival_s = now
        # A step of less than half a chunk is the timeline being moved; nothing was left out there.
        skipped = position is not None and start - timeline.end >= size // 2
        self._place(start, payload, lost=skipped)
        chunks.packets += 1
        self._rearm()

    def _begin(self, start: int, now: float) -> None:
        """First audio. A leg that nobody has started begins here, or a little earlier: at what was overtaken."""
        self.anchor(now - start / RATE_HZ)
        if self._base_s == NEVER:
            assert self._consumed == 0
            self._consumed = self._received = max(0, start - REACH) // WINDOW * WINDOW
            self._detector.bank.bar(self.index, self._consumed)
        self._timeline.end = max(self._timeline.end, self.position)
        self._timeline.begin, self._chunks.begun_s = start, now

    # -- both ---------------------------------------------------------------------------------------------------------

    def _place(self, position: int, payload: Payload, *, lost: bool) -> None:
        size, floor = len(payload) // self._bytes, self.position
        stop = position + size
        if stop > floor + AHEAD:
            self.refused += size
            self._refusing = True
            return
        parts = self._timeline.claim(position, stop, floor, lost=lost or self._refusing)
        self._refusing = False
        if stop <= floor:
            self.late += 1
        elif not parts and self._timeline.lost(position, stop):
            self.late += 1
        elif not parts:
            self._overlaps += 1
        if not isinstance(payload, bytes):
            if parts and self._opus is not None:
                self._opus.put(position, payload)
            return
        for low, high in parts:
            data = payload[(low - position) * self._bytes : (high - position) * self._bytes]
            store(self._ring, low * self._bytes, data.translate(self._mask))

    def give_up(self, stop: int) -> None:
        """The detector consumes up to `stop`: what is missing before it stays silence."""
        timeline = self._timeline
        if self.transport == "stream" and timeline.gaps:
            # Its wait has begun when a later chunk came, for all of it: it does not end window by window.
            stop = max(stop, timeline.gaps[0][1])
        timeline.give_up(stop)
        self._chunks.gap_s = None
        self._rearm()
