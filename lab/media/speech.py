"""Recorded speech of Asterisk's prompts, which a Debian package brings."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

SPEECH = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
WORDS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")


def speech(name: str) -> np.ndarray:
    """A prompt's samples, int16 at 8 kHz."""
    with wave.open(str(SPEECH / f"{name}.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)
