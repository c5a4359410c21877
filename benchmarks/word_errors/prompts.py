"""Recorded speech and the words that are said in it, which models are checked with."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audio.codecs.g711 import ulaw_encode

SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
"""Of Debian's packages asterisk-core-sounds-en-wav (8 kHz) and -g722 (16 kHz)."""
WORDS = {
    "auth-thankyou": "Thank you.",
    "conf-onlyperson": "You are currently the only person in this conference.",
    "demo-thanks": "Goodbye. Thank you for trying out the Asterisk Open Source PBX.",
    "pbx-invalid": "I am sorry, that's not a valid extension. Please try again.",
    "privacy-prompt": "Please enter your phone number, starting with the area code.",
    "tt-somethingwrong": "Something is terribly wrong.",
    "vm-rec-name": "After the tone say your name and then press the pound key.",
}
"""As the package's documentation has them, which a container without documentation lacks."""


@dataclass(frozen=True, slots=True)
class SpokenPrompt:
    name: str
    audio: bytes
    """µ-law at 8 kHz."""
    said: str


def asterisk() -> list[SpokenPrompt]:
    """Those of Asterisk that are on this machine."""
    return [SpokenPrompt(name, _audio(SOUNDS / f"{name}.wav"), said) for name, said in WORDS.items() if _here(name)]


def _here(name: str) -> bool:
    return (SOUNDS / f"{name}.wav").is_file()


def of_folder(folder: Path) -> list[SpokenPrompt]:
    """NAME.wav (16 bits, mono, 8 kHz) or NAME.ulaw, each with its words in NAME.txt. Raises ValueError, OSError."""
    found = [path for path in sorted(folder.iterdir()) if path.suffix in (".wav", ".ulaw")]
    return [
        SpokenPrompt(path.stem, _audio(path), path.with_suffix(".txt").read_text(encoding="utf-8").strip())
        for path in found
    ]


def _audio(path: Path) -> bytes:
    if path.suffix == ".ulaw":
        return path.read_bytes()
    try:
        with wave.open(str(path)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (8000, 1, 2):
                raise ValueError(f"{path} is not 16 bits, mono, at 8 kHz")
            return bytes(ulaw_encode(np.frombuffer(file.readframes(file.getnframes()), np.int16)))
    except (wave.Error, EOFError):
        raise ValueError(f"{path} is no WAV file") from None
