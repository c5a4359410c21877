"""Opus (RFC 6716) over RTP (RFC 7587), by libopus: packets to 16 kHz and back.

A packet contains its own duration, 2.5 to 120 ms, and the RTP clock is 48 kHz at any sampling rate. The decoder carries
state from packet to packet, so packets wait until their window is due (`OpusWindows`), sorted by position. A missing
packet is decoded from the next one: on request (`useinbandfec`) a sender adds the speech of the previous packet at a
low rate. Audio that even this does not cover is concealed.

PJSIP is linked with libopus; this module loads it when the first such leg opens.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from bisect import insort
from functools import cache

import numpy as np
from numpy.typing import NDArray

from audio.errors import AudioError

RATE_HZ = 16000
SILENCE = b"\xf8\xff\xfe"
"""20 ms of silence: a full-band CELT frame without content."""
_POSITION_HZ = 8000
_MAX_PACKET = 960
"""The longest packet, 120 ms, in positions."""
_STEP = 20
"""The step of concealment, 2.5 ms, in positions."""
_CONCEALED = 480
"""The longest gap to conceal, 60 ms, in positions. A longer one is silence, not an echo of the last sound."""
_MONO = 1
_VOIP = 2048
_SET_BITRATE, _SET_INBAND_FEC, _SET_PACKET_LOSS = 4002, 4012, 4014
_BITRATE = 32000
_FRAME_SAMPLES = RATE_HZ // 50


Piece = tuple[int, NDArray[np.int16]]
"""The position of the first sample, and the samples."""


class OpusError(AudioError, ValueError):
    """The payload is no Opus packet."""


class OpusPacket:
    """A payload whose `len` is its duration in positions."""

    __slots__ = ("_positions", "data")

    def __init__(self, data: bytes) -> None:
        """Raises OpusError."""
        samples = _library().opus_packet_get_nb_samples(data, len(data), _POSITION_HZ) if data else 0
        if not 0 < samples <= _MAX_PACKET:
            raise OpusError(f"{len(data)} bytes are no Opus packet")
        self.data = data
        self._positions: int = samples

    def __len__(self) -> int:
        return self._positions


class OpusDecoder:
    """The decoder of one stream: packets in order → int16 mono at 16 kHz, with stereo mixed down."""

    def __init__(self) -> None:
        self._opus = _library()
        error = ctypes.c_int()
        self._state = ctypes.c_void_p(self._opus.opus_decoder_create(RATE_HZ, _MONO, ctypes.byref(error)))
        if not self._state:
            raise MemoryError(f"libopus made no decoder: {error.value}")
        self._room = np.empty(2 * _MAX_PACKET, np.int16)

    def __del__(self) -> None:
        if state := self.__dict__.pop("_state", None):
            self._opus.opus_decoder_destroy(state)

    def decode(self, packet: bytes) -> NDArray[np.int16]:
        """Decode a packet. Raises OpusError if it is damaged, which leaves the decoder's state unchanged."""
        return self._decode(packet, len(self._room), 0)

    def before(self, packet: bytes, positions: int) -> NDArray[np.int16]:
        """The `positions` (a multiple of 20) just before `packet`, from its redundancy if it has any."""
        try:
            return self._decode(packet, 2 * positions, 1)
        except OpusError:
            return self.conceal(positions)

    def conceal(self, positions: int) -> NDArray[np.int16]:
        """Concealment for this many positions, a multiple of 20, that no packet covers."""
        return self._decode(None, 2 * positions, 0)

    def _decode(self, packet: bytes | None, samples: int, fec: int) -> NDArray[np.int16]:
        size = 0 if packet is None else len(packet)
        count = self._opus.opus_decode(self._state, packet, size, self._room.ctypes.data, samples, fec)
        if count < 0:
            raise OpusError(f"libopus cannot decode {size} bytes: {count}")
        return self._room[:count].copy()


class OpusEncoder:
    """The encoder of speech in packets of 20 ms, each with redundancy for the previous one."""

    def __init__(self) -> None:
        self._opus = _library()
        error = ctypes.c_int()
        self._state = ctypes.c_void_p(self._opus.opus_encoder_create(RATE_HZ, _MONO, _VOIP, ctypes.byref(error)))
        if not self._state:
            raise MemoryError(f"libopus made no encoder: {error.value}")
        for setting, value in ((_SET_BITRATE, _BITRATE), (_SET_INBAND_FEC, 1), (_SET_PACKET_LOSS, 10)):
            self._opus.opus_encoder_ctl(self._state, ctypes.c_int(setting), ctypes.c_int(value))

    def __del__(self) -> None:
        if state := self.__dict__.pop("_state", None):
            self._opus.opus_encoder_destroy(state)

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        """320 samples at 16 kHz → one packet. Raises ValueError for any other number."""
        if len(samples) != _FRAME_SAMPLES:
            raise ValueError(f"{len(samples)} samples are not 20 ms")
        room = ctypes.create_string_buffer(1275)
        count = self._opus.opus_encode(
            self._state, np.ascontiguousarray(samples).ctypes.data, _FRAME_SAMPLES, room, len(room)
        )
        assert count > 0, count
        return room.raw[:count]


class OpusWindows:
    """A leg's packets, by position, until their window is due, and the decoded samples after the latest window."""

    __slots__ = ("_at", "_decoder", "_packet_end", "_rest", "_waiting", "damaged")

    def __init__(self) -> None:
        self._decoder = OpusDecoder()
        self._waiting: list[tuple[int, bytes, int]] = []
        """(position, packet, positions), ascending. It is bounded, because the timeline refuses audio too far ahead."""
        self._at = 0
        """The position up to which samples exist, where `_rest` ends."""
        self._packet_end = 0
        """The end position of the latest packet."""
        self._rest = np.empty(0, np.int16)
        self.damaged = 0

    def insert(self, position: int, packet: OpusPacket) -> None:
        insort(self._waiting, (position, packet.data, len(packet)))

    def fill(self, start: int, stop: int, window: NDArray[np.int16]) -> None:
        """Fill `window`, which is zero, with [start, stop), two samples per position; windows must come in order."""
        pieces = [(self._at - len(self._rest) // 2, self._rest)]
        self._at = max(self._at, start)
        while self._at < stop and self._waiting:
            position, packet, size = self._waiting[0]
            if position > self._at:
                if position - size >= stop:
                    break  # its redundancy does not reach back to this window
                pieces += self._bridge(position, packet, size)
            self._waiting.pop(0)
            self._add(pieces, self._decoded(packet, size), position)
        _lay(pieces, start, window)
        self._rest = np.zeros(2 * max(0, self._at - stop), np.int16)
        _lay(pieces, stop, self._rest)

    def _add(self, pieces: list[Piece], samples: NDArray[np.int16], position: int) -> None:
        """Add samples that begin at `position`, except those for positions that are filled already."""
        cut = max(0, self._at - position)
        if 2 * cut < len(samples):
            pieces.append((position + cut, samples[2 * cut :]))
            self._at = self._packet_end = position + len(samples) // 2

    def _bridge(self, position: int, packet: bytes, size: int) -> list[Piece]:
        """The samples that replace the missing audio before `packet`, which begins at `position`."""
        missing, self._at = position - self._at, position
        known = min(size, missing) // _STEP * _STEP
        blind = (missing - known) // _STEP * _STEP
        pieces = []
        if blind and position - self._packet_end <= _CONCEALED + known:
            pieces.append((position - known - blind, self._decoder.conceal(blind)))
        if known:
            pieces.append((position - known, self._decoder.before(packet, known)))
        return pieces

    def _decoded(self, packet: bytes, size: int) -> NDArray[np.int16]:
        try:
            return self._decoder.decode(packet)
        except OpusError:
            self.damaged += 1
            return np.zeros(2 * size, np.int16)


def _lay(pieces: list[Piece], start: int, out: NDArray[np.int16]) -> None:
    """Copy the parts of the pieces that lie in `out`, which begins at `start`."""
    for begin, samples in pieces:
        skip, into = 2 * max(0, start - begin), 2 * max(0, begin - start)
        part = samples[skip : skip + max(0, len(out) - into)]
        out[into : into + len(part)] = part


@cache
def _library() -> ctypes.CDLL:
    """Load libopus. Raises OSError. PyDLL keeps the interpreter's lock, since a call takes microseconds only."""
    try:
        library = ctypes.PyDLL("libopus.so.0")
    except OSError:
        library = ctypes.PyDLL(ctypes.util.find_library("opus") or "libopus.so")
    int32, pointer = ctypes.c_int32, ctypes.c_void_p
    for name, result, arguments in (
        ("opus_decoder_create", pointer, (int32, ctypes.c_int, pointer)),
        ("opus_decoder_destroy", None, (pointer,)),
        ("opus_decode", ctypes.c_int, (pointer, ctypes.c_char_p, int32, pointer, ctypes.c_int, ctypes.c_int)),
        ("opus_encoder_create", pointer, (int32, ctypes.c_int, ctypes.c_int, pointer)),
        ("opus_encoder_destroy", None, (pointer,)),
        ("opus_encode", int32, (pointer, pointer, ctypes.c_int, pointer, int32)),
        ("opus_packet_get_nb_samples", ctypes.c_int, (ctypes.c_char_p, int32, int32)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
