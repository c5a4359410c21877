"""A transcript to make subtitles of, and a strict reader of SubRip and WebVTT."""

from __future__ import annotations

import re
from typing import NamedTuple

from hypothesis import strategies as st

from mediaworker.events.schema import Word
from mediaworker.transcripts.formats import SpokenLine

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
LIKE_THE_FORMAT = ["1", "12 " * 40, "00:00:01,000 --> 00:00:02,000", "NOTE x", "WEBVTT", "<i>&amp;", "--\n->"]
SAID = st.one_of(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=200),
    st.sampled_from([LONG, "你好，世界。" * 12, *LIKE_THE_FORMAT]),
)
SPEAKER = st.sampled_from(["", "Ann", "B <ö>\n--", ">", "x" * 60])
TIME = st.integers(-1000, 200_000) | st.integers(0, 10**9)
WORDS = st.lists(st.builds(Word, st.text(max_size=3), TIME, TIME), max_size=4)
LINES = st.lists(st.builds(SpokenLine, TIME, TIME, SAID, SPEAKER, WORDS), max_size=8)
