"""A leg: one speaker's channel of a call. It stores each packet or chunk at its position.

`receive_rtp` and `receive_chunk` never raise on a peer's input; they count faults. Plain packets, which are next in
sequence and in time, are stored for all legs together (`audio.fast_path`); `receive_rtp` handles any packet, one at a
time. The detector consumes the windows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from audio.codecs.codec import Codec
from audio.codecs.opus import OpusError, OpusPacket
from audio.leg_table import NEVER, Cell, LegRow, LegTable
from audio.legs.block import Block
from audio.legs.chunks import REACH, ChunkClock
from audio.legs.due import DueTime, Transport
from audio.legs.leg_audio import LegAudio
from audio.legs.timeline import LegTimeline
from audio.ring import AHEAD, HISTORY, WINDOW
from audio.rtp import packet as rtp
from audio.rtp.clock import RATE_HZ, PacketArrival, Payload, RtpClock, signed
from audio.rtp.dtmf import DigitCollector

TICKS = Codec.OPUS.clock_rate_hz // RATE_HZ


class UtteranceState(Protocol):
    """The part of the endpointers that a leg uses; `index` is the leg's."""

    def idle(self, index: int) -> bool:
        """Whether the leg is neither in an utterance nor at its onset."""

    def bar(self, index: int, position: int) -> None:
        """Keep utterances of the leg from reaching back before `position`."""


class Leg:
    """A leg, opened by `Detector.open`. Positions are 8 kHz samples since its sample 0, for 16 kHz codecs as well."""

    __slots__ = (
        "_chunks", "_clock", "_closed_at", "_keyed", "_overlaps", "_overdue", "_payload_type", "_refusing", "_timeline",
        "_timestamp", "_utterance", "audio", "digits", "due", "event_clock_hz", "index", "key", "late", "malformed",
        "place", "refused", "rtcp", "telephone_event", "transport", "wrong_payload",
    )  # fmt: skip

    event_clock_hz: int
    """The clock rate of the telephone-event payload, from the SDP."""
    _consumed = Cell[int]("consumed")
    _received = Cell[int]("received")
    _base_s = Cell[float]("base_s")

    def __init__(
        self,
        table: LegTable,
        audio: LegAudio,
        transport: Transport,
        *,
        utterance: UtteranceState,
        keyed: dict[Leg, None],
        jitter_s: float,
        stall_s: float,
    ) -> None:
        """The caller must call `describe` next. The leg adds itself to `keyed` when `digits` may have a new digit."""
        self.audio, self.transport = audio, transport
        self.key: Any = None  # the owner's; unused here
        self.index = audio.block.base + audio.row
        """The leg's row in the table, for `Detector.receive`; -1 after the leg has been closed."""
        self.place = LegRow(table, self.index)
        self._utterance, self._keyed = utterance, keyed
        self._clock, self._timeline = RtpClock(self.place), LegTimeline(self.place)
        self._chunks, self.digits = ChunkClock(), DigitCollector()
        self.due = DueTime(transport, self._timeline, self._clock, self._chunks, self.place, jitter_s, stall_s)
        self._closed_at: int | None = None
        self._refusing = False
        self._timestamp = 0  # for Opus: the latest timestamp of the accepted stream, extended beyond 32 bits
        self.late = 0
        """Packets or chunks that arrived after their window had been consumed as silence."""
        self.refused = 0
        """Positions that were refused because they would have overwritten audio that has not been consumed."""
        self.malformed = self.wrong_payload = self.rtcp = self._overlaps = self._overdue = 0

    def __repr__(self) -> str:
        return f"<Leg {self.index} {self.codec.name} {self.transport}>"

    @property
    def codec(self) -> Codec:
        return self.audio.codec

    def describe(
        self, codec: Codec, telephone_event: int | None, payload_type: int | None, event_clock_hz: int
    ) -> None:
        """Set the codec and the payload types from now on."""
        self.number(codec, telephone_event, payload_type, event_clock_hz)
        self.audio.describe(codec)
        self.place.table.set_mask(self.index, codec.silence)
        self.place.cells["room"][self.place.row] = len(self.audio.ring) // self.audio.position_bytes

    def number(self, codec: Codec, telephone_event: int | None, payload_type: int | None, event_clock_hz: int) -> None:
        """Set the payload types of a new media description: the next packet is accepted with any SSRC."""
        self._clock.restart()
        self.telephone_event, self.event_clock_hz = telephone_event, event_clock_hz
        self._payload_type = codec.payload_type if payload_type is None else payload_type
        # Version 2; no padding, extension or CSRC. Opus is never plain, because its packets differ in duration.
        plain = self.transport == "rtp" and codec is not Codec.OPUS
        self.place.cells["head"][self.place.row] = 0x8000 | self._payload_type if plain else 0

    def end_epoch(self) -> None:
        """End the present codec at the current position; the caller calls `move` and `describe` next."""
        position = self.position
        self.audio.end_epoch(position)
        self._utterance.bar(self.index, position)
        self._timeline.end = max(self._timeline.end, position)

    def move(self, table: LegTable, block: Block, row: int) -> None:
        """Use this row from now on."""
        self.audio.block, self.audio.row = block, row
        self.index = block.base + row
        self.place.move(table, self.index)

    def release(self) -> None:
        """Detach from the row, which is about to be freed. Later packets are ignored."""
        self._closed_at = self.position
        self.index = -1
        self.place.move(LegRow().table, 0)
        self.audio.release()

    @property
    def closed(self) -> bool:
        return self._closed_at is not None

    @property
    def position(self) -> int:
        """The position up to which the VAD has consumed."""
        return self._consumed if self._closed_at is None else self._closed_at

    @property
    def ahead(self) -> int:
        """The positions received beyond `position`. A stream shell stops reading its socket above 5 s (40,000)."""
        return max(0, self._timeline.end - self.position)

    def start(self, now: float) -> None:
        """Make now position 0, before any audio: the leg advances as silence, and endpoints fire."""
        self.anchor(now)
        if not self.closed:
            self._chunks.arrival_s = now
            self.due.update()

    def anchor(self, now: float) -> None:
        """Make now position 0; the leg still waits for its first audio. This has no effect once there is an origin."""
        if self._clock.origin_s is None:
            self._clock.origin_s = now

    def receive_rtp(self, datagram: bytes, now: float) -> None:
        """Process one datagram from the leg's socket, at `now`. A fault in it is counted."""
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
        if self.audio.opus is not None:
            timestamp = self._positions(packet)
        if packet.payload_type != self._payload_type:
            payload = b""  # no audio of this leg, but it uses up a sequence number
            if packet.payload_type not in (self.telephone_event, rtp.COMFORT_NOISE):
                self.wrong_payload += 1
                if packet.ssrc != clock.ssrc:
                    return
        elif self.audio.opus is not None and payload:
            try:
                payload = OpusPacket(packet.payload)
            except OpusError:
                self.malformed += 1
                return
        arrival = PacketArrival(packet.sequence, timestamp, packet.ssrc, payload, now)
        for placed in clock.receive(arrival, self._consumed, partial(self._is_silent, packet.payload)):
            self._place(placed.position, placed.payload, lost=placed.lost)
        if packet.ssrc == clock.ssrc and packet.payload_type == self.telephone_event:
            self._event(packet, timestamp, now)
        self.due.update()

    def _is_silent(self, payload: bytes) -> bool:
        """Whether the leg is silent, also in audio that the VAD has not processed, which is no louder than before."""
        end = max(self.position, self._timeline.end)
        return self._utterance.idle(self.index) and self.audio.no_louder(self.position, end, payload)

    def _positions(self, packet: rtp.RtpPacket) -> int:
        """The timestamp of an Opus stream in positions, extended beyond 32 bits because 6 does not divide 2**32."""
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
        self.digits.receive(event, timestamp, position, now)
        self._keyed[self] = None

    def receive_chunk(self, position: int | None, payload: bytes, now: float) -> None:
        """Process audio of a stream transport: G.711 codes, G.722 bytes, or for L16 little-endian int16 at 16 kHz.

        `position`: the start of the chunk, or None for the end of the previous one. Chunks may arrive out of order, and
        positions may be a few milliseconds off (`audio.legs.chunks`). A chunk for audio consumed as silence is late.
        """
        if self._closed_at is not None:
            return
        audio = self.audio
        size, rest = divmod(len(payload), audio.position_bytes)
        if rest or not size or (position is not None and not 0 <= position < 1 << 48):
            self.malformed += 1
            return
        cells, row, chunks = self.place.cells, self.place.row, self._chunks
        goes_on = position == cells["end"][row] == cells["received"][row]
        if position is not None and goes_on and chunks.exact and not self._refusing:
            # A plain chunk begins exactly at the end of the previous one, and no audio is missing.
            ring = audio.ring
            consumed, end, offset = cells["consumed"][row], position + size, position * audio.position_bytes % len(ring)
            if consumed <= position and end <= consumed + AHEAD and offset + len(payload) <= len(ring):
                ring[offset : offset + len(payload)] = payload.translate(audio.mask)
                chunks.packets += 1
                chunks.arrival_s = now
                cells["end"][row] = cells["received"][row] = end
                cells["base_s"][row] = now + self.due.stall_s - end / RATE_HZ
                return
        self._receive_chunk(position, size, payload, now)

    def defer(self, now: float) -> None:
        """Count the stream's silence from now on, because its sender was throttled until now."""
        if not self.closed and self._chunks.packets:
            self._chunks.arrival_s = now
            self.due.update()

    def resume(self, size: int, now: float) -> None:
        """Skip the pause of a live sender that sends `size` positions now, if it lasted for `stall_s` or more."""
        if self._clock.origin_s is not None and now - self._chunks.arrival_s >= self.due.stall_s:
            self.pass_over(min(round((now - self._clock.origin_s) * RATE_HZ) - size, self.position + AHEAD // 2))

    def pass_over(self, position: int) -> None:
        """Treat the audio up to `position` as silence, because the sender has not sent it and never will."""
        if not self.closed and self._chunks.packets and position > max(self._timeline.end, self.position):
            self._timeline.claim(position, position, self.position, lost=False)
            self.due.update()

    def _receive_chunk(self, position: int | None, size: int, payload: bytes, now: float) -> None:
        chunks, timeline = self._chunks, self._timeline
        start = max(timeline.end, self.position)
        if position is not None:
            start = chunks.place(position, size, timeline, silent=self._utterance.idle(self.index))
        if not chunks.packets:
            self._begin(start, now)
        chunks.arrival_s = now
        # A step of less than half a chunk is a correction of the timeline, not a loss.
        skipped = position is not None and start - timeline.end >= size // 2
        self._place(start, payload, lost=skipped)
        chunks.packets += 1
        self.due.update()

    def _begin(self, start: int, now: float) -> None:
        """Begin with the first audio; a leg that was not started begins a little earlier, for overtaken chunks."""
        self.anchor(now - start / RATE_HZ)
        if self._base_s == NEVER:
            assert self._consumed == 0
            self._consumed = self._received = max(0, start - REACH) // WINDOW * WINDOW
            self._utterance.bar(self.index, self._consumed)
        self._timeline.end = max(self._timeline.end, self.position)
        self._timeline.begin, self._chunks.begun_s = start, now

    def _place(self, position: int, payload: Payload, *, lost: bool) -> None:
        audio, floor, width = self.audio, self.position, self.audio.position_bytes
        size = len(payload) // width
        stop = position + size
        if stop > floor + AHEAD:
            self.refused += size
            self._refusing = True
            return
        parts = self._timeline.claim(position, stop, floor, lost=lost or self._refusing)
        self._refusing = False
        if stop <= floor or (not parts and self._timeline.lost(position, stop)):
            self.late += 1
            self._overdue += size * (stop <= floor and self.transport == "stream")
        elif not parts:
            self._overlaps += 1
        if not isinstance(payload, bytes):
            if parts and audio.opus is not None:
                audio.opus.insert(position, payload)
            return
        for low, high in parts:
            audio.store(low, payload[(low - position) * width : (high - position) * width])

    def give_up(self, stop: int) -> None:
        """Give up gaps before `stop`, which stay silence, because the detector consumes up to there."""
        timeline = self._timeline
        if self.transport == "stream" and timeline.gaps:
            # The wait for the whole gap began when a later chunk arrived, so it also ends for the whole gap.
            stop = max(stop, timeline.gaps[0][1])
        timeline.give_up(stop)
        self._chunks.gap_s = None
        self.due.update()

    @property
    def origin_s(self) -> float | None:
        """The `now` of position 0; None until the first audio, `start` or `anchor`."""
        return self._clock.origin_s

    def decode_window(self, start: int, stop: int) -> None:
        """Decode [start, stop), one window, into the ring, for a codec that is decoded in order."""
        self._timeline.give_up(stop)
        self.audio.decode(start, stop, self._timeline.received_spans(start, stop))

    def read(self, start: int, end: int) -> bytes:
        """Consumed audio: the codec's own G.711 codes, or little-endian int16 at 16 kHz (two samples per position).

        Gaps are the codec's silence. A range across a codec change is in the codec of its end. Raises
        ValueError outside the latest 31 s of consumed audio.
        """
        position = self.position
        if self.closed or not max(0, position - HISTORY) <= start <= end <= position:
            raise ValueError(f"[{start}, {end}) is not within the 31 s before {position}")
        return self.audio.read(start, end)

    def lost(self, start: int, end: int) -> int:
        """The number of positions in [start, end) that were sent but did not arrive in time.

        Only later packets show a loss, by a gap in the sequence numbers (RFC 3550 section 6.4.1), or later chunks by
        their positions. A peer that stops sending in silence has lost nothing.
        """
        return self._timeline.lost(start, end)

    def overdue(self) -> int:
        """The number of positions of a stream that have arrived too late since the last call."""
        overdue, self._overdue = self._overdue, 0
        return overdue

    @property
    def end(self) -> int:
        """The position after the latest received one."""
        return self._timeline.end

    @property
    def has_gaps(self) -> bool:
        """Whether audio is missing before packets that have arrived."""
        return bool(self._timeline.gaps)

    @property
    def packets(self) -> int:
        """The number of packets of the accepted stream, or of chunks, without duplicates."""
        return self._clock.packets + self._chunks.packets

    @property
    def lost_packets(self) -> int:
        """The number of packets that never arrived, by sequence number."""
        return self._clock.lost

    @property
    def duplicates(self) -> int:
        return self._clock.duplicates + self._overlaps

    @property
    def discarded(self) -> int:
        """The number of packets of a foreign source, or of a new one before it was accepted."""
        return self._clock.discarded

    @property
    def refused_digits(self) -> int:
        return self.digits.rate.refused

    @property
    def ssrc_changes(self) -> int:
        return self._clock.ssrc_changes

    @property
    def jumps(self) -> int:
        """The number of times that the stream was rebased to its arrival."""
        return self._clock.jumps

    @property
    def reception_report(self) -> tuple[int, int, int, int] | None:
        """(SSRC, latest sequence number, packets lost, jitter in the RTP clock) of the accepted stream, or None."""
        return self._clock.report(self.codec.clock_rate_hz)

    @property
    def jitter_ms(self) -> float:
        """The interarrival jitter in ms (RFC 3550 appendix A.8)."""
        return self._clock.jitter / 8
