"""Which language a leg is in: what its utterances show, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.whisper.belief import CHANGES, LEAST, SURE, Belief, likeliest, settled, updated

AMONG = ("en", "es", "fr", "de", "it")
CHANCES = st.floats(0, 1, allow_nan=False)
ODDS = st.dictionaries(st.sampled_from((*AMONG, "ja", "cy")), CHANCES)
SECONDS = st.floats(0.4, 60)


def clear(code: str, chance: float = 0.95) -> dict[str, float]:
    rest = (1 - chance) / (len(AMONG) - 1)
    return {each: chance if each == code else rest for each in AMONG}


def after(*heard: Mapping[str, float], seconds: float = 3.0, begin: Belief = ()) -> Belief:
    for odds in heard:
        begin = updated(begin, odds, AMONG, seconds)
    return begin


@given(st.lists(st.tuples(ODDS, SECONDS), max_size=8), st.lists(st.sampled_from(AMONG), min_size=1, unique=True))
def test_a_belief_is_about_the_possible_languages_and_its_parts_are_one(
    heard: Sequence[tuple[dict[str, float], float]], among: list[str]
) -> None:
    belief: Belief = ()
    for odds, seconds in heard:
        belief = updated(belief, odds, among, seconds)
        chances = [chance for _, chance in belief]
        assert belief and {code for code, _ in belief} <= set(among)
        assert sum(chances) == pytest.approx(1, abs=len(among) * (LEAST + 1e-4))
        assert chances == sorted(chances, reverse=True) and chances[-1] >= LEAST
        assert likeliest(belief) == belief[0][0] and settled(belief) in ("", belief[0][0])


@given(ODDS, ODDS, SECONDS, st.randoms(use_true_random=False))
def test_the_order_in_which_the_network_names_languages_means_nothing(
    first: dict[str, float], second: dict[str, float], seconds: float, random: object
) -> None:
    def mixed(odds: dict[str, float]) -> dict[str, float]:
        items = list(odds.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    assert after(first, second, seconds=seconds) == after(mixed(first), mixed(second), seconds=seconds)


@given(st.permutations(AMONG), SECONDS)
def test_the_order_of_the_languages_in_the_settings_means_nothing(among: list[str], seconds: float) -> None:
    odds = {"en": 0.4, "es": 0.3, "fr": 0.2, "de": 0.07, "it": 0.03}
    assert updated((), odds, among, seconds) == updated((), odds, AMONG, seconds)


@pytest.mark.parametrize("before", [1, 3, 20])
def test_a_change_of_the_language_is_followed_after_a_clear_sentence_or_two(before: int) -> None:
    belief = after(*[clear("en")] * before)
    assert settled(belief) == "en"
    once = after(clear("es", 0.99), begin=belief)
    assert likeliest(once) == "es"
    assert settled(after(clear("es", 0.99), begin=once)) == "es"


@pytest.mark.parametrize("doubtful", [{"es": 0.5, "en": 0.4}, {"es": 0.3, "fr": 0.3, "en": 0.2}, {}, {"ja": 1.0}])
def test_doubtful_sentences_change_nothing(doubtful: dict[str, float]) -> None:
    belief = after(clear("en"), clear("en"))
    for _ in range(3):
        belief = after(doubtful, begin=belief)
        assert likeliest(belief) == "en"


def test_a_short_word_counts_less() -> None:
    known = after(clear("en"))
    long, short = (after(clear("es", 0.8), begin=known, seconds=seconds) for seconds in (2.0, 0.4))
    assert dict(short)["en"] > dict(long)["en"] and likeliest(short) == "en"
    assert settled(after(clear("es", 0.8), seconds=0.4)) == "", "not the first word of a call either"


def test_nothing_is_known_before_and_one_language_needs_no_doubt() -> None:
    assert likeliest(()) == settled(()) == ""
    assert updated((), {"es": 1.0}, ("en",), 2.0) == (("en", 1.0),)
    assert after({}) == tuple((code, 0.2) for code in AMONG), "a network that names none of them shows nothing"
    assert SURE > 0.5 > CHANGES
