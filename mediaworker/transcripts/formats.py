"""Renders lines of speech as plain text, SubRip (`.srt`) or WebVTT (`.vtt`), for calls and files alike. No I/O.

The JSON forms of calls and files differ, and are in `call` and `file`.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mediaworker.events.schema import Word
from mediaworker.transcripts.subtitles.cues import Cue, cues
from mediaworker.transcripts.subtitles.places import columns

TextFormat = Literal["txt", "srt", "vtt"]
JSON = "application/json"
MEDIA_TYPES: dict[str, str] = {
    "txt": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class SpokenLine:
    """One utterance to render. Times before 0 are shown as 0, and a line without visible text is left out."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str = ""
    words: Sequence[Word] = ()
    """The words with their times; empty when the times are unknown."""


def plain_text(lines: Iterable[SpokenLine], *, clocks: bool = False) -> str:
    """Return one line per utterance with text: its start time if `clocks`, its speaker if known, and the text."""
    spoken = ((line, one_line(line.text)) for line in lines)
    return "".join(
        (f"[{clock(line.start_ms, '.')}] " if clocks else "")
        + (f"{name}: " if (name := one_line(line.speaker)) else "")
        + f"{text}\n"
        for line, text in spoken
        if text
    )


def srt(lines: Iterable[SpokenLine], *, end_ms: int | None = None) -> str:
    """Return SubRip. The speaker's name stands in the first cue of an utterance and counts towards its length.

    `end_ms`: the end of the medium, after which no cue is shown; None: unknown.
    """
    blocks = []
    for number, (cue, line, first) in enumerate(_shown(lines, end_ms, named=True), 1):
        # `-->` is SubRip's syntax. It is replaced after joining, because name and text may form one together.
        shown = re.sub("--+>", "->", (_prefix(line) if first else "") + "\n".join(cue.lines))
        blocks.append(f"{number}\n{_times(cue, ',')}\n{shown}\n")
    return "\n".join(blocks)


def vtt(lines: Iterable[SpokenLine], *, end_ms: int | None = None) -> str:
    """Return WebVTT. The speaker's name is in a voice tag of every cue. `end_ms`: as for `srt`."""
    blocks = ["WEBVTT\n"]
    for cue, line, _ in _shown(lines, end_ms, named=False):
        voice = f"<v {_escape(line.speaker)}>" if line.speaker else ""
        shown = _escape("\n".join(cue.lines))
        blocks.append(f"{_times(cue, '.')}\n{voice}{shown}\n")
    return "\n".join(blocks)


def clock(ms: int, point: str) -> str:
    """Return HH:MM:SS and milliseconds, separated by a comma for SubRip and by a point for WebVTT."""
    seconds, millis = divmod(max(0, ms), 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{millis:03}"


def one_line(text: str) -> str:
    """Return the text on one line, with single spaces: a blank line would end a cue."""
    return " ".join(text.split())


def _shown(lines: Iterable[SpokenLine], end_ms: int | None, *, named: bool) -> list[tuple[Cue, SpokenLine, bool]]:
    """Return all cues by their start, each with its line, and whether it is the line's first cue. The cues of one
    speaker never overlap."""
    shown: list[tuple[Cue, SpokenLine, bool]] = []
    free_ms: dict[str, int] = {}
    for line, next_ms in _nexts(lines, end_ms):
        start_ms = max(line.start_ms, free_ms.get(line.speaker, 0))
        indent = columns(_prefix(line)) if named else 0
        found = cues(line.text, line.words, start_ms, line.end_ms, indent=indent, until_ms=next_ms)
        free_ms[line.speaker] = found[-1].end_ms
        shown.extend((cue, line, cue is found[0]) for cue in found)
    return sorted(shown, key=lambda each: each[0].start_ms)


def _nexts(lines: Iterable[SpokenLine], end_ms: int | None) -> Iterator[tuple[SpokenLine, int | None]]:
    """Return the lines in order, each with the time at which its cues must have ended: the start of the same speaker's
    next line, or of the next line of any speaker after its end, whichever comes first. For the last line it is
    `end_ms`."""
    cleaned = (
        replace(each, start_ms=max(0, each.start_ms), text=one_line(each.text), speaker=one_line(each.speaker))
        for each in lines
    )
    spoken = sorted((line for line in cleaned if line.text), key=lambda line: (line.start_ms, line.end_ms))
    starts = [line.start_ms for line in spoken]
    own_ms: dict[str, list[int]] = {}
    nexts: list[int | None] = []
    for line in reversed(spoken):
        over = bisect_left(starts, max(line.end_ms, line.start_ms + 1))
        after = [*starts[over : over + 1], *own_ms.get(line.speaker, [])]
        nexts.append(min(after, default=end_ms))
        own_ms[line.speaker] = [line.start_ms]
    return zip(spoken, reversed(nexts), strict=True)


def _prefix(line: SpokenLine) -> str:
    return f"{line.speaker}: " if line.speaker else ""


def _times(cue: Cue, point: str) -> str:
    return f"{clock(cue.start_ms, point)} --> {clock(cue.end_ms, point)}"


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
