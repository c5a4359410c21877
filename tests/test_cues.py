"""Finals as subtitles: short lines, cut where people pause, and nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mediaworker.api.cues import LINE, LONGEST_MS, Cue, cues, width
from mediaworker.events.schema import Word


def timed(text: str, *, every_ms: int = 300, pause: str = "") -> list[Word]:
    """Its words without punctuation, of 250 ms each; `pause`: a word behind which there is one."""
    words, at = [], 1000
    for part in text.split():
        bare = part.strip(".,?!()“”\"'")
        if bare:
            words.append(Word(bare, at, at + 250))
            at += every_ms + 900 * (bare == pause)
    return words


def lines(text: str, **options: int) -> list[tuple[str, ...]]:
    return [cue.lines for cue in cues(text, timed(text), **options)]


def test_what_fits_stays_one_cue() -> None:
    assert cues("Good morning.", timed("Good morning.")) == [Cue(1000, 2000, ("Good morning.",))]


def test_two_lines_are_cut_at_punctuation_or_in_the_middle() -> None:
    assert lines("I have called about the letter, which came on Tuesday.") == [
        ("I have called about the letter,", "which came on Tuesday.")
    ]
    assert lines("my number is four seven one two nine oh five three eight") == [
        ("my number is four seven one", "two nine oh five three eight")
    ]


def test_a_long_final_is_cut_at_sentences_then_pauses_then_commas() -> None:
    sentences = "We looked at your account this morning. The payment was made on Friday, and it has not arrived yet."
    first, second = cues(sentences, timed(sentences))
    assert " ".join(first.lines).endswith("this morning.") and second.lines[0].startswith("The payment")
    assert first.end_ms <= second.start_ms
    plain = "we looked at your account this morning the payment was made on friday and it has not arrived yet"
    assert " ".join(cues(plain, timed(plain, pause="morning"))[0].lines).endswith("morning")
    comma = plain.replace("morning", "morning,")
    assert " ".join(cues(comma, timed(comma))[0].lines).endswith("morning,")


def test_brackets_and_quotes_stay_with_their_word() -> None:
    text = "She said “" + "no, " * 20 + "never” (twice)."
    shown = [line for cue in lines(text) for line in cue]
    assert not any(line.startswith((",", "”", ".")) or line.endswith(("“", "(")) for line in shown)


def test_wide_characters_take_two_columns() -> None:
    text = "我们今天早上看了您的账户，付款是在星期五完成的，但是钱还没有到。请您再等两天，然后给我们打电话。"
    words = [Word(each, 250 * at, 250 * at + 200) for at, each in enumerate(text) if each not in "，。"]
    found = cues(text, words)
    assert "".join("".join(cue.lines) for cue in found) == text and len(found) > 1
    assert all(width(line) <= LINE for cue in found for line in cue.lines)


def test_the_name_of_the_speaker_takes_its_place() -> None:
    text = "I have called about the letter, which came here on Tuesday."
    assert len(lines(text)) == 1
    (first, _), *_ = lines(text, indent=20)
    assert len(first) <= LINE - 20


def test_words_that_are_not_those_of_the_text_cut_nothing() -> None:
    assert cues("good morning", [Word("evening", 0, 1)]) == [] and cues("good morning", []) == []


PARTS = st.lists(st.sampled_from(["a", "word", "and,", "(why", "not)", "end.", "“so”", "x" * 60, "说"]), min_size=1)


@given(PARTS, st.integers(260, 1500), st.integers(0, 21))
def test_every_word_once_in_order_in_two_short_lines(parts: list[str], every_ms: int, indent: int) -> None:
    text = " ".join(parts)
    found = cues(text, timed(text, every_ms=every_ms), indent=indent)
    assert " ".join(line for cue in found for line in cue.lines) == text
    for cue, after in zip(found, [*found[1:], None], strict=True):
        assert cue.start_ms < cue.end_ms <= (after.start_ms if after else cue.end_ms)
        words = " ".join(cue.lines).split()
        assert len(words) == 1 or cue.end_ms - cue.start_ms <= LONGEST_MS
        assert 1 <= len(cue.lines) <= 2
        for number, line in enumerate(cue.lines):
            assert width(line) <= LINE - indent * (number == 0) or len(line.split()) == 1
