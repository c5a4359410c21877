"""How much sound Whisper is shown, how long its answer may be, and which answers say nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.speech import RATE_HZ
from asr.engines.whisper import answers

SAMPLES = st.integers(0, 30 * RATE_HZ)


@pytest.mark.parametrize(
    ("seconds", "frames"),
    [(0.4, 1000), (1, 1000), (8.9, 1000), (9, 1000), (9.01, 1002), (14.5, 1550), (15, 1600), (29, 3000), (30, 3000)],
)
def test_the_window_ends_a_second_behind_the_audio(seconds: float, frames: int) -> None:
    assert answers.window(round(seconds * RATE_HZ)) == frames


@given(SAMPLES)
def test_a_window_holds_the_audio_and_is_never_below_ten_seconds(samples: int) -> None:
    frames = answers.window(samples)
    assert answers.SHORTEST_FRAMES <= frames <= answers.LONGEST_FRAMES and frames % 2 == 0
    assert frames / 100 >= samples / RATE_HZ
    assert answers.window(samples + 1) >= frames


@given(SAMPLES, st.integers(3, 227))
def test_the_decoder_may_make_as_many_tokens_as_an_answer_may_have(samples: int, prompt: int) -> None:
    """CTranslate2 makes half of `max_length`, or what the prompt leaves of it; the decoder holds 448."""
    most = answers.max_length(samples, prompt)
    assert most <= answers.MOST_TOKENS
    assert max(most // 2, most - prompt) >= min(answers.longest(samples), answers.MOST_TOKENS - prompt)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("Press 1 to send it, or press 2. Press one to send it. Press one to send it.", False),
        ("Press one to send it. Press one to send it.", True),
        ("Press one to send it, Press one to send IT", True),
        ("no no no no", False),
        ("", False),
        ("one two three one two three", False),
    ],
)
def test_a_sentence_that_comes_twice_is_suspicious(text: str, twice: bool) -> None:
    assert answers.says_twice(text) is twice


@pytest.mark.parametrize(
    ("tokens", "likelihood", "no_speech", "nothing"),
    [
        (5, -0.3, 0.1, False),
        (0, -0.3, 0.1, False),
        (25, -0.3, 0.1, False),
        (26, -0.3, 0.1, True),
        (5, answers.UNLIKELY, answers.NO_SPEECH, False),
        (5, answers.UNLIKELY - 0.01, answers.DOUBTFUL, False),
        (5, answers.UNLIKELY - 0.01, answers.DOUBTFUL + 0.01, True),
        (5, answers.LIKELY - 0.01, answers.NO_SPEECH, False),
        (5, answers.LIKELY - 0.01, answers.NO_SPEECH + 0.01, True),
        (5, answers.LIKELY, 0.99, False),
    ],
)
def test_any_of_three_rules_says_that_nobody_spoke(
    tokens: int, likelihood: float, no_speech: float, nothing: bool
) -> None:
    """Two seconds: 26 tokens are as many as anybody speaks."""
    samples = 2 * RATE_HZ
    found = answers.says_nothing(tokens=tokens, samples=samples, likelihood=likelihood, no_speech=no_speech)
    assert answers.longest(samples) == 26 and found is nothing
