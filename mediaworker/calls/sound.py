"""Sounds that are played to a peer: the player's interface, the reader for short PCM WAV files, and the telephone
formats without a header."""

from __future__ import annotations

import wave
from collections.abc import Callable
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from mediaworker.errors import MediaworkerError

Samples = NDArray[np.int16]
MAX_RATE_HZ = 384_000
RAW = {
    ".ul": ("mulaw", 8000), ".ulw": ("mulaw", 8000), ".ulaw": ("mulaw", 8000), ".mulaw": ("mulaw", 8000),
    ".mu": ("mulaw", 8000), ".pcmu": ("mulaw", 8000),
    ".al": ("alaw", 8000), ".alw": ("alaw", 8000), ".alaw": ("alaw", 8000), ".pcma": ("alaw", 8000),
    ".sln": ("s16le", 8000), ".sln12": ("s16le", 12000), ".sln16": ("s16le", 16000), ".sln24": ("s16le", 24000),
    ".sln32": ("s16le", 32000), ".sln44": ("s16le", 44100), ".sln48": ("s16le", 48000), ".sln96": ("s16le", 96000),
    ".sln192": ("s16le", 192000), ".g722": ("g722", 16000),
}  # fmt: skip
"""Telephone audio without a header: the file's suffix → FFmpeg's name of the format, and the sample rate."""


class Player(Protocol):
    """Plays to the caller: µ-law at 8 kHz."""

    clears: int
    """How often `clear` was called."""
    on_silent: Callable[[], None]
    """Called when the queue has become empty: everything has been played, or `clear` dropped it."""

    @property
    def playing(self) -> bool:
        """Whether the peer has not yet confirmed the playback of everything queued."""

    @property
    def left_s(self) -> float:
        """How long the rest takes to play, estimated by the clock."""

    def play(self, codes: bytes, mark: str = "") -> bool:
        """Queue audio; returns False when the queue is full. `mark` names the end of this audio in events."""

    def clear(self) -> None:
        """Drop the audio that has not been played."""


class SoundError(MediaworkerError):
    """The sound cannot be played; the message is one line."""


def read_wav(file: IO[bytes], *, max_s: float | None = None) -> tuple[Samples, int]:
    """(samples of shape (n,), their rate in Hz). 8, 16, 24 or 32 bits; channels are averaged.

    Raises SoundError. A sound longer than `max_s` is refused before more than that is read. The length in the header is
    only an upper bound, because a program that writes into a pipe does not know it.
    """
    try:
        with wave.open(file, "rb") as opened:
            width, channels, rate_hz = opened.getsampwidth(), opened.getnchannels(), opened.getframerate()
            limit = opened.getnframes() if max_s is None else int(max_s * rate_hz)
            data = opened.readframes(min(opened.getnframes(), limit + 1))
    # The standard library raises RuntimeError for a chunk that claims to be longer than the file.
    except (wave.Error, EOFError, RuntimeError) as error:
        raise SoundError(f"not a PCM WAV file ({str(error) or 'cut off'})") from None
    if not 1 <= rate_hz <= MAX_RATE_HZ or width > 4:
        raise SoundError(f"{8 * width} bits at {rate_hz} Hz cannot be played")
    if len(data) > limit * width * channels:
        raise SoundError(f"at most {max_s:g} s of sound")
    data = data[: len(data) // (width * channels) * width * channels]
    wide = _to_int32(data, width).reshape(-1, channels)
    # Mean in 64 bits, then the upper 16: the sum of two full-scale channels does not wrap.
    return (wide.sum(axis=1, dtype=np.int64) // channels >> 16).astype(np.int16), rate_hz


def resampled(samples: Samples, from_hz: int, rate_hz: int) -> Samples:
    if from_hz == rate_hz:
        return samples
    import soxr

    result: Samples = soxr.resample(samples, from_hz, rate_hz, quality="HQ")
    return result


def _to_int32(data: bytes, width: int) -> NDArray[np.int32]:
    """Little-endian PCM of `width` bytes a sample, left-aligned in 32 bits. 8-bit WAV is unsigned."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.int32) - 128) << 24
    padded = np.zeros((len(data) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return padded.view("<i4").reshape(-1).astype(np.int32)
