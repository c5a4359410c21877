"""The audio of one leg: its storage until it is consumed, its decoding, and reading it back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from audio.codecs import g711
from audio.codecs.codec import Codec
from audio.codecs.history import EpochHistory, join
from audio.codecs.opus import OpusWindows
from audio.legs.block import Block
from audio.ring import AHEAD, HISTORY, load, store

if TYPE_CHECKING:
    from audio.codecs.g722 import G722Decoder


class LegAudio:
    """The stored audio of a leg. Positions are 8 kHz samples since its sample 0, of `position_bytes` bytes each."""

    __slots__ = (
        "_decoder", "_epoch", "_history", "block", "codec", "mask", "opus", "position_bytes", "ring", "row",
    )  # fmt: skip

    codec: Codec
    mask: bytes | None
    """The table that translates received bytes to stored bytes, in which 0 is silence."""
    position_bytes: int
    opus: OpusWindows | None
    ring: memoryview
    """The ring of received bytes; empty for Opus, whose packets wait in `opus`."""

    def __init__(self, block: Block, row: int) -> None:
        """The caller must call `describe` next."""
        self.block, self.row = block, row
        self._decoder: G722Decoder | None = None
        self._history: list[EpochHistory] = []
        self._epoch = 0  # the position from which the present codec is in force

    def describe(self, codec: Codec) -> None:
        """Set the codec of the bytes from now on."""
        self.codec, self.position_bytes, self.mask = codec, codec.position_bytes, codec.mask
        self.block.describe(self.row, codec)
        self._decoder, self.opus = None, None
        if codec is Codec.G722:
            from audio.codecs.g722 import G722Decoder

            # The codes wait in this ring until they are decoded into the plane.
            self._decoder = G722Decoder()
            self.ring = memoryview(bytearray(2 * AHEAD))
        elif codec is Codec.OPUS:
            self.opus, self.ring = OpusWindows(), memoryview(b"")
        else:
            self.ring = self.block.plane.row(self.row)

    def end_epoch(self, position: int) -> None:
        """Keep the still readable audio of the present codec, because another one follows from `position` on."""
        begin = max(self._epoch, position - HISTORY)
        self._history = [past for past in self._history if past.end > position - HISTORY]
        self._history.append(EpochHistory(self.codec, begin, self._load(begin, position)))
        self._epoch = position

    def store(self, low: int, data: bytes) -> None:
        """Store received bytes at the position `low`."""
        store(self.ring, low * self.position_bytes, data.translate(self.mask))

    def decode(self, start: int, stop: int, received: Iterable[tuple[int, int]]) -> None:
        """Decode the window [start, stop), of which the spans `received` have arrived, into the plane.

        Missing parts are silence, or concealed by Opus.
        """
        window = self.block.window(self.row, start)
        window[:] = 0
        if self.opus is not None:
            self.opus.fill(start, stop, window)
            return
        assert self._decoder is not None
        for low, high in received:
            window[2 * (low - start) : 2 * (high - start)] = self._decoder.decode(load(self.ring, low, high))

    def read(self, start: int, end: int) -> bytes:
        """The received bytes of [start, end), as `audio.legs.leg.Leg.read` documents them."""
        past = (each for each in self._history if start < each.end and each.start < end)
        pieces = [(each.codec, each.read(start, end)) for each in past]
        if end > self._epoch:
            pieces.append((self.codec, self._load(max(start, self._epoch), end)))
        return join(pieces) if pieces else b""

    def _load(self, start: int, end: int) -> bytes:
        if self.codec.wide:
            return load(self.block.plane.row(self.row), 4 * start, 4 * end)
        return load(self.ring, start, end).translate(self.mask)

    def no_louder(self, position: int, end: int, payload: bytes) -> bool:
        """Whether the audio from 128 ms before `position` up to `end`, and `payload`, are about as quiet as the 384 ms
        before them.

        It is True for wide codecs, whose bytes have not been decoded yet.
        """
        if self.codec.wide:
            return True
        recent, before = position - 1024, position - 4096
        codes = load(self.ring, before, end).translate(self.mask) + payload
        samples = g711.alaw_decode(codes) if self.codec is Codec.PCMA else g711.ulaw_decode(codes)
        levels = np.abs(samples.astype(np.int32))
        return bool(levels[recent - before :].max() <= 2 * levels[: recent - before].max() + 256)

    def release(self) -> None:
        """Detach from the row, which another leg will get."""
        self.ring = memoryview(bytearray(1))
        self._decoder, self.opus, self._history = None, None, []
