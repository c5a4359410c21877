"""What the tiny model learns from: speech with the place of its words, drawn from a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tools.train_tiny import espeak
from tools.train_tiny.utterances import CLEAN, Recipe, utterance
from tools.train_tiny.words import DIGITS, HELD_OUT_VOICES, TRAINING_VOICES, WORDS


def test_held_out_voices_are_in_no_training() -> None:
    assert not set(HELD_OUT_VOICES) & set(TRAINING_VOICES)
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize("separator", [" ", ", "])
@pytest.mark.parametrize("voice", ["en-us", "en-gb-scotland+f2", "en+m3"])
def test_every_word_has_its_place(voice: str, separator: str) -> None:
    speech = espeak.say(list(DIGITS), espeak.Speaker(voice), separator)
    assert len(speech.spans) == len(DIGITS)
    assert speech.spans[0][0] == 0 and speech.spans[-1][1] == speech.samples.size
    ends = 0
    for begin, end in speech.spans:
        assert ends <= begin < end
        assert 0.05 < (end - begin) / espeak.RATE_HZ < 0.8
        ends = end


def test_a_pause_belongs_to_no_word() -> None:
    close, apart = (espeak.say(["one", "two", "three"], espeak.Speaker("en-us", gap=gap)).spans for gap in (0, 20))
    assert apart[1][0] - apart[0][1] > close[1][0] - close[0][1] + 0.1 * espeak.RATE_HZ


def test_utterances_come_from_their_seed() -> None:
    one, again, other = (utterance(np.random.default_rng([7, i]), Recipe()) for i in (1, 1, 2))
    # espeak-ng's own phase goes on from phrase to phrase: a few milliseconds of difference.
    assert one.words == again.words != other.words
    assert abs(one.samples.size - again.samples.size) < 1600


def test_cut_audio_never_ends_where_a_word_is_in_doubt() -> None:
    cut = replace(CLEAN, cut=1.0, min_words=3)
    for seed in range(60):
        said = utterance(np.random.default_rng(seed), cut)
        assert [word for word, _, _ in said.heard[: len(said.words)]] == list(said.words)
        for _, begin, end in said.heard[len(said.words) :]:
            assert said.samples.size <= end - (end - begin) // 3 + 4
