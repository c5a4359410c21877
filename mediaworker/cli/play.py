"""Reads a sound file as the samples that a test phone plays."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from audio.g711 import alaw_decode, ulaw_decode

RAW_RATES = {
    ".ul": 8000,
    ".ulaw": 8000,
    ".mulaw": 8000,
    ".al": 8000,
    ".alaw": 8000,
    ".sln": 8000,
    ".sln16": 16000,
    ".g722": 16000,
}
"""Headerless files by suffix, with their sample rate: G.711, Asterisk's signed linear, and G.722 at 64 kbit/s."""


class PlayError(Exception):
    """The user's file cannot be played; the message is one line."""


def load_pcm(path: str | Path, rate_hz: int) -> NDArray[np.int16]:
    """The file's samples, mono, shape (n,), at `rate_hz`.

    WAV holds PCM of 8, 16, 24 or 32 bits, its channels are averaged; other formats are told by their suffix.

    Raises:
        PlayError: no such file, or nothing that can be read.
    """
    path = Path(path)
    try:
        samples, from_hz = _load_raw(path) if path.suffix.lower() in RAW_RATES else _load_wav(path)
    except OSError as error:
        raise PlayError(f"{path}: {error.strerror or error}") from None
    if not len(samples):
        raise PlayError(f"{path}: no audio in it")
    if from_hz == rate_hz:
        return samples
    resampled: NDArray[np.int16] = soxr.resample(samples, from_hz, rate_hz, quality="HQ")
    return resampled


def _load_wav(path: Path) -> tuple[NDArray[np.int16], int]:
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate_hz = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    # RuntimeError is what the standard library makes of a chunk that claims to be longer than the file.
    except (wave.Error, EOFError, RuntimeError) as error:
        known = " ".join(RAW_RATES)
        reason = str(error) or "cut off"
        raise PlayError(f"{path}: not a PCM WAV file ({reason}); raw files are known by suffix: {known}") from None
    if not 1 <= rate_hz <= 384000 or width > 4:
        raise PlayError(f"{path}: {8 * width} bits at {rate_hz} Hz cannot be played")
    data = data[: len(data) // (width * channels) * width * channels]
    wide = _to_int32(data, width).reshape(-1, channels)
    # Mean in 64 bits, then the upper 16: the sum of two full-scale channels does not wrap.
    return (wide.sum(axis=1, dtype=np.int64) // channels >> 16).astype(np.int16), rate_hz


def _to_int32(data: bytes, width: int) -> NDArray[np.int32]:
    """Little-endian PCM of `width` bytes a sample, left-aligned in 32 bits. 8-bit WAV is unsigned."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.int32) - 128) << 24
    padded = np.zeros((len(data) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return padded.view("<i4").reshape(-1).astype(np.int32)


def _load_raw(path: Path) -> tuple[NDArray[np.int16], int]:
    data, suffix = path.read_bytes(), path.suffix.lower()
    match suffix:
        case ".ul" | ".ulaw" | ".mulaw":
            samples = ulaw_decode(data)
        case ".al" | ".alaw":
            samples = alaw_decode(data)
        case ".g722":
            from G722 import G722  # only for such a file

            samples = np.array(G722(16000, 64000).decode(data), np.int16)
        case _:
            samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2")
    return np.asarray(samples, np.int16), RAW_RATES[suffix]
