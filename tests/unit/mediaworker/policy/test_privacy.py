"""Card numbers, patterns and keyed digits: what of them may be seen."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from config import ConfigError, Settings
from config.settings import Privacy, PrivacyPattern
from lab.events.finals import final
from mediaworker.events import schema as events
from mediaworker.policy.phrases import NumberPhrases, PatternError, Search, pattern, search
from mediaworker.policy.redaction import digits
from mediaworker.policy.redaction.call import CallPrivacy, Policy
from mediaworker.policy.redaction.text import merged, without
from mediaworker.policy.spoken_digits import ONES

CARDS = [
    "4242424242424242", "5555555555554444", "2223003122003222", "378282246310005", "6011111111111117",
    "3566002020360505", "6200000000000005", "4222222222222", "30569309025904",
]  # fmt: skip


def private(**settings: Any) -> tuple[CallPrivacy, Counter[str]]:
    masked: Counter[str] = Counter()
    return CallPrivacy(Policy(Settings(privacy=Privacy(**settings))), masked), masked


def partial(text: str, stable_chars: int = 0, number: int = 1, start_ms: int = 0) -> Any:
    return events.TranscriptPartial(
        leg="main", role="customer", utterance_id=f"u{number}", revision=1, start_ms=start_ms, end_ms=start_ms + 900,
        text=text, stable_chars=stable_chars, language="en",
    )  # fmt: skip


def spoken(number: str, language: str = "en") -> str:
    return " ".join(ONES[language].split()[int(digit)] for digit in number)


def heard(text: str) -> str:
    """Every digit that a reader could make of it."""
    return "".join(run.digits for run in digits.runs(text))


# -- digits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("my card is 4242 4242 4242 4242 thanks", ["4242424242424242"]),
        ("4242-4242.4242/4242", ["4242424242424242"]),
        ("double four two one", ["4421"]),
        ("triple 0 seven", ["0007"]),
        ("forty-two forty two 42", ["424242"]),
        ("twenty and then nothing", ["20"]),
        ("thirty fifteen", ["3015"]),
        ("zweiundvierzig vier zwei", ["4242"]),
        ("卡号是四二 四二 好", ["4242"]),
        ("٤٢٤٢", ["4242"]),
        ("four uh two er four", ["424"]),
        ("four uh er two", ["42"]),
        ("four uh er uh er two", ["4", "2"]),
        ("four um two", ["42"]),
        ("dois um três", ["213"]),
        ("um, four", ["4"]),
        ("call 555 1234, or at nine", ["5551234", "9"]),
        ("no number here", []),
    ],
)
def test_runs(text: str, found: list[str]) -> None:
    assert [run.digits for run in digits.runs(text)] == found


@given(st.lists(st.sampled_from([*"0123456789 .-+四二", "one ", "forty ", "double ", "uh ", "word "]), max_size=60))
def test_runs_tile_the_text_and_every_digit_has_its_place(parts: list[str]) -> None:
    text, last = "".join(parts), 0
    for run in digits.runs(text):
        assert last <= run.start < run.end <= len(text)
        assert len(run.ends) == len(run.digits) and run.ends == sorted(run.ends) and run.ends[-1] == run.end
        last = run.end
    assert digits.at_most(text) >= len(heard(text))


@given(st.text(max_size=80))
def test_any_text_is_read(text: str) -> None:
    assert digits.at_most(text) >= len(heard(text))


@pytest.mark.parametrize("card", CARDS)
def test_numbers_of_cards(card: str) -> None:
    assert digits.luhn(card) and digits.is_card(card)
    assert not digits.luhn(card[:-1] + str((int(card[-1]) + 1) % 10))


@pytest.mark.parametrize("number", ["5551234567", "01793 496 000", "00442071234567", "1134567890123456", "20261121"])
def test_other_numbers(number: str) -> None:
    assert not digits.is_card(number.replace(" ", ""))


# -- texts -------------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(CARDS), st.sampled_from(["", "it is ", "so, 2 things: ", "my number "]),
    st.sampled_from(["", " thanks", ". Expires 12 27", " and two"]), st.integers(0, 3),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_no_card_comes_through(card: str, before: str, after: str, way: int, chance: random.Random) -> None:
    if way == 0:
        said = card
    elif way == 1:
        said = " ".join(card[at : at + 4] for at in range(0, len(card), 4))
    elif way == 2:
        said = spoken(card, chance.choice(sorted(ONES)))
    else:
        said = "".join(digit + chance.choice(["", " ", "-", ", "]) for digit in card).strip(" ,-")
    privacy, masked = private()
    shown = privacy.screen(0, final(before + said + after))
    assert isinstance(shown, events.TranscriptFinal)
    assert "[card]" in shown.text and len(heard(shown.text)) <= 6 and masked["card"] == 1
    assert shown.stable_chars == len(shown.text)
    assert shown.redactions == [events.Redaction("card", 0, 1000)]


@given(st.sampled_from(CARDS), st.booleans(), st.integers(0, 200))
def test_a_partial_never_shows_more_than_six_digits_of_a_card(card: str, words: bool, chars: int) -> None:
    privacy, _ = private()
    whole = "it is " + (spoken(card) if words else " ".join(card[at : at + 4] for at in range(0, len(card), 4)))
    text = whole[:chars]
    for stable_chars in (0, len(text) // 2, len(text)):
        shown = privacy.screen(0, partial(text, stable_chars))
        assert isinstance(shown, events.TranscriptPartial)
        assert len(heard(shown.text)) <= 6
        assert shown.stable_chars <= len(shown.text)


def test_what_is_no_card_is_shown_as_it_was_said() -> None:
    privacy, masked = private()
    for text in ("call 555 123 4567", "+49 151 23456789", "order 1134567890123456", "one two three", ""):
        assert privacy.screen(0, final(text)) == final(text)
    assert privacy.screen(0, partial("my phone is 555 123", 8)) == partial("my phone is 555 123", 8)
    longer = privacy.screen(0, partial("my phone is 555 123 45", 22))
    assert longer.text == "my phone is 555 123…"  # type: ignore[attr-defined]
    assert not masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("my phone is 555 12", None),
        ("my phone is 555 123 4", "my phone is 555 123…"),
        ("my phone is 555 123 45 than", "my phone is 555 123…"),  # the last word may be half of one
        ("my phone is 555 123 45 thanks a", None),
        ("at 9 or 10, my number is 555 123 45", "at 9 or 10, my number is 555 123…"),
        ("from 555 123 4567 to nine", None),
        ("+49 555 123 45", None),
        ("order 98765432", None),
        ("um, okay, so", None),
    ],
)
def test_a_partial_is_cut_only_where_its_last_digits_may_become_a_card(text: str, shown: str | None) -> None:
    privacy, _ = private()
    said = privacy.screen(0, partial(text))
    assert said.text == (text if shown is None else shown)  # type: ignore[attr-defined]


def test_where_cards_are_not_masked_no_partial_is_cut() -> None:
    privacy, _ = private(cards=False, mask_after_phrases=("cvv",))
    for text in ("it's 4242 4242 4242 cvv", "please tell me the cvv"):
        assert privacy.screen(0, partial(text)).text == text  # type: ignore[attr-defined]
    whole = final("it's 4242 4242 4242 4242 cvv")
    assert privacy.screen(0, whole) == whole


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("+378282246310005", "+378282246310005"),
        ("+4242424242424242", "+[card]"),
        ("+4917612345678901", "+[card]"),  # it has one digit more than any telephone number (ITU-T E.164)
    ],
)
def test_a_plus_makes_a_telephone_number_of_at_most_fifteen_digits(text: str, shown: str) -> None:
    privacy, _ = private()
    assert privacy.screen(0, final(text)).text == shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "4242 um 4242 um 4242 4242", "4242 4242 and then uh 4242 4242", "Oh, 3782 822463 10005",
        "Um, 3782 822463 10005",
        "one four two four two four two four two four two four two four two four two",
    ],
)  # fmt: skip
def test_what_stands_before_or_within_a_card_does_not_hide_it(text: str) -> None:
    privacy, _ = private()
    assert "[card]" in privacy.screen(0, final(text)).text  # type: ignore[attr-defined]
    for chars in range(len(text)):
        assert len(heard(private()[0].screen(0, partial(text[:chars])).text)) <= 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("groups", "shown"),
    [
        (["42"] * 8, ["42"] * 6 + ["[card]"] * 2),
        (["4242 4242", "", "4242 4242"], ["4242 4242", "", "[card]"]),
        (["4242 4242", "Uh.", "4242 4242"], ["4242 4242", "Uh.", "[card]"]),
        (["424", "242", "424", "242", "4242"], ["424", "242", "424", "242", "[card]"]),
        (["4242", "no, wait", "4242", "4242", "4242"], ["4242", "no, wait", "4242", "4242", "[card]"]),
    ],
)
def test_pauses_of_all_kinds(groups: list[str], shown: list[str]) -> None:
    privacy, _ = private()
    events_ = [final(text, at, start_ms=2000 * at, end_ms=2000 * at + 900) for at, text in enumerate(groups)]
    assert [privacy.screen(event.end_ms, event).text for event in events_] == shown  # type: ignore[attr-defined]


def test_a_recogniser_that_loops_costs_little() -> None:
    run = next(digits.runs("1 " * 5000))
    assert len(run.digits) == 5000 and not digits.holds_card(run)


def test_a_pattern_within_a_card_does_not_uncover_the_rest() -> None:
    privacy, _ = private(patterns=(PrivacyPattern(name="acct", pattern=r"\b4242 42"),))
    shown = privacy.screen(0, partial("it's 4242 4242 4242 4", 5))
    assert shown.text == "it's [acct]…"  # type: ignore[attr-defined]


def test_a_card_said_with_pauses_is_noticed_when_it_is_one() -> None:
    privacy, _ = private()
    shown = []
    for number, group in enumerate(("4242.", "4242", "4242,", "4242")):
        event = final(group, number, start_ms=2000 * number, end_ms=2000 * number + 1000)
        shown.append(privacy.screen(event.end_ms, event).text)  # type: ignore[attr-defined]
    assert shown == ["4242.", "4242", "[card],", "[card]"]
    # After a longer pause, or by somebody else, it is another number.
    for leg, start_ms in (("other", 8000), ("main", 60_000)):
        event = final("4242", 9, leg=leg, start_ms=start_ms, end_ms=start_ms + 500)
        assert privacy.screen(start_ms, event) == event


def talked(privacy: CallPrivacy, *said: str) -> list[str]:
    """What is shown of finals that follow each other; those of the agent begin with "agent: "."""
    shown = []
    for at, text in enumerate(said):
        leg = "agent" if text.startswith("agent: ") else "main"
        event = final(text.removeprefix("agent: "), at, leg=leg, start_ms=2000 * at, end_ms=2000 * at + 900)
        shown.append(privacy.screen(event.end_ms, event).text)  # type: ignore[attr-defined]
    return shown


@pytest.mark.parametrize(
    "said",
    [
        ("6786981", "agent: And your mobile?", "9846346"), ("6786981.", "agent: Yes.", "Uh.", "9846346"),
        ("678-6981", "agent: Sorry, which one?", "984", "6346"), ("555 0142", "agent: And at work?", "415 555 0150"),
        ("415-555-0150", "agent: And at home?", "5550142"), ("6786981", "9846346"),
        ("612 345 678", "agent: y el otro?", "9 12 34 56"), ("678-6981, 984-6346",),
        ("five five five oh one four two", "agent: And?", "five five five oh one five one"),
        ("My number is 6786981", "agent: And the other one?", "984 6346", "agent: And?", "555 0142"),
    ],
)  # fmt: skip
def test_telephone_numbers_are_no_card(said: tuple[str, ...]) -> None:
    privacy, masked = private()
    assert talked(privacy, *said) == [text.removeprefix("agent: ") for text in said]
    assert not masked


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (("4242 4242", "agent: Mm-hmm.", "4242 4242"), 1), (("4242424", "agent: Go on.", "242424242"), 1),
        (("3782", "agent: Yes?", "822463", "agent: And the rest?", "10005"), 2),
        (("4242 4242", "agent: And the next four?", "4242", "agent: Yes?", "4242"), 1),
        (("9786981", "agent: And your card?", "4242 4242", "agent: Yes.", "4242 4242"), 2),
        (("Oh, 3782", "822463", "10005"), 2),
        (("4242 4242", "agent: And the rest?", "4242 4241"), 1),  # a misrecognised digit
        (("42424242", "agent: And the rest?", "4242424"), 1),  # and a missing one
    ],
)  # fmt: skip
def test_a_card_is_found_in_spite_of_what_others_say(said: tuple[str, ...], shown: int) -> None:
    mine = [
        text for text, each in zip(talked(private()[0], *said), said, strict=True) if not each.startswith("agent: ")
    ]
    assert "[card]" not in "".join(mine[:shown]) and all("[card]" in text for text in mine[shown:])


@given(
    st.sampled_from(CARDS), st.lists(st.integers(1, 8), max_size=6), st.booleans(),
    st.sampled_from([None, "Yes.", "And the rest?"]), st.sampled_from([(), ("6786981", "agent: And the card?")]),
)  # fmt: skip
def test_no_whole_card_comes_through_over_pauses(
    card: str, sizes: list[int], words: bool, between: str | None, before: tuple[str, ...]
) -> None:
    groups, rest = [], card
    for size in sizes:
        groups, rest = [*groups, rest[:size]], rest[size:]
    parts = [spoken(each) if words else each for each in [*groups, rest] if each]
    said = [part for each in parts for part in ([each] if between is None else [each, f"agent: {between}"])]
    shown = talked(private()[0], *before, *said)
    assert card not in "".join(heard(each) for each in shown[len(before) :])


@given(st.sampled_from(CARDS), st.integers(1, 10), st.booleans())
def test_a_partial_behind_a_pause_shows_less_than_a_card(card: str, first: int, asked: bool) -> None:
    privacy, _ = private()
    talked(privacy, card[:first], *(["agent: And the rest?"] if asked else []))
    for size in range(1, len(card) - first + 1):
        shown = privacy.screen(5000, partial(card[first : first + size], number=7, start_ms=4000))
        assert len(heard(shown.text)) <= max(0, 12 - first)  # type: ignore[attr-defined]


def test_patterns_of_the_configuration() -> None:
    iban = PrivacyPattern(name="iban", pattern=r"\b[a-z]{2}\d\d(?: ?[a-z0-9]{4}){3,7}\b")
    privacy, masked = private(patterns=(iban,), cards=False)
    shown = privacy.screen(0, final("to GB82 WEST 1234 5698 7654 please, or 4242 4242 4242 4242"))
    assert shown.text == "to [iban] please, or 4242 4242 4242 4242"  # type: ignore[attr-defined]
    assert masked == {"iban": 1}
    catastrophe = PrivacyPattern(name="slow", pattern=r"(a|aa)+$")
    privacy, _ = private(patterns=(catastrophe,))
    assert privacy.screen(0, final("a" * 200 + "!")).text == "[slow]"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "privacy",
    [
        {"patterns": (PrivacyPattern(name="x", pattern="("),)},
        {"patterns": (PrivacyPattern(name="x", pattern="a*"),)},
        {"mask_after_digits": ("",)}, {"unmask_after_digits": ("9x",)}, {"mask_after_phrases": ("...",)},
        {"unmask_after_phrases": ("",)},
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_said_at_the_start(privacy: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="privacy"):
        Policy(Settings(privacy=Privacy(**privacy)))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_spans_are_merged_and_nothing_of_them_is_left(pairs: list[tuple[int, int]]) -> None:
    from mediaworker.policy.redaction.text import MaskedSpan, stable

    text = "".join(chr(0x4E00 + at) for at in range(30))
    spans = merged(MaskedSpan(min(pair), max(pair), "x") for pair in pairs if pair[0] != pair[1])
    left = without(text, spans)
    covered = {at for span in spans for at in range(span.start, span.end)}
    assert [char for char in left if char in text] == [char for at, char in enumerate(text) if at not in covered]
    for chars in range(len(text) + 1):
        kept = stable(chars, spans)
        assert 0 <= kept <= len(left)
        if not any(span.start < chars < span.end for span in spans):
            assert left[:kept] == without(text[:chars], [span for span in spans if span.end <= chars])


# -- words -------------------------------------------------------------------------------------------------------------


def test_the_times_of_words_have_no_card_either() -> None:
    privacy, _ = private()
    text = "My card, it's 4242-4242 4242 4242. Thanks!"
    privacy.screen(0, final(text))
    said = ["My", "card", "it's", "42424242", "4242", "4242", "Thanks"]
    words = [events.Word(word, 100 * at, 100 * at + 90) for at, word in enumerate(said)]
    shown = privacy.screen(0, events.TranscriptWords("u1", words))
    assert isinstance(shown, events.TranscriptWords)
    assert [word.word for word in shown.words] == ["My", "card", "it's", "[card]", "Thanks"]
    assert shown.redactions == [events.Redaction("card", 300, 590)]
    plain = [events.Word("hello", 0, 10)]
    assert privacy.screen(0, events.TranscriptWords("u2", plain)).words == plain  # type: ignore[attr-defined]


def test_words_that_are_not_in_the_text_are_not_shown_either() -> None:
    privacy, _ = private()
    privacy.screen(0, final("4242 4242 4242 4242"))
    shown = privacy.screen(0, events.TranscriptWords("u1", [events.Word("quarantadue", 0, 10)]))
    assert [word.word for word in shown.words] == ["[card]"]  # type: ignore[attr-defined]


def test_words_of_a_final_that_is_long_ago_have_no_card_either() -> None:
    privacy, _ = private()
    words = [events.Word(word, 0, 10) for word in ("it's", "4242", "4242", "4242", "4242", "bye")]
    shown = privacy.screen(0, events.TranscriptWords("u9", words))
    assert [word.word for word in shown.words] == ["it's", "[card]", "bye"]  # type: ignore[attr-defined]


def test_what_cannot_be_screened_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    privacy, _ = private()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(digits, "runs", broken)
    monkeypatch.setattr(privacy, "_key", broken)
    text = "4242 4242 4242 4242"
    for event in (final(text), partial(text, 4)):
        shown = privacy.screen(0, event)
        assert (shown.text, shown.stable_chars) == ("", 0)  # type: ignore[attr-defined]
    words = events.TranscriptWords("u1", [events.Word("4242", 0, 10)])
    assert privacy.screen(0, words) == events.TranscriptWords("u1", [])
    assert privacy.screen(0, events.Dtmf("main", "7", 40)) == events.Dtmf("main", "X", 40, masked=True)
    assert privacy.screen(0, events.CallHeld()) == events.CallHeld()


# -- keys --------------------------------------------------------------------------------------------------------------


def press(privacy: CallPrivacy, keys: str, at_ms: int = 0) -> str:
    shown = [privacy.screen(at_ms + number, events.Dtmf("main", key, 40)) for number, key in enumerate(keys)]
    assert all(isinstance(each, events.Dtmf) and each.masked == (each.digit == "X") for each in shown)
    return "".join(each.digit for each in shown)  # type: ignore[attr-defined]


def test_keys_are_masked_behind_a_sequence_until_another_or_for_so_long() -> None:
    privacy, masked = private(mask_after_digits=("*9", "**"), unmask_after_digits=("##",), mask_s=10.0)
    assert press(privacy, "12*94242##34") == "12*9XXXXXX34"
    assert press(privacy, "**12", 20_000) == "**XX"
    assert press(privacy, "34", 31_000) == "34"
    assert masked == {"dtmf": 8}


def test_keys_may_always_be_masked() -> None:
    privacy, _ = private(dtmf="mask", unmask_after_digits=("#",))
    assert press(privacy, "12#3") == "XXXX"


def test_a_phrase_masks_keys_and_spoken_digits_of_everybody() -> None:
    privacy, _ = private(mask_after_phrases=("card number", "卡号"), unmask_after_phrases=("all done",), mask_s=0.0)
    assert press(privacy, "12") == "12"
    begun = privacy.screen(2000, final("The CARD  number, please; like 12?", leg="agent", start_ms=1000, end_ms=2000))
    assert begun.text == "The CARD  number, please; like [digits]?"  # type: ignore[attr-defined]
    assert press(privacy, "34", 2500) == "XX"
    said = privacy.screen(4000, final("it's four two and 17, thanks", 2, start_ms=3000, end_ms=4000))
    assert said.text == "it's [digits], thanks"  # type: ignore[attr-defined]
    partly = privacy.screen(4000, partial("one seven", 3, number=3))
    assert partly == partial("one seven", 3, number=3)  # it began before
    privacy.screen(9000, final("all done, 12 thanks", 4, start_ms=8000, end_ms=9000))
    assert press(privacy, "56", 9500) == "56"
    after = final("I have 12 of them", 5, start_ms=9600, end_ms=9900)
    assert privacy.screen(9900, after) == after


def test_a_lone_digit_behind_the_phrase_is_masked_too() -> None:
    privacy, _ = private(mask_after_phrases=("security code",))
    privacy.screen(1000, final("Your security code?", end_ms=1000))
    for number, text in enumerate(("Seven.", "Two.", "3")):
        said = privacy.screen(3000, final(text, number + 2, start_ms=2000, end_ms=2500))
        assert said.text.rstrip(".") == "[digits]"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("option 2", "option 2"),
        ("option 2 34", "option 2 [digits]"),
        ("12 for option 2, give me 34", "12 for option 2, give me [digits]"),
    ],
)
def test_digits_of_the_phrase_itself_are_shown(text: str, shown: str) -> None:
    privacy, _ = private(mask_after_phrases=("option 2",))
    assert privacy.screen(1000, final(text)).text == shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "shown"), [("your card number, and all done", "1"), ("all done, now your card number", "X")]
)
def test_of_two_phrases_the_last_one_counts(text: str, shown: str) -> None:
    privacy, _ = private(mask_after_phrases=("card number",), unmask_after_phrases=("all done",))
    privacy.screen(1000, final(text))
    assert press(privacy, "1", 2000) == shown


def masked_in(*said: tuple[str, str], language: str = "en", **settings: Any) -> list[str]:
    """What is shown of finals: leg and text, each a second long, a pause of half a second between them."""
    privacy, _ = private(cards=False, **settings)
    return [shown_at(privacy, number, leg, text, language).text for number, (leg, text) in enumerate(said)]


def shown_at(privacy: CallPrivacy, number: int, leg: str, text: str, language: str = "en", kind: Any = final) -> Any:
    start_ms = 1500 * number
    if kind is final:
        said = final(text, number, leg=leg, start_ms=start_ms, end_ms=start_ms + 1000)
    else:
        said = replace(partial(text, number=number, start_ms=start_ms), leg=leg)
    return privacy.screen(said.end_ms, replace(said, language=language))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ([("a", "Tell me your security"), ("a", "code, 12?"), ("c", "345.")],
         ["Tell me your security", "code, [digits]?", "[digits]."]),
        ([("a", "security"), ("c", "Mm-hmm."), ("a", "code"), ("c", "three four five")],
         ["security", "Mm-hmm.", "code", "[digits]"]),
        ([("c", "my"), ("c", "security"), ("c", "code"), ("c", "is 345")], ["my", "security", "code", "is [digits]"]),
        ([("a", " security "), ("a", " code 12")], [" security ", " code [digits]"]),
        ([("a", "12 security"), ("a", "code")], ["12 security", "code"]),
        ([("a", "security"), ("a", "and code 12")], ["security", "and code 12"]),
        ([("a", "security"), ("c", "code 12")], ["security", "code 12"]),
        ([("a", "security"), ("c", "What do you want?"), ("a", "code 12")],
         ["security", "What do you want?", "code 12"]),
        ([("a", "security code"), ("a", "thank"), ("a", "you, 12 bye"), ("a", "at 9")],
         ["security code", "thank", "you, [digits] bye", "at 9"]),
    ],
)  # fmt: skip
def test_a_phrase_over_a_pause_begins_and_ends_masking(said: list[tuple[str, str]], shown: list[str]) -> None:
    found = masked_in(*said, mask_after_phrases=("security code",), unmask_after_phrases=("thank you",), mask_s=0.0)
    assert found == shown


def test_a_phrase_counts_once_in_a_turn() -> None:
    said = [("a", "security"), ("a", "code"), ("a", "all"), ("a", "done"), ("a", "at 9")]
    settings = {"mask_after_phrases": ("security code",), "unmask_after_phrases": ("all done",), "mask_s": 0.0}
    assert masked_in(*said, **settings)[-1] == "at 9"
    assert masked_in(*said[2:4], *said[:2], *said[4:], **settings)[-1] == "at [digits]"


@pytest.mark.parametrize(
    ("phrase", "text", "language", "shown"),
    [
        ("press five", "Press 5, but 12", "en", "Press 5, but [digits]"),
        ("press 5", "press five. 12", "en", "press five. [digits]"),
        ("option 25", "option twenty-five, 12", "en", "option twenty-five, [digits]"),
        ("the first code", "the 1st code 12", "en", "the 1st code [digits]"),
        ("drücken Sie 5", "Drücken Sie fünf, 12", "de", "Drücken Sie fünf, [digits]"),
        ("按五", "请按5，一二", "zh", "请按5，[digits]"),
        ("press five", "press 55 and 12", "en", "press 55 and 12"),
        ("press five", "press 5th 12", "en", "press 5th 12"),
    ],
)  # fmt: skip
def test_numbers_of_a_phrase_may_be_written_either_way(phrase: str, text: str, language: str, shown: str) -> None:
    assert masked_in(("a", text), language=language, mask_after_phrases=(phrase,)) == [shown]


def test_a_phrase_with_a_number_over_a_pause() -> None:
    said = [("a", "please press"), ("a", "5 now"), ("c", "12")]
    assert masked_in(*said, mask_after_phrases=("press five",))[1:] == ["5 now", "[digits]"]
    ends = {"mask_after_phrases": ("code",), "unmask_after_phrases": ("press five",)}
    assert masked_in(("a", "code"), *said, **ends)[1:] == ["please press", "[digits] now", "12"]


@pytest.mark.parametrize("kind", [partial, final])
def test_a_phrase_in_a_partial_masks_what_others_say_and_key_meanwhile(kind: Any) -> None:
    """An answer may come before the final of the question, and what has been shown cannot be taken back."""
    privacy, _ = private(cards=False, mask_after_phrases=("security code",))
    assert shown_at(privacy, 0, "a", "at 9 the security code please", kind=partial).text.startswith("at 9")
    assert shown_at(privacy, 1, "c", "345", kind=kind).text == "[digits]"
    assert press(privacy, "12", 2000) == "XX"
    later = shown_at(privacy, 0, "a", "at 9 the security code please, 77", kind=partial)
    assert later.text == "at 9 the security code please, [digits]"
    assert shown_at(privacy, 0, "a", "At 9 the security code please.").text.startswith("At 9")
    assert shown_at(privacy, 2, "c", "345").text == "[digits]"


def test_a_partial_is_read_with_what_was_said_before_it() -> None:
    privacy, _ = private(cards=False, mask_after_phrases=("security code",))
    shown_at(privacy, 0, "a", "the security")
    assert shown_at(privacy, 1, "a", "code 77", kind=partial).text == "code [digits]"
    privacy, _ = private(cards=False, mask_after_phrases=("security code",))
    shown_at(privacy, 0, "a", "the security", kind=partial)  # its final is late
    assert shown_at(privacy, 1, "a", "code 77", kind=partial).text == "code [digits]"
    assert shown_at(privacy, 2, "c", "345", kind=partial).text == "[digits]"


def test_a_phrase_that_a_partial_misheard_masks_no_longer() -> None:
    privacy, _ = private(cards=False, mask_after_phrases=("security code",))
    for mended in (partial, final):
        shown_at(privacy, 0, "a", "security code", kind=partial)
        assert shown_at(privacy, 1, "c", "345", kind=partial).text == "[digits]"
        shown_at(privacy, 0, "a", "security coat", kind=mended)
        assert shown_at(privacy, 1, "c", "345", kind=partial).text == "345"


def test_a_text_that_takes_too_long_to_search_begins_masking_and_does_not_end_it() -> None:
    policy = Policy(Settings(privacy=Privacy(mask_after_phrases=("card",), mask_s=0.0)))
    slow, searched_for_long = Search(pattern(r"(a|aa)+$"), NumberPhrases(())), "12, " + "a" * 200 + "!"
    policy.mask = slow
    privacy = CallPrivacy(policy, Counter())
    shown = privacy.screen(1000, final(searched_for_long))
    assert shown.text == searched_for_long.replace("12", "[digits]")  # type: ignore[attr-defined]
    assert press(privacy, "1", 2000) == "X"
    policy.mask, policy.unmask = None, slow
    privacy.screen(4000, final(searched_for_long, 2, start_ms=3000, end_ms=4000))
    assert press(privacy, "1", 5000) == "X"


def test_older_news_does_not_end_masking() -> None:
    privacy, _ = private(mask_after_digits=("*9",), unmask_after_phrases=("all done",), mask_after_phrases=("card",))
    assert press(privacy, "*9", 10_000) == "*9"
    privacy.screen(10_500, final("all done", end_ms=9_900))
    assert press(privacy, "1", 11_000) == "X"
    privacy.screen(11_500, final("card", 2, end_ms=8_000))
    assert press(privacy, "1", 69_000) == "X", "the longer one counts"


# -- phrases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("cancel my contract", "I'd like to CANCEL, my contract!", True),
        ("cancel", "cancelled", False),
        ("straße", "in der STRASSE", True),
        ("解约", "我要 解 约 了", True),
        ("can't", "I can't", True),
        ("ab", "a b", False),
    ],
)
def test_phrases_are_whole_words_in_any_case(phrase: str, text: str, found: bool) -> None:
    compiled = search([phrase, "nobody says this"])
    assert compiled is not None and bool(compiled.pattern.search(text)) == found


@given(st.text(st.characters(categories=["L", "Nd", "P", "Zs"]), min_size=1, max_size=20))
def test_any_phrase_is_found_in_itself_or_refused(text: str) -> None:
    try:
        compiled = search([text])
    except PatternError:
        assert not re.search(r"[^\W_]", text)
        return
    assert compiled is not None and compiled.pattern.search(text) is not None


def test_a_pattern_that_always_matches_is_refused() -> None:
    with pytest.raises(PatternError):
        pattern("x?")


def test_a_fault_costs_the_text_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    privacy, _ = private()

    def fault(*args: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(privacy, "_screened", fault)
    said = privacy.screen(0, final("4242 4242 4242 4242"))
    assert (said.text, said.stable_chars, said.utterance_id) == ("", 0, "u1")
    assert privacy.screen(0, partial("4242", 4)).text == ""
    key = privacy.screen(0, events.Dtmf("main", "5", 80))
    assert isinstance(key, events.Dtmf) and (key.digit, key.masked) == ("X", True)
    words = events.TranscriptWords("u1", [events.Word("5", 0, 1)])
    assert privacy.screen(0, words).words == []  # type: ignore[union-attr]
    held = events.CallHeld("main")
    assert privacy.screen(0, held) is held


@pytest.mark.parametrize(
    ("begin", "card"),
    [
        ("4", True), ("34", True), ("36", True), ("37", True), ("38", True), ("50", True), ("69", True), ("62", True),
        ("2221", True), ("2720", True), ("3000", True), ("3059", True), ("3528", True), ("3589", True),
        ("35", False), ("33", False), ("39", False), ("49", True), ("70", False), ("2220", False), ("2721", False),
        ("3060", False), ("3527", False), ("3590", False), ("1", False), ("9", False),
    ],
)  # fmt: skip
def test_numbers_of_the_large_networks_are_cards(begin: str, card: bool) -> None:
    body = begin + "0" * (15 - len(begin))
    number = next(body + str(last) for last in range(10) if digits.luhn(body + str(last)))
    assert digits.is_card(number) is card
