"""The sound of an entity: recorded clips joined with natural pauses, or the speech of a synthesiser.

Flite says English at 8 kHz. For the other languages Debian has espeak-ng alone, of whose consonants too little is left
at 8 kHz: what it says is at 16 kHz.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from benchmarks.entities.sets import RECORDED, SEED, Entity
from mediaworker.calls.sound import read_wav, resampled
from mediaworker.cli.play import load_pcm

_CLIP_HZ = 8000
SOUNDS = Path("/usr/share/asterisk/sounds")
VOICES = {"en": "en_US_f_Allison", "es": "es_MX_f_Allison", "fr": "fr_CA_f_June", "it": "it_IT_m_Carlo"}
SYNTHESIS = {"en": "rms", "es": "es+m3", "fr": "fr-fr+m3", "de": "de+m3", "it": "it+m3"}
"""The voice of Flite for English, and those of espeak-ng."""
SPEED = 150
"""Words a minute, as somebody says what another one writes down."""
LEAD_S, TAIL_S = 0.3, 0.5
"""Silence before and behind, as an utterance of a call has it."""
BETWEEN_S = (0.04, 0.12)
"""The pause between two clips; digits and letters are dictated one by one, words of a number follow at once."""
DICTATED_S = (0.12, 0.28)
GROUP_S = (0.35, 0.55)
QUIET = 0.02
"""The part of a clip's loudest sample below which its ends are cut off."""
_NOT_SAID = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")
_MISTYPED = {"cient": "cien", "centinaia": "cento", "migliaia": "mila", "h-80": "quatre-vingtième"}


class NoSpeech(Exception):
    """There is nothing to say it with; the message says what to install."""


def missing(languages: tuple[str, ...]) -> list[str]:
    """The Debian packages that are missing for these languages."""
    lacking = [name for name in ("flite", "espeak-ng") if shutil.which(name) is None]
    for language in languages:
        if language in RECORDED and not (SOUNDS / VOICES[language] / "digits" / "0.wav").exists():
            lacking.append(f"asterisk-core-sounds-{language}-wav")
    return lacking


def voice(entity: Entity) -> str:
    """Who says it."""
    return "recorded" if entity.recorded else "flite" if entity.language == "en" else "espeak-ng"


def rate_hz(entity: Entity) -> int:
    return 16000 if voice(entity) == "espeak-ng" else 8000


def said(entity: Entity) -> str:
    """The text as it is said."""
    if not entity.recorded:
        return entity.text
    texts = _texts(entity.language)
    return " ".join(texts.get(each.lower(), each.rpartition("/")[2]) for each in entity.clips if each != "|")


def sound(entity: Entity) -> NDArray[np.int16]:
    """Shape (n,), at `rate_hz(entity)`; always the same."""
    samples = _joined(entity) if entity.recorded else _synthesised(entity)
    lead, tail = (np.zeros(round(rate_hz(entity) * each), np.int16) for each in (LEAD_S, TAIL_S))
    return np.concatenate([lead, samples, tail])


def _joined(entity: Entity) -> NDArray[np.int16]:
    random = Random(f"{SEED} {entity.language} {' '.join(entity.clips)}")
    pause_s = DICTATED_S if entity.kind in ("digits", "spelled name", "e-mail") else BETWEEN_S
    parts: list[NDArray[np.int16]] = []
    for at, name in enumerate(entity.clips):
        if name == "|":
            continue
        if at:
            silence_s = random.uniform(*(GROUP_S if entity.clips[at - 1] == "|" else pause_s))
            parts.append(np.zeros(round(_CLIP_HZ * silence_s), np.int16))
        parts.append(_clip(entity.language, name))
    return np.concatenate(parts)


@cache
def _clip(language: str, name: str) -> NDArray[np.int16]:
    """A recorded clip without the silence at its ends."""
    samples = load_pcm(SOUNDS / VOICES[language] / f"{name}.wav", _CLIP_HZ)
    loud = np.flatnonzero(np.abs(samples) > QUIET * np.abs(samples).max())
    margin = _CLIP_HZ // 50
    return samples[max(0, loud[0] - margin) : loud[-1] + margin]


def _synthesised(entity: Entity) -> NDArray[np.int16]:
    name = SYNTHESIS[entity.language]
    if voice(entity) == "flite":
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            subprocess.run(["flite", "-voice", name, "-t", entity.text, "-o", file.name], check=True)
            samples, from_hz = read_wav(file.file)
    else:
        command = ["espeak-ng", "-v", name, "-s", str(SPEED), "--stdout", entity.text]
        done = subprocess.run(command, capture_output=True, check=True)
        samples, from_hz = read_wav(io.BytesIO(_sized(done.stdout)))
    return resampled(samples, from_hz, rate_hz(entity))


def _sized(wav: bytes) -> bytes:
    """The WAV with its true lengths: on a pipe espeak-ng cannot know them when it writes the header."""
    data = len(wav) - 44
    return wav[:4] + (36 + data).to_bytes(4, "little") + wav[8:40] + data.to_bytes(4, "little") + wav[44:]


@cache
def _texts(language: str) -> dict[str, str]:
    """By clip, its text, of the list in its package."""
    found: dict[str, str] = {}
    path = Path(f"/usr/share/doc/asterisk-core-sounds-{language}/core-sounds-{language}.txt.gz")
    for line in gzip.open(path, "rt", encoding="utf-8", errors="replace"):
        name, _, text = line.partition(":")
        words = " ".join(_NOT_SAID.sub("", text).split())
        found.setdefault(name.strip().lower(), _MISTYPED.get(words, words))
    return found | ({"digits/dollars": "dollars"} if language == "fr" else {})
