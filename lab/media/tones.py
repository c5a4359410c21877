"""Sine tones, and samples as a WAV file."""

from __future__ import annotations

import io
import wave

import numpy as np


def wav(samples: np.ndarray, rate_hz: int = 8000, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(width)
        opened.setframerate(rate_hz)
        opened.writeframes(samples.tobytes())
    return file.getvalue()


def tone(rate_hz: int, seconds: float = 0.5) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * 440 * np.arange(round(rate_hz * seconds)) / rate_hz)).astype(np.int16)
