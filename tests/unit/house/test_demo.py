"""What the demo plays."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from tools import prompts
from tools.conversations import CONVERSATIONS

LANGUAGES = [language for language, talk in CONVERSATIONS.items() if talk.voice.sounds.exists()]
"""English is everywhere; the recordings of another language where somebody has installed them."""


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_speaks_while_the_other_is_silent(language: str, tmp_path: Path) -> None:
    talk, sound = CONVERSATIONS[language], {}
    for speaker, path in prompts.tracks(talk.stream, tmp_path, talk.voice).items():
        with wave.open(str(path)) as file:
            sound[speaker] = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    assert sound.keys() == prompts.words(talk.stream, talk.voice).keys() == {"inbound", "outbound"}
    assert len(sound["inbound"]) == len(sound["outbound"])
    assert not np.any((sound["inbound"] != 0) & (sound["outbound"] != 0)) and all(map(np.any, sound.values()))
    assert prompts.words(talk.call, talk.voice).keys() == {"main"}
    assert prompts.wideband(talk.call, tmp_path / "call.g722", talk.voice).stat().st_size > 8000


@pytest.mark.parametrize("language", CONVERSATIONS)
def test_every_prompt_is_played_once(language: str) -> None:
    talk = CONVERSATIONS[language]
    names = [name for _, name in (*talk.call, *talk.stream)]
    assert len(names) == len(set(names)) and set(names) == set(talk.voice.words)
