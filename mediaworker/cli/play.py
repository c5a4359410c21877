"""The loader of sound files for the test phone, which plays their samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio.codecs.g711 import alaw_decode, ulaw_decode
from audio.codecs.g722 import G722Decoder
from mediaworker.calls.sound import RAW, SoundError, read_wav, resampled
from mediaworker.cli.terminal.output import UsageError


class PlayError(UsageError):
    """The user's file cannot be played; the message is one line."""


def load_pcm(path: str | Path, rate_hz: int) -> NDArray[np.int16]:
    """The file's samples, mono, shape (n,), at `rate_hz`.

    WAV files contain PCM of 8, 16, 24 or 32 bits, and their channels are averaged. The suffix tells other formats.

    Raises:
        PlayError: the file does not exist, or cannot be read as sound.
    """
    path = Path(path)
    try:
        if path.suffix.lower() in RAW:
            samples, from_hz = _load_raw(path)
        else:
            with path.open("rb") as file:
                samples, from_hz = read_wav(file)
    except SoundError as error:
        raise PlayError(f"{path}: {error}; raw files are known by suffix: {' '.join(RAW)}") from None
    except OSError as error:
        raise PlayError(f"{path}: {error.strerror or error}") from None
    if not len(samples):
        raise PlayError(f"{path}: no audio in it")
    return resampled(samples, from_hz, rate_hz)


def _load_raw(path: Path) -> tuple[NDArray[np.int16], int]:
    data, (format, rate_hz) = path.read_bytes(), RAW[path.suffix.lower()]
    match format:
        case "mulaw":
            samples = ulaw_decode(data)
        case "alaw":
            samples = alaw_decode(data)
        case "g722":
            samples = G722Decoder().decode(data)
        case _:
            samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.int16, copy=False)
    return samples, rate_hz
