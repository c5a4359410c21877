"""Recorded human speech for calls: prompts of Asterisk's core sounds, and the words that are said in them."""

from __future__ import annotations

import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.word_errors.prompts import SOUNDS, WORDS

PAUSE_S = 1.0
"""Between two prompts: longer than the silence that ends an utterance."""
RATE_HZ = 8000

Turns = Sequence[tuple[str, str]]
"""Who speaks, and which prompt, in the order in which they speak."""


@dataclass(frozen=True)
class Voice:
    sounds: Path
    """The folder of the recordings, 8 kHz and wideband."""
    words: Mapping[str, str]
    """What is said, by the prompt's name."""


ENGLISH = Voice(SOUNDS, WORDS)


def words(turns: Turns, voice: Voice = ENGLISH) -> dict[str, str]:
    """What each of the speakers says."""
    said: dict[str, list[str]] = {}
    for speaker, name in turns:
        said.setdefault(speaker, []).append(voice.words[name])
    return {speaker: " ".join(parts) for speaker, parts in said.items()}


def tracks(turns: Turns, folder: Path, voice: Voice = ENGLISH) -> dict[str, Path]:
    """A WAV file of 8 kHz for each speaker, all of one length: who does not speak is silent."""
    speakers = dict.fromkeys(speaker for speaker, _ in turns)
    sound = {speaker: bytearray() for speaker in speakers}
    pause = bytes(2 * int(RATE_HZ * PAUSE_S))
    for speaker, name in turns:
        with wave.open(str(voice.sounds / f"{name}.wav")) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE_HZ, 1, 2), name
            prompt = file.readframes(file.getnframes()) + pause
        for each in speakers:
            sound[each] += prompt if each == speaker else bytes(len(prompt))
    files = {speaker: folder / f"{speaker}.wav" for speaker in speakers}
    for speaker, path in files.items():
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(sound[speaker])
    return files


def wideband(turns: Turns, path: Path, voice: Voice = ENGLISH) -> Path:
    """A file of G.722 for one speaker. The codec has no header: prompts are joined by appending them."""
    from audio.codecs.g722 import G722Encoder

    silence = G722Encoder().encode(np.zeros(int(16000 * PAUSE_S), np.int16))
    path.write_bytes(b"".join((voice.sounds / f"{name}.g722").read_bytes() + silence for _, name in turns))
    return path
