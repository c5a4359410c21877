"""Long texts as subtitles: short lines, cut where people pause, long enough on the screen, and nothing lost."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mediaworker.events.schema import Word
from mediaworker.transcripts.subtitles.cues import GAP_MS, LINE, LONGEST_MS, SHORT, SHORTEST_MS, SPEED, Cue, cues
from mediaworker.transcripts.subtitles.places import _short, atoms, columns


def timed(text: str, *, every_ms: int = 300, pause: str = "", pause_ms: int = 900) -> list[Word]:
    """Its words without punctuation, of 250 ms each; `pause`: a word behind which there is one."""
    words, at = [], 1000
    for part in text.split():
        bare = part.strip(".,?!()“”\"'")
        if bare:
            words.append(Word(bare, at, at + 250))
            at += every_ms + pause_ms * (bare == pause)
    return words


def shown(text: str, *, indent: int = 0, every_ms: int = 300, pause: str = "", pause_ms: int = 900) -> list[Cue]:
    words = timed(text, every_ms=every_ms, pause=pause, pause_ms=pause_ms)
    return cues(text, words, 1000, words[-1].end_ms, indent=indent)


def lines(text: str, *, indent: int = 0) -> list[tuple[str, ...]]:
    return [cue.lines for cue in shown(text, indent=indent)]


def said(cue: Cue) -> str:
    return " ".join(cue.lines)


# -- where it is cut -------------------------------------------------------------------------------------------------


def test_what_fits_stays_one_cue() -> None:
    assert shown("Good morning.") == [Cue(1000, 2000, ("Good morning.",))]
    assert cues("Yes.", [], 0, 300) == [Cue(0, 1000, ("Yes.",))]
    assert cues(" \n ", [], 0, 300) == []


def test_two_lines_are_cut_at_punctuation_or_in_the_middle() -> None:
    assert lines("I have called about the letter, which came on Tuesday.") == [
        ("I have called about the letter,", "which came on Tuesday.")
    ]
    assert lines("my number is four seven one two nine oh five three eight") == [
        ("my number is four seven one", "two nine oh five three eight")
    ]


def test_a_long_final_is_cut_at_sentences_then_pauses_then_commas() -> None:
    sentences = "We looked at your account this morning. The payment was made on Friday, and it has not arrived yet."
    first, second = shown(sentences)
    assert said(first).endswith("this morning.") and second.lines[0].startswith("The payment")
    assert first.end_ms <= second.start_ms
    plain = "we looked at your account this morning the payment was made on friday and it has not arrived yet"
    assert said(shown(plain, pause="morning")[0]).endswith("morning")
    comma = plain.replace("morning", "morning,")
    assert said(shown(comma)[0]).endswith("morning,")
    assert said(shown(comma, pause="payment")[0]).endswith("payment"), "a pause is better than a comma"
    assert said(shown(sentences, pause="payment")[0]).endswith("morning."), "and a sentence better than a pause"


@pytest.mark.parametrize("name", ["Mr.", "Dr.", "J."])
def test_a_title_is_no_sentence(name: str) -> None:
    text = f"The first words that were ever heard through a wire were said to {name} Watson who stood in the other room"
    assert not any(line.endswith(name) for cue in shown(text) for line in cue.lines)


def test_no_cue_goes_on_over_a_long_silence() -> None:
    first, second = shown("I will see. It is here.", pause="see", pause_ms=3000)
    assert (first.lines, second.lines) == (("I will see.",), ("It is here.",))
    assert [said(cue) for cue in shown("so here is it", pause="so", pause_ms=3000)] == ["so", "here is it"]
    assert len(shown("I will see. It is here.", pause="see", pause_ms=500)) == 1


def test_brackets_and_quotes_stay_with_their_word() -> None:
    text = "She said “" + "no, " * 20 + "never” (twice)."
    every = [line for cue in shown(text) for line in cue.lines]
    assert not any(line.startswith((",", "”", ".")) or line.endswith(("“", "(")) for line in every)


@pytest.mark.parametrize("text", ["Il a dit « non » ! " * 9, "one - two – three ! " * 9, "- yes . " * 20])
def test_punctuation_between_spaces_is_no_word(text: str) -> None:
    every = [line for cue in cues(text, [], 0, 20_000) for line in cue.lines]
    assert len(every) > 3
    assert not any(line.startswith(("!", "»", "–", ".")) or line.endswith("«") for line in every)


def test_wide_characters_take_two_columns() -> None:
    text = "我们今天早上看了您的账户，付款是在星期五完成的，但是钱还没有到。请您再等两天，然后给我们打电话。"
    words = [Word(each, 250 * at, 250 * at + 200) for at, each in enumerate(text) if each not in "，。"]
    found = cues(text, words, 0, words[-1].end_ms)
    assert "".join("".join(cue.lines) for cue in found) == text and len(found) > 1
    assert all(columns(line) <= LINE for cue in found for line in cue.lines)


def test_marks_take_no_column() -> None:
    assert (columns("ที่นี่"), columns("e\u0301"), columns("好a"), columns("👍")) == (2, 1, 3, 2)


UNSPACED = [
    "今天", "我们", "，", "。", "（很好）", "“你好，世界。”", "《红楼梦》", "2024年", "「もしもし」",
    "コンピューター", "ちょっと", "待って", "々", "ใหญ่", "เป็น", "ที่นี่", "น้ำ", "Python", "——", "……", "ក្រុម", "က္က",
]  # fmt: skip
NEVER_FIRST = "，。）”》」ー々ょっ…"
NEVER_LAST = "（“《「เแโใไ\u17d2\u1039"


@given(st.lists(st.sampled_from(UNSPACED), min_size=30, max_size=60), st.integers(0, 30_000))
def test_scripts_without_spaces_are_cut_between_characters(parts: list[str], end_ms: int) -> None:
    text = "今" + "".join(part for part, before in zip(parts, ["", *parts], strict=False) if part != before)
    every = [line for cue in cues(text, [], 0, end_ms) for line in cue.lines]
    assert "".join(every) == text
    for line, after in pairwise(every):
        assert line[-1] not in NEVER_LAST and after[0] not in NEVER_FIRST
        assert columns(after[0]) > 0, "a mark was taken off its character"
        assert not (line[-1].isascii() and after[0].isascii()), "a word or a number was cut"
        assert columns(line) <= LINE


def test_words_say_where_a_script_without_spaces_is_cut() -> None:
    word = "โทรศัพท์"
    words = [Word(word, 500 * at, 500 * at + 500) for at in range(30)]
    every = [line for cue in cues(word * 30, words, 0, 15_000) for line in cue.lines]
    assert len(every) > 3 and all(line.replace(word, "") == "" for line in every)


def test_japanese_is_cut_behind_a_phrase() -> None:
    text = "電話が家庭に入ってから百年以上になりますがどのように動いているのかを説明できる人はほとんどいません"
    every = [line for cue in cues(text, [], 0, 12_000) for line in cue.lines]
    assert all(line[-1] in "がにらすのをるはん" for line in every)


def test_the_name_of_the_speaker_takes_its_place() -> None:
    text = "I have called about the letter, which came here on Tuesday."
    assert len(lines(text)) == 1
    (first, _), *_ = lines(text, indent=20)
    assert len(first) <= LINE - 20


def test_a_word_longer_than_a_line_is_cut() -> None:
    url = "https://example.com/" + "x" * 80
    every = [line for cue in cues(f"see {url} there", [], 0, 6000, indent=5) for line in cue.lines]
    assert "".join(every).replace(" ", "") == f"see{url}there" and max(map(len, every)) <= LINE


# -- orphans ---------------------------------------------------------------------------------------------------------


def test_a_sentence_leaves_no_short_word_behind() -> None:
    full = "we have looked at the account that you opened here and have found what we were asked for it"
    assert columns(full) - 7 <= 2 * LINE < columns(full)
    assert all(columns(said(cue)) > SHORT for cue in shown(full))
    (two,) = lines("that is what we have all been waiting for it")
    assert min(map(columns, two)) > SHORT


@pytest.mark.parametrize("at", [2, -1])
def test_a_comma_is_no_reason_for_an_orphan(at: int) -> None:
    parts = "and so we have looked at the account that you opened here and have found what you asked for sir".split()
    parts[at - 1] += ","
    first, last = (said(cue) for cue in shown(" ".join(parts)))
    assert columns(first) > SHORT < columns(last)
    parts = "that, that is what we have all been waiting for".split()
    assert min(columns(line) for line in lines(" ".join(parts))[0]) > SHORT


WORD = st.from_regex(r"[a-z]{1,5},?", fullmatch=True)


@given(st.lists(WORD, min_size=2, max_size=120), st.integers(8, 25), st.booleans(), st.integers(0, 10))
def test_orphans_are_avoided(parts: list[str], speed: int, heard: bool, indent: int) -> None:
    """A sentence of short words can always be cut otherwise."""
    text = " ".join(parts)
    every_ms = 1000 * len(text) // speed // len(parts)
    words = [Word(part.strip(","), every_ms * at, every_ms * (at + 1)) for at, part in enumerate(parts)]
    found = cues(text, words if heard else [], 0, every_ms * len(parts), indent=indent)
    if len(text) > 3 * SHORT:
        assert all(columns(said(cue)) > SHORT for cue in found)
    assert all(columns(line) > SHORT for cue in found if len(cue.lines) == 2 for line in cue.lines)


# -- times -----------------------------------------------------------------------------------------------------------


def test_times_are_shared_out_where_none_are_known() -> None:
    sentence = "We looked at your account this morning and found nothing that is wrong. "
    found = cues(sentence * 6, [], 4000, 34_000)
    assert [cue.start_ms for cue in found] == [4000, 9000, 14_000, 19_000, 24_000, 29_000]
    assert {said(cue) for cue in found} == {sentence.strip()}
    long, short = "Somewhere a switch closes, a bell rings, and a stranger is there.", "And he says hello to me."
    first, second = cues(f"{long} {short}", [], 0, 6000)
    assert 4000 < second.start_ms < 4700


def test_numbers_take_longer_to_say_than_to_read() -> None:
    a, b = "The number that you have to call is this:", "please write it down, it is the last time."
    plain, digits = (cues(f"{a} {said}. {b}", [], 0, 9000)[-1] for said in ("what you know", "0171 2345678"))
    assert digits.start_ms > plain.start_ms


@pytest.mark.parametrize(
    "words",
    [
        [Word("evening", 0, 900)],
        [Word("good", 0, 900)],
        [Word("good", 500, 900), Word("morning", 100, 400)],
        [Word("good", 9000, 9100), Word("morning", 9100, 9900)],
        [Word("good", 5, 5), Word("morning", 5, 5)],
        [],
    ],
    ids=["of another text", "of a part", "backwards", "elsewhere", "no time", "none"],
)
def test_words_that_cannot_be_true_say_nothing(words: list[Word]) -> None:
    assert cues("good morning", words, 0, 1500) == [Cue(0, 1500, ("good morning",))]


def test_an_end_that_cannot_be_true_says_nothing() -> None:
    """Two minutes of text in no time: no cue flashes by."""
    found = cues("This is what they wanted to have. " * 50, [], 1000, 1000)
    assert all(cue.end_ms - cue.start_ms > 500 for cue in found)


def test_what_is_said_fast_stays_into_the_silence() -> None:
    text = "Nobody can read this in such a short time."
    needs_ms = -(-1000 * len(text) // SPEED)
    assert cues(text, [], 0, 900)[0].end_ms == needs_ms
    assert cues(text, [], 0, 900, until_ms=needs_ms + GAP_MS)[0].end_ms == needs_ms
    assert cues(text, [], 0, 900, until_ms=2000)[0].end_ms == 2000 - GAP_MS
    assert cues(text, [], 0, 900, until_ms=950)[0].end_ms == 950, "no room for a gap"
    assert cues("Hello.", [], 0, 9000)[0].end_ms == LONGEST_MS


def test_what_is_said_slowly_is_not_shown_long_before() -> None:
    text = "one two three four five six seven eight nine ten"
    words = [Word(word, 1200 * at, 1200 * at + 1100) for at, word in enumerate(text.split())]
    found = cues(text, words, 0, 12_000)
    assert len(found) == 2 and all(cue.end_ms - cue.start_ms < LONGEST_MS for cue in found)
    assert [cue.lines for cue in cues("good day", [], 0, 60_000)] == [("good day",)], "but no word stands alone"


def test_cuts_even_the_speed_out() -> None:
    """Fast, slow and fast again: a cut at the comma would leave a cue that is all fast."""
    text = "eleven twelve eleven twelve eleven twelve, " + "eleven " * 9 + "twelve"
    paces = {True: [200] * 6 + [600] * 4 + [200] * 6, False: [350] * 16}
    firsts = {}
    for uneven, lengths in paces.items():
        ends = list(accumulate(lengths))
        words = [
            Word(word.strip(","), end - length, end)
            for word, end, length in zip(text.split(), ends, lengths, strict=True)
        ]
        found = cues(text, words, 0, ends[-1], until_ms=ends[-1])
        firsts[uneven] = said(found[0])
    assert firsts[False].endswith(",")
    assert len(firsts[True]) > len(firsts[False])


# -- all rules, for anything -----------------------------------------------------------------------------------------

PARTS = ["a", "word", "and,", "(why", "not)", "end.", "“so”", "x" * 60, "说", "说得好。", "...", "👍", "é", "7"]
TEXT = st.one_of(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=60).map(" ".join),
    st.text(max_size=200),
    st.text("ab。, （）\u0301ー", max_size=200),
)
TIME = st.integers(-50, 40_000) | st.integers(-(10**9), 10**9)
WORDS = st.lists(st.builds(Word, st.text(max_size=3) | st.just("word"), TIME, TIME), max_size=8)


@st.composite
def heard(draw: st.DrawFn) -> tuple[str, list[Word]]:
    """A text, and its words or others, with any times."""
    text = draw(TEXT)
    if draw(st.booleans()):
        return text, draw(WORDS)
    kind = draw(st.sampled_from(["evenly", "rising", "any"]))
    parts = timed(text, every_ms=draw(st.integers(0, 1500)))
    times = draw(st.lists(TIME, min_size=2 * len(parts), max_size=2 * len(parts))) if kind != "evenly" else []
    times = sorted(times) if kind == "rising" else times
    return text, [Word(word.word, *times[2 * at : 2 * at + 2]) for at, word in enumerate(parts)] if times else parts


@given(heard(), TIME, TIME, st.none() | TIME, st.integers(0, 50))
def test_every_rule_holds_for_any_text(
    spoken: tuple[str, list[Word]], start_ms: int, end_ms: int, until_ms: int | None, indent: int
) -> None:
    text, words = spoken
    found = cues(text, words, start_ms, end_ms, indent=indent, until_ms=until_ms)
    assert "".join("".join(cue.lines) for cue in found).replace(" ", "") == "".join(text.split())
    assert bool(found) == bool(text.strip())
    last_ms = None if until_ms is None else max(until_ms, start_ms + len(found))
    for number, (cue, next_ms) in enumerate(zip(found, [*(cue.start_ms for cue in found[1:]), last_ms], strict=False)):
        assert 1 <= len(cue.lines) <= 2
        for line, room in zip(cue.lines, [LINE - min(indent, LINE // 2) * (number == 0), LINE], strict=False):
            assert line == line.strip() != "" and columns(line) <= room
        stays_ms = cue.end_ms - cue.start_ms
        assert cue.start_ms >= start_ms and 0 < stays_ms <= LONGEST_MS
        if next_ms is None:
            needs_ms = 0
        else:
            assert cue.end_ms <= next_ms
            room_ms = next_ms - cue.start_ms
            gap_ms = GAP_MS if room_ms >= SHORTEST_MS + GAP_MS else 0
            assert next_ms - cue.end_ms >= gap_ms
            needs_ms = 0 if cue.end_ms == next_ms - gap_ms else SHORTEST_MS
        # What is shown for less than it takes to read was followed by the next at once.
        if needs_ms or next_ms is None:
            assert stays_ms >= SHORTEST_MS and 1000 * columns(said(cue)) <= SPEED * stays_ms + 1000


SPACED = st.lists(st.sampled_from(["a", "word", "and,", "(why", "not)", "end.", "“so”", "x" * 20, "说"]), min_size=1)


@given(SPACED, st.integers(260, 1500), st.integers(0, 21))
def test_every_word_once_in_order_in_two_short_lines(parts: list[str], every_ms: int, indent: int) -> None:
    text = " ".join(parts)
    found = shown(text, every_ms=every_ms, indent=indent)
    assert " ".join(line for cue in found for line in cue.lines) == text
    for cue, after in zip(found, [*found[1:], None], strict=True):
        assert cue.start_ms < cue.end_ms <= (after.start_ms if after else cue.end_ms)
        assert cue.end_ms - cue.start_ms <= LONGEST_MS


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("你好吗", ["你", "好", "吗"]),
        ("用iPhone打", ["用", "iPhone", "打"]),
        ("你好。再见", ["你", "好。", "再", "见"]),
        ("（你）好", ["（你）", "好"]),
        ("ab cd", ["ab", "cd"]),
        ("naïve é", ["naïve", "é"]),
        ('说"好"', ['说"好"']),
    ],
)
def test_where_a_line_may_end_in_scripts_without_spaces(text: str, parts: list[str]) -> None:
    found = atoms(text, line=LINE, first_line=LINE)
    assert [text[atom.start : atom.end] for atom in found] == parts


def test_what_is_too_long_is_parted_and_loses_no_letter() -> None:
    def parts(text: str, room: int) -> list[str]:
        return [text[start:end] for start, end in _short(text, 0, len(text), room)]

    assert parts("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert parts("abcd efgh ij", 5) == ["abcd", "efgh", "ij"]
    assert parts("abcd", 4) == ["abcd"]
    assert parts("abc efgh", 4) == ["abc", "efgh"], "a part ends before the space behind it"
    assert parts("ｗｗｗｗｗ", 4) == ["ｗｗ", "ｗｗ", "ｗ"], "each takes two columns"
    assert parts("\u0301", 4) == ["\u0301"], "a mark with nothing under it takes no column"


def test_a_word_longer_than_a_line_is_cut_into_parts_of_one_length_whatever_stands_around_it() -> None:
    text = "so abcdefghijkl is"
    found = atoms(text, line=8, first_line=8)
    assert [text[atom.start : atom.end] for atom in found] == ["so", "abcdef", "ghijkl", "is"]
