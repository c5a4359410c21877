"""What is played, and what is said in it: Asterisk's prompts, synthesised speech, or somebody's own recordings."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.word_errors.normalise import words
from mediaworker.cli.play import load_pcm

VOICES = {
    "en": "en_US_f_Allison", "es": "es_MX_f_Allison", "fr": "fr_CA_f_June", "it": "it_IT_m_Carlo",
    "ru": "ru_RU_f_IvrvoiceRU",
}  # fmt: skip
"""Folders of Debian's packages asterisk-core-sounds-*; the Spanish voice seems to be the English one."""
SYNTHESISED = {"de": ("de", "de+klatt4", "de+klatt")}
"""Languages for which there are no prompts: the voices of espeak-ng that take turns."""
LANGUAGES = (*VOICES, *SYNTHESISED)
SOUNDS = Path("/usr/share/asterisk/sounds")
MENDED = Path(__file__).parent / "mended"
SENTENCES = Path(__file__).parent / "sentences"
SPELT = ("digits/", "letters/", "phonetic/")
"""Single letters and numerals."""
MIN_WORDS, MIN_S = 2, 1.0
_NOT_SAID = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")


class NoPrompts(Exception):
    """There is nothing to play; the message says what to install or to put where."""


@dataclass(frozen=True)
class Prompt:
    name: str
    text: str
    """As printed, with misspelt words put right."""
    narrow: Path
    """As a telephone at 8 kHz has it."""
    wide: Path
    """At 16 kHz; own recordings have one file for both."""
    language: str = "en"
    mended: str = ""
    """What is really said, where that is another text."""

    @property
    def said(self) -> list[str]:
        return words(self.text, self.language)

    def samples(self, rate_hz: int) -> NDArray[np.int16]:
        return load_pcm(self.narrow if rate_hz == 8000 else self.wide, rate_hz)

    @cached_property
    def length_s(self) -> float:
        return len(self.samples(8000)) / 8000


@dataclass(frozen=True)
class Mended:
    """What is known of a language's list of texts: `mended/LANGUAGE.toml`."""

    spelling: dict[str, str]
    """Words and phrases that the list misspells and the speaker says right."""
    said: dict[str, str]
    """By prompt: what is said instead of its text."""

    def spelt(self, text: str) -> str:
        return self._misspelt.sub(lambda found: self.spelling[found[0].lower()], text) if self.spelling else text

    @cached_property
    def _misspelt(self) -> re.Pattern[str]:
        longest_first = "|".join(map(re.escape, sorted(self.spelling, key=len, reverse=True)))
        return re.compile(rf"(?<!\w)(?:{longest_first})(?!\w)", re.IGNORECASE)


def mended(language: str) -> Mended:
    path = MENDED / f"{language}.toml"
    if not path.exists():
        return Mended({}, {})
    with path.open("rb") as file:
        found = tomllib.load(file)
    return Mended(found["spelling"], found.get("said", {}))


def texts(language: str) -> dict[str, str]:
    """The texts of all recordings of words, as the package prints them, by name. Raises NoPrompts."""
    path = Path(f"/usr/share/doc/asterisk-core-sounds-{language}/core-sounds-{language}.txt.gz")
    if not path.exists():
        raise NoPrompts(f"{path} is missing: apt-get install {packages(language)}")
    found = {}
    with gzip.open(path, "rt", encoding="utf-8-sig", errors="replace") as lines:
        for line in lines:
            name, _, text = line.partition(":")
            if not line.startswith((";", *SPELT)):
                found[name.strip()] = " ".join(_NOT_SAID.sub("", text).split())
    return found


def recorded(language: str = "en", *, short: bool = False) -> list[Prompt]:
    """Asterisk's core sounds, by name: those of two words and a second at least, or `short` ones as well.

    Raises NoPrompts.
    """
    known, sounds, found = mended(language), SOUNDS / VOICES[language], []
    for name, text in texts(language).items():
        prompt = Prompt(
            name, known.spelt(text), sounds / f"{name}.wav", sounds / f"{name}.g722", language, known.said.get(name, "")
        )
        if len(text.split()) >= (1 if short else MIN_WORDS) and prompt.narrow.exists() and prompt.wide.exists():
            found.append(prompt)
    found = [prompt for prompt in found if short or prompt.length_s >= MIN_S]
    if not found:
        raise NoPrompts(f"no recorded prompt in {sounds}: apt-get install {packages(language)}")
    return sorted(found, key=lambda prompt: prompt.name)


def packages(language: str) -> str:
    """What Debian calls the recordings of a language and their texts."""
    name = f"asterisk-core-sounds-{language}"
    return f"{name} {name}-wav {name}-g722"


def synthesised(language: str, folder: Path) -> list[Prompt]:
    """The sentences of `sentences/LANGUAGE.txt`, spoken by espeak-ng into the folder. Raises NoPrompts."""
    if shutil.which("espeak-ng") is None:
        raise NoPrompts("espeak-ng is missing: apt-get install espeak-ng")
    found = []
    for number, line in enumerate((SENTENCES / f"{language}.txt").read_text(encoding="utf-8").splitlines()):
        voices, path = SYNTHESISED[language], folder / f"{language}-{number:02}.wav"
        subprocess.run(["espeak-ng", "-v", voices[number % len(voices)], "-w", path, line], check=True)
        found.append(Prompt(path.stem, line, path, path, language))
    return found


def own(folder: Path, language: str = "en") -> list[Prompt]:
    """The recordings of a folder, each with a `.txt` of the same name beside it. Raises NoPrompts."""
    texts = sorted(folder.glob("*.txt"))
    found = []
    for text in texts:
        sound = next((path for path in sorted(folder.glob(f"{text.stem}.*")) if path.suffix != ".txt"), None)
        if sound is not None and words(said := text.read_text(encoding="utf-8"), language):
            found.append(Prompt(text.stem, " ".join(said.split()), sound, sound, language))
    if not found:
        raise NoPrompts(f"{folder}: no recording with what is said in a .txt beside it")
    return found


def sample(prompts: Sequence[Prompt], share: float) -> list[Prompt]:
    """So large a part of them, short and long ones alike; always the same."""
    by_length = sorted(prompts, key=lambda prompt: (prompt.length_s, prompt.name))
    every = max(1, round(1 / share))
    return sorted(by_length[every // 2 :: every], key=lambda prompt: prompt.name)
