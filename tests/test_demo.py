"""What the demo plays, and how it counts what came out of it."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts import prompts
from scripts.demo import STREAM, plain, word_errors

WORDS = st.lists(st.sampled_from(["one", "two", "three"]), max_size=6)


@pytest.mark.parametrize(
    ("said", "heard", "wrong"),
    [
        ("Press one, please.", "press 1 please", 0),
        ("Weasels have eaten our phone system.", "Weasels have eaten our foam system.", 1),
        ("that's not valid", "but that’s not a valid", 2),
        ("Goodbye.", "", 1),
        ("", "six to six to", 4),
    ],
)
def test_wrong_words_are_counted_as_people_do(said: str, heard: str, wrong: int) -> None:
    assert word_errors(plain(said), plain(heard)) == wrong


@given(WORDS, WORDS, WORDS)
def test_word_errors_are_a_distance(one: list[str], two: list[str], three: list[str]) -> None:
    assert (word_errors(one, two) == 0) == (one == two)
    assert word_errors(one, two) == word_errors(two, one) <= max(len(one), len(two))
    assert word_errors(one, three) <= word_errors(one, two) + word_errors(two, three)


def test_one_speaks_while_the_other_is_silent(tmp_path: Path) -> None:
    sound = {}
    for speaker, path in prompts.tracks(STREAM, tmp_path).items():
        with wave.open(str(path)) as file:
            sound[speaker] = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    assert sound.keys() == prompts.words(STREAM).keys() == {"inbound", "outbound"}
    assert len(sound["inbound"]) == len(sound["outbound"])
    assert not np.any((sound["inbound"] != 0) & (sound["outbound"] != 0)) and all(map(np.any, sound.values()))
