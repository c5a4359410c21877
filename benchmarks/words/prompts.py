"""What is played, and what is said in it: Asterisk's recorded prompts, or somebody's own recordings."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.word_errors.normalise import words
from mediaworker.cli.play import load_pcm

SOUNDS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
TEXTS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
PACKAGES = "asterisk-core-sounds-en-wav asterisk-core-sounds-en-g722"
SPELT = ("digits/", "letters/", "phonetic/")
"""Single letters and numerals."""
MIN_WORDS, MIN_S = 2, 1.0
_NOT_SAID = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")
_MISTYPED = {
    "represenatives": "representatives", "umute": "unmute", "Un-indentified": "Unidentified", "witheld": "withheld",
}  # fmt: skip
"""In the list of texts; the speaker says it right."""


class NoPrompts(Exception):
    """There is nothing to play; the message says what to install or to put where."""


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str
    narrow: Path
    """As a telephone at 8 kHz has it."""
    wide: Path
    """At 16 kHz; own recordings have one file for both."""

    @property
    def said(self) -> list[str]:
        return words(self.text)

    def samples(self, rate_hz: int) -> NDArray[np.int16]:
        return load_pcm(self.narrow if rate_hz == 8000 else self.wide, rate_hz)

    @cached_property
    def length_s(self) -> float:
        return len(self.samples(8000)) / 8000


def recorded(*, short: bool = False) -> list[Prompt]:
    """Asterisk's English core sounds, by name: those of two words and a second at least, or `short` ones as well.

    Raises NoPrompts.
    """
    if not TEXTS.exists():
        raise NoPrompts(f"{TEXTS} is missing: apt-get install {PACKAGES}")
    found = []
    for line in gzip.open(TEXTS, "rt", encoding="utf-8", errors="replace"):
        name, _, text = line.partition(":")
        if line.startswith((";", *SPELT)):
            continue
        text = " ".join(_MISTYPED.get(word, word) for word in _NOT_SAID.sub("", text).split())
        prompt = Prompt(name.strip(), text, SOUNDS / f"{name.strip()}.wav", SOUNDS / f"{name.strip()}.g722")
        if len(text.split()) >= (1 if short else MIN_WORDS) and prompt.narrow.exists() and prompt.wide.exists():
            found.append(prompt)
    found = [prompt for prompt in found if short or prompt.length_s >= MIN_S]
    if not found:
        raise NoPrompts(f"no recorded prompt in {SOUNDS}: apt-get install {PACKAGES}")
    return sorted(found, key=lambda prompt: prompt.name)


def own(folder: Path) -> list[Prompt]:
    """The recordings of a folder, each with a `.txt` of the same name beside it. Raises NoPrompts."""
    texts = sorted(folder.glob("*.txt"))
    found = []
    for text in texts:
        sound = next((path for path in sorted(folder.glob(f"{text.stem}.*")) if path.suffix != ".txt"), None)
        if sound is not None and words(said := text.read_text(encoding="utf-8")):
            found.append(Prompt(text.stem, " ".join(said.split()), sound, sound))
    if not found:
        raise NoPrompts(f"{folder}: no recording with what is said in a .txt beside it")
    return found


def sample(prompts: Sequence[Prompt], share: float) -> list[Prompt]:
    """So large a part of them, short and long ones alike; always the same."""
    by_length = sorted(prompts, key=lambda prompt: (prompt.length_s, prompt.name))
    every = max(1, round(1 / share))
    return sorted(by_length[every // 2 :: every], key=lambda prompt: prompt.name)
