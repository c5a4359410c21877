"""SubRip and WebVTT of a call: order, overlaps and names."""

from __future__ import annotations

import html
import re
from itertools import pairwise

import pytest
from hypothesis import given

from lab.media.subtitles import CALL, LINES, LONG, written
from mediaworker.events.schema import Word
from mediaworker.transcripts.formats import SpokenLine, srt, vtt
from mediaworker.transcripts.subtitles.cues import GAP_MS


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
    assert "00:00:00,000 --> 00:00:01,500" in srt([SpokenLine(0, 1500, "Good morning.")], end_ms=9000)
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


@pytest.mark.parametrize(
    "lines",
    [
        [SpokenLine(9900, 10_000, "Yes.")],
        [SpokenLine(9000, 9990, LONG)],
        [SpokenLine(9800, 9900, "Yes.", "Ann"), SpokenLine(9850, 9950, "No.", "Bo")],
        [SpokenLine(9950, 10_000, "Yes.", words=[Word("Yes.", 9960, 9990)])],
        [SpokenLine(10_000, 10_000, "Yes.")],
    ],
)
def test_no_cue_stays_beyond_the_end(lines: list[SpokenLine]) -> None:
    for text in (srt(lines, end_ms=10_000), vtt(lines, end_ms=10_000)):
        shown = written(text)
        late_ms = len(shown) if lines[0].start_ms >= 10_000 else 0  # what leaves no room has a millisecond
        assert shown and all(cue.start_ms + cue.duration_ms <= 10_000 + late_ms for cue in shown)
