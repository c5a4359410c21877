"""Reads a sound file as the samples that a test phone plays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio.codecs.g711 import alaw_decode, ulaw_decode
from mediaworker.calls.sound import SoundError, read_wav, resampled

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
    return resampled(samples, from_hz, rate_hz)


def _load_wav(path: Path) -> tuple[NDArray[np.int16], int]:
    with path.open("rb") as file:
        try:
            return read_wav(file)
        except SoundError as error:
            raise PlayError(f"{path}: {error}; raw files are known by suffix: {' '.join(RAW_RATES)}") from None


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
