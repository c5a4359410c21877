"""A leg: one speaker's channel of a call. Bytes come in (`audio.reception`), and the detector takes the windows out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audio.codecs.codec import Codec
from audio.codecs.opus import OpusWindows
from audio.detections import Detection, EndReason
from audio.history import EpochHistory, join
from audio.leg_table import NEVER, LegRow
from audio.reception import Reception, Transport
from audio.ring import AHEAD, HISTORY, load
from audio.rtp.clock import RATE_HZ
from audio.rtp.fast_path import spread

if TYPE_CHECKING:
    from audio.block import Block
    from audio.codecs.g722 import G722Decoder
    from audio.detector import Detector
    from config import Endpointing


class Leg(Reception):
    """Made by `Detector.open`. Positions are 8 kHz samples since its sample 0, for 16 kHz codecs as well."""

    __slots__ = ("_decoder", "_epoch", "_history", "key")

    def __init__(self, detector: Detector, block: Block, row: int, transport: Transport) -> None:
        """`describe` comes next."""
        super().__init__(detector, block, row, transport)
        self.key: Any = None
        """The owner's; unused here."""
        self._history: list[EpochHistory] = []
        self._epoch = 0  # where the codec of now came into force

    def __repr__(self) -> str:
        return f"<Leg {self.row} {self.codec.name} {self.transport}>"

    def describe(
        self, codec: Codec, telephone_event: int | None, payload_type: int | None, event_clock_hz: int
    ) -> None:
        """What the bytes mean from now on."""
        self._number(codec, telephone_event, payload_type, event_clock_hz)
        self.codec, self._bytes = codec, codec.position_bytes
        self._mask = codec.mask
        self.block.describe(self.row, codec)
        self._detector.table.mask[self.index] = spread(codec.silence)
        self._decoder: G722Decoder | None = None
        self._opus = None
        if codec is Codec.G722:
            from audio.codecs.g722 import G722Decoder

            # Its codes wait here for their turn; what is decoded goes to the plane.
            self._decoder = G722Decoder()
            self._ring = memoryview(bytearray(2 * AHEAD))
        elif codec is Codec.OPUS:
            self._opus, self._ring = OpusWindows(), memoryview(b"")
        else:
            self._ring = self.block.plane.row(self.row)
        self.place.cells["room"][self.place.row] = len(self._ring) // self._bytes

    def _number(self, codec: Codec, telephone_event: int | None, payload_type: int | None, event_clock_hz: int) -> None:
        self.telephone_event, self.event_clock_hz = telephone_event, event_clock_hz
        self._payload_type = codec.payload_type if payload_type is None else payload_type
        # Version 2; no padding, extension or CSRC. How long an Opus packet lasts, and its clock, need a look at each.
        plain = self.transport == "rtp" and codec is not Codec.OPUS
        self.place.cells["head"][self.place.row] = 0x8000 | self._payload_type if plain else 0

    def keep(self, offset: int, codes: NDArray[np.uint8]) -> None:
        """G.722: put these where they wait for their turn."""
        self._ring[offset : offset + len(codes)] = codes.data

    @property
    def origin_s(self) -> float | None:
        """The `now` of position 0; None until the first audio, `start` or `anchor`."""
        return self._clock.origin_s

    def decode_window(self, start: int, stop: int) -> None:
        """Decode [start, stop), one window, into the plane. What is missing is silence, or concealed where Opus can."""
        self._timeline.give_up(stop)
        window = self.block.window(self.row, start)
        window[:] = 0
        if self._opus is not None:
            self._opus.take(start, stop, window)
            return
        assert self._decoder is not None
        for low, high in self._timeline.heard(start, stop):
            window[2 * (low - start) : 2 * (high - start)] = self._decoder.decode(load(self._ring, low, high))

    def read(self, start: int, end: int) -> bytes:
        """Consumed audio: the codec's own G.711 codes, or int16 little-endian at 16 kHz (two samples a position).

        What is missing is silence of the codec. A range across a codec change comes in the codec of its end. Raises
        ValueError outside the latest 31 s of consumed audio.
        """
        position = self.position
        if self.closed or not max(0, position - HISTORY) <= start <= end <= position:
            raise ValueError(f"[{start}, {end}) is not within the 31 s before {position}")
        past = (each for each in self._history if start < each.end and each.start < end)
        pieces = [(each.codec, each.read(start, end)) for each in past]
        if end > self._epoch:
            pieces.append((self.codec, self._load(max(start, self._epoch), end)))
        return join(pieces) if pieces else b""

    def _load(self, start: int, end: int) -> bytes:
        if self.codec.wide:
            return load(self.block.plane.row(self.row), 4 * start, 4 * end)
        return load(self._ring, start, end).translate(self._mask)

    def lost(self, start: int, end: int) -> int:
        """Positions in [start, end) that were sent and did not come in time.

        Only what comes later shows that something was lost: a gap in the sequence numbers (RFC 3550 section 6.4.1), or
        a chunk's own position. A peer that stops sending when nobody speaks has lost nothing.
        """
        return self._timeline.lost(start, end)

    def finish(self, reason: EndReason) -> list[Detection]:
        """Consume all that was received, the last window padded with silence, and end the open utterance."""
        return list(self.finishing(reason))

    def finishing(self, reason: EndReason) -> Iterator[Detection]:
        """`finish`, one detection at a time: what each is about can still be read while it is at hand. Take them all.

        Of a long backlog the first utterances would otherwise lie beyond what `read` reaches once the last is known.
        """
        return iter(()) if self.closed else self._detector.finish(self, reason)

    def retune(self, endpointing: Endpointing) -> None:
        """Another profile from the current position on. What is open must have been finished.

        Where everything is speech (`enter` 0) silence is the sender's alone to send: none is put in when it pauses.
        """
        if not self.closed:
            self._detector.retune(self, endpointing)
            self.stall_s = self._detector.stall_s if endpointing.enter else NEVER

    def change(
        self,
        codec: Codec,
        telephone_event: int | None = None,
        payload_type: int | None = None,
        event_clock_hz: int = RATE_HZ,
    ) -> None:
        """A new media description: this codec from the current position on, and any SSRC. See `Detector.open`.

        An utterance still open is flushed: its end comes with the next `Detector.step`. Audio from before stays
        readable, in the codec of its time. Raises ValueError for L16 over RTP, and Opus over anything else.
        """
        codec.check(self.transport)
        if self.closed:
            return
        self._clock.restart()
        if codec is self.codec:
            self._number(codec, telephone_event, payload_type, event_clock_hz)
            return
        for detection in self.finish("flush"):
            self._detector.publish(detection)
        position = self.position
        begin = max(self._epoch, position - HISTORY)
        self._history = [past for past in self._history if past.end > position - HISTORY]
        self._history.append(EpochHistory(self.codec, begin, self._load(begin, position)))
        self._epoch = position
        if codec.wide != self.codec.wide:
            self._detector.move(self, wide=codec.wide)
        self._detector.bank.bar(self.index, position)
        self._timeline.end = max(self._timeline.end, position)
        self.describe(codec, telephone_event, payload_type, event_clock_hz)

    def close(self) -> None:
        """Give the row back, zeroed. Idempotent; packets that still come are ignored."""
        if not self.closed:
            self._detector.close(self)

    def release(self) -> None:
        """The detector is about to free the row: forget it."""
        self._closed_at = self.position
        self.index = -1
        self.place.move(LegRow().table, 0)
        self._ring = memoryview(bytearray(1))
        self._decoder, self._opus, self._history = None, None, []

    @property
    def end(self) -> int:
        """Past the latest received position."""
        return self._timeline.end

    @property
    def gapped(self) -> bool:
        """Something is awaited that later packets have overtaken."""
        return bool(self._timeline.gaps)

    @property
    def packets(self) -> int:
        """Packets of the believed stream, or chunks; without duplicates."""
        return self._clock.packets + self._chunks.packets

    @property
    def lost_packets(self) -> int:
        """By sequence number: never came at all."""
        return self._clock.lost

    @property
    def duplicates(self) -> int:
        return self._clock.duplicates + self._overlaps

    @property
    def discarded(self) -> int:
        """Packets of a foreign source, or of a new one before it was believed."""
        return self._clock.discarded

    @property
    def refused_digits(self) -> int:
        """Faster than anybody dials."""
        return self._digits.rate.refused

    @property
    def ssrc_changes(self) -> int:
        return self._clock.ssrc_changes

    @property
    def jumps(self) -> int:
        """Times the stream was rebased to its arrival."""
        return self._clock.jumps

    @property
    def reception(self) -> tuple[int, int, int, int] | None:
        """SSRC, latest sequence number, packets lost, jitter (RTP clock) of the believed stream; None before it."""
        clock = self._clock
        if clock.ssrc < 0:
            return None
        jitter = int(clock.jitter * (self.codec.clock_rate_hz // RATE_HZ))
        return clock.ssrc, (clock.next_sequence - 1) & 0xFFFF, clock.lost, jitter

    @property
    def jitter_ms(self) -> float:
        """Interarrival jitter, RFC 3550 appendix A.8."""
        return self._clock.jitter / 8
