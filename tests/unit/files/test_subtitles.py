"""SubRip and WebVTT of a call: order, overlaps and names."""

from __future__ import annotations

import html
import re
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from mediaworker.events.schema import Word
from mediaworker.transcripts.formats import SpokenLine, srt, vtt
from mediaworker.transcripts.subtitles.cues import GAP_MS

LONG = "We looked at your account this morning. The payment was made on Friday, and it has not arrived yet."


class Packet(NamedTuple):
    start_ms: int
    duration_ms: int
    text: str


def written(text: str) -> list[Packet]:
    """The blocks of a file, by the letter of the formats."""
    found = []
    for block in text.removeprefix("WEBVTT\n\n").removesuffix("\n").split("\n\n"):
        rows = block.split("\n")
        if "-->" not in rows[0]:
            assert rows.pop(0) == str(len(found) + 1)
        start_ms, end_ms = map(_millis, rows[0].split(" --> "))
        found.append(Packet(start_ms, end_ms - start_ms, "\n".join(rows[1:])))
    return found


def _millis(clock: str) -> int:
    match = re.fullmatch(r"(\d{2,}):([0-5]\d):([0-5]\d)[,.](\d{3})", clock)
    assert match
    hours, minutes, seconds, millis = map(int, match.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + millis


CALL = [
    SpokenLine(2000, 9000, LONG, "Ann"),
    SpokenLine(500, 1200, "Hello?", "Bea & <Co>"),
    SpokenLine(7000, 7400, "Yes --> no.", "Bea & <Co>"),
    SpokenLine(9500, 9500, " \n ", "Ann"),
    SpokenLine(359_999_000, 360_000_500, "42\n\n7", "Ann"),
]


def test_subrip() -> None:
    assert srt(CALL) == (
        "1\n00:00:00,500 --> 00:00:01,500\nBea & <Co>: Hello?\n\n"
        "2\n00:00:02,000 --> 00:00:04,777\nAnn: We looked at your\naccount this morning.\n\n"
        "3\n00:00:04,857 --> 00:00:09,000\nThe payment was made on Friday,\nand it has not arrived yet.\n\n"
        "4\n00:00:07,000 --> 00:00:08,000\nBea & <Co>: Yes -> no.\n\n"
        "5\n99:59:59,000 --> 100:00:00,500\nAnn: 42 7\n"
    )


def test_webvtt() -> None:
    assert vtt(CALL) == (
        "WEBVTT\n\n"
        "00:00:00.500 --> 00:00:01.500\n<v Bea &amp; &lt;Co&gt;>Hello?\n\n"
        "00:00:02.000 --> 00:00:04.777\n<v Ann>We looked at your account this morning.\n\n"
        "00:00:04.857 --> 00:00:09.000\n<v Ann>The payment was made on Friday,\nand it has not arrived yet.\n\n"
        "00:00:07.000 --> 00:00:08.000\n<v Bea &amp; &lt;Co&gt;>Yes --&gt; no.\n\n"
        "99:59:59.000 --> 100:00:00.500\n<v Ann>42 7\n"
    )


def test_nothing_said_is_a_file_too() -> None:
    assert srt([]) == srt([SpokenLine(0, 1, "")]) == ""
    assert vtt([]) == vtt([SpokenLine(0, 1, "")]) == "WEBVTT\n"


def test_nobody_named() -> None:
    assert srt([SpokenLine(0, 1500, "Good morning.")]) == "1\n00:00:00,000 --> 00:00:01,500\nGood morning.\n"
    assert vtt([SpokenLine(0, 1500, "Good morning.")]) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGood morning.\n"


def test_a_speaker_who_goes_on_over_the_next_line_is_shown_before_it() -> None:
    """A leg cannot say two things at once, but what comes in may say so."""
    words = [Word(word.strip(",."), 500 * at, 500 * at + 400) for at, word in enumerate(LONG.split())]
    shown = written(vtt([SpokenLine(0, 9500, LONG, words=words), SpokenLine(5000, 6000, "Indeed.")]))
    assert [packet.text.split("\n")[-1] for packet in shown] == [
        "We looked at your account this morning.", "and it has not arrived yet.", "Indeed.",
    ]  # fmt: skip
    assert shown[1].start_ms + shown[1].duration_ms <= 5000 and min(packet.duration_ms for packet in shown) >= 1000


def test_what_is_next_ends_a_cue_unless_both_speak_at_once() -> None:
    fast = SpokenLine(0, 900, "Nobody can read this in such a short time.", "Ann")
    stays_ms = 2471
    for after, end_ms in [
        (SpokenLine(1500, 2500, "Indeed.", "Ann"), 1500 - GAP_MS),
        (SpokenLine(1500, 2500, "Indeed.", "Bea"), 1500 - GAP_MS),
        (SpokenLine(600, 2500, "Indeed.", "Bea"), stays_ms),
        (SpokenLine(600, 2500, "Indeed.", "Ann"), 600),
        (SpokenLine(9000, 9500, "Indeed.", "Ann"), stays_ms),
    ]:
        assert written(vtt([after, fast]))[0].duration_ms == end_ms


LIKE_THE_FORMAT = ["1", "12 " * 40, "00:00:01,000 --> 00:00:02,000", "NOTE x", "WEBVTT", "<i>&amp;", "--\n->"]

SAID = st.one_of(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=200),
    st.sampled_from([LONG, "你好，世界。" * 12, *LIKE_THE_FORMAT]),
)

SPEAKER = st.sampled_from(["", "Ann", "B <ö>\n--", ">", "x" * 60])

TIME = st.integers(-1000, 200_000) | st.integers(0, 10**9)

WORDS = st.lists(st.builds(Word, st.text(max_size=3), TIME, TIME), max_size=4)

LINES = st.lists(st.builds(SpokenLine, TIME, TIME, SAID, SPEAKER, WORDS), max_size=8)


@given(LINES)
def test_cues_are_sorted_and_nobody_talks_over_oneself(lines: list[SpokenLine]) -> None:
    shown = written(vtt(lines)) if any(line.text.strip() for line in lines) else []
    assert [cue.start_ms for cue in shown] == sorted(cue.start_ms for cue in shown)
    for cue in shown:
        assert cue.start_ms >= 0 and cue.duration_ms > 0 and all(cue.text.split("\n"))
    spoken = [re.fullmatch(r"(?s)(?:<v ([^>]*)>)?(.*)", cue.text) for cue in shown]
    names = [match[1] for match in spoken if match]
    for name in set(names):
        mine = [cue for cue, of in zip(shown, names, strict=True) if of == name]
        assert all(cue.start_ms + cue.duration_ms <= after.start_ms for cue, after in pairwise(mine))
        said = "".join(match[2] for match in spoken if match and match[1] == name)
        of_name = [line for line in lines if " ".join(line.speaker.split()) == html.unescape(name or "")]
        whole = "".join(line.text for line in of_name)
        assert sorted(html.unescape(said).replace("\n", "").replace(" ", "")) == sorted("".join(whole.split()))
