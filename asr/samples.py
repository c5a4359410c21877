"""Decodes an utterance's bytes, and measures how loud they are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asr.utterance import BYTES_PER_S, Format
from audio.codecs.g711 import alaw_decode, ulaw_decode
from audio.resample import Upsampler

RATE_HZ: dict[Format, int] = {"PCMU": 8000, "PCMA": 8000, "L16": 16000}


def decode(format: Format, audio: bytes) -> npt.NDArray[np.int16]:
    """int16 samples, shape (n,), at `RATE_HZ[format]`. An odd byte at the end of L16 is left out."""
    if format == "PCMU":
        return ulaw_decode(audio)
    if format == "PCMA":
        return alaw_decode(audio)
    return np.frombuffer(audio, "<i2", len(audio) // 2).astype(np.int16, copy=False)


class Loudness:
    """RMS per 100 ms of an utterance, counted from its start, so that it does not depend on how the bytes arrive.

    Nothing is measured behind the first window that is as loud as `enough_dbfs`: no caller asks further.
    """

    __slots__ = ("_dbfs", "_enough_dbfs", "_format", "_pending", "_window_bytes")

    def __init__(self, format: Format, *, enough_dbfs: float = 0.0) -> None:
        self._format, self._enough_dbfs = format, enough_dbfs
        self._window_bytes = BYTES_PER_S[format] // 10
        self._pending: list[bytes] | None = []
        """None: what was measured is enough."""
        self._dbfs: list[float] = []

    def feed(self, audio: bytes) -> None:
        """Kept until somebody asks: audio comes in many small pieces."""
        if self._pending is not None:
            self._pending.append(audio)

    def _measure(self) -> None:
        if self._pending is None:
            return
        data = b"".join(self._pending)
        whole = len(data) // self._window_bytes * self._window_bytes
        self._pending = [data[whole:]]
        if whole:
            samples = decode(self._format, data[:whole]).astype(np.float64)
            power = (samples.reshape(whole // self._window_bytes, -1) ** 2).mean(axis=1) / 32768.0**2
            self._dbfs += (10.0 * np.log10(np.maximum(power, 1e-12))).tolist()
            if max(self._dbfs) >= self._enough_dbfs:
                self._pending = None

    def peak_dbfs(self, end: int) -> float:
        """The level of the loudest whole window in the first `end` bytes, as far as they were measured: 0 is full
        scale, -120 digital silence. 0 when there is no whole window: too little to judge by."""
        self._measure()
        return max(self._dbfs[: end // self._window_bytes], default=0.0)


class Wideband:
    """One stream of bytes in a format, as samples."""

    __slots__ = ("_format", "_rest", "_upsampler")

    def __init__(self, format: Format) -> None:
        self._format = format
        self._upsampler = Upsampler() if format != "L16" else None
        self._rest = b""

    def feed(self, data: bytes) -> npt.NDArray[np.float32]:
        """The samples of the next bytes: float32 in [-1, 1) at 16 kHz. Half of a sample waits for the other."""
        if self._upsampler is not None:
            return self._upsampler.feed(decode(self._format, data))
        data = self._rest + data
        whole = len(data) // 2 * 2
        self._rest = data[whole:]
        return decode("L16", data[:whole]).astype(np.float32) * np.float32(1 / 32768)
