"""What is played: sounds that nobody speaks in, and recorded prompts and single words."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.words.calls import babble, level
from lab.media import nonspeech
from mediaworker.cli.play import load_pcm

R = 8000
SHORTEST_S, LONGEST_S = 0.4, 14.0
PROMPTS = Path("/usr/share/asterisk/sounds")
VOICES = {
    "en": "en_US_f_Allison", "es": "es_MX_f_Allison", "fr": "fr_CA_f_June", "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
}  # fmt: skip
"""Folders of Debian's packages asterisk-core-sounds-*-wav."""
MUSIC = Path("/usr/share/asterisk/moh")
SPOKEN = ("audio-channel", "_Center", "_Left", "_Right")
"""Parts of the names of files in which somebody says the name of a loudspeaker."""
NO_WORDS = ("beep", "tone", "monkeys", "confbridge-join", "confbridge-leave", "silence")
"""Parts of the names of prompts in which nobody speaks."""
EMPTY_BYTES = 1000
"""A Russian prompt has no samples."""
PIECES_S = (14.0, 6.0, 2.5, 1.0)
"""Hold music is cut into pieces of these lengths by turns, from here on in the file."""
FROM_S = 45.0
BABBLE_DB = 10.0


@dataclass(frozen=True)
class Clip:
    name: str
    kind: str
    codes: bytes
    """µ-law."""
    language: str = ""
    """Of speech."""


def sounds(folders: Sequence[Path]) -> list[Clip]:
    """Made by formula; hold music; and the recordings in these folders."""
    made = [Clip(name, "made by formula", nonspeech.codes(each)) for name, each in nonspeech.sounds().items()]
    return [*made, *_music(), *(clip for folder in folders for clip in _recordings(folder))]


def _music() -> Iterator[Clip]:
    lengths = cycle(PIECES_S)
    for path in sorted(MUSIC.glob("*.wav")):
        samples, at = read(path), round(FROM_S * R)
        for _ in PIECES_S:
            piece = samples[at : at + round(next(lengths) * R)]
            at += 2 * len(piece) + 3 * R
            if len(piece) >= SHORTEST_S * R:
                yield Clip(f"{path.stem} at {at / R:.0f} s", "hold music", nonspeech.codes(piece))


def _recordings(folder: Path) -> Iterator[Clip]:
    lengths = cycle((14.0, 5.0))
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".wav", ".oga", ".ogg") or any(part in path.name for part in SPOKEN):
            continue
        samples = read(path)[: round(next(lengths) * R)]
        if len(samples) >= SHORTEST_S * R:
            yield Clip(path.stem, "recorded sounds", nonspeech.codes(samples))


def read(path: Path) -> NDArray[np.float64]:
    """The samples of a file that FFmpeg reads, at 8 kHz."""
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-ac", "1", "-ar", str(R), "-f", "s16le", "-"]
    return np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, "<i2").astype(np.float64)


def speech(language: str, prompts: int, words: int) -> list[Clip]:
    """So many prompts and single words at most, as they are and in babble."""
    folder = PROMPTS / VOICES[language]
    files = (path for path in sorted(folder.glob("*.wav")) if path.stat().st_size > EMPTY_BYTES)
    whole = [path for path in files if not any(part in path.stem for part in NO_WORDS)]
    samples = {path: load_pcm(path, R).astype(np.float64) for path in whole}
    whole = [path for path in whole if R < len(samples[path]) <= LONGEST_S * R]
    spelt = [path for kind in ("digits", "letters", "phonetic") for path in sorted((folder / kind).glob("*.wav"))]
    random = np.random.default_rng(5)
    found = []
    for kind, paths in (("prompts", _spread(whole, prompts)), ("single words", _spread(spelt, words))):
        for path in paths:
            said = samples[path] if path in samples else load_pcm(path, R).astype(np.float64)
            if len(said) < SHORTEST_S * R:
                continue
            name = str(path.relative_to(folder).with_suffix(""))
            found.append(Clip(name, kind, nonspeech.codes(said), language))
            others = babble(len(said), R, [_Talk(samples[each]) for each in whole], random)  # type: ignore[arg-type]
            gain = level(said, R) / level(others, R) / 10 ** (BABBLE_DB / 20)
            found.append(Clip(name, f"{kind}, babble", nonspeech.codes(said + gain * others), language))
    return found


@dataclass(frozen=True)
class _Talk:
    said: NDArray[np.float64]

    def samples(self, rate_hz: int) -> NDArray[np.float64]:
        return self.said


def _spread(paths: list[Path], count: int) -> list[Path]:
    """So many of them, from all over the list: the middle ones of equal parts."""
    if len(paths) <= count:
        return paths
    return [paths[int((at + 0.5) * len(paths) / count)] for at in range(count)]
