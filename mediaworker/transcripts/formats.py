"""What people said as plain text, SubRip (`.srt`) or WebVTT (`.vtt`): the one way for calls and files. Pure formatting.

JSON differs between the two, and is in `call` and `file`.
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
    """Something said. Times before 0 are shown at 0, and a text with nothing to show is left out."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str = ""
    words: Sequence[Word] = ()
    """When they were said; empty when nobody knows."""


def plain_text(lines: Iterable[SpokenLine], *, clocks: bool = False) -> str:
    """A line for each that has text: when it began if `clocks`, who said it if that is known, and what."""
    spoken = ((line, one_line(line.text)) for line in lines)
    return "".join(
        (f"[{clock(line.start_ms, '.')}] " if clocks else "")
        + (f"{name}: " if (name := one_line(line.speaker)) else "")
        + f"{text}\n"
        for line, text in spoken
        if text
    )


def srt(lines: Iterable[SpokenLine], *, end_ms: int | None = None) -> str:
    """The speaker's name stands before the first of a line's cues, and takes its place there.

    `end_ms`: of what is shown meanwhile; no cue stays longer. None: nobody knows.
    """
    blocks = []
    for number, (cue, line, first) in enumerate(_shown(lines, end_ms, named=True), 1):
        # `-->` is SubRip's own; the name and the text may make one together.
        said = re.sub("--+>", "->", (_prefix(line) if first else "") + "\n".join(cue.lines))
        blocks.append(f"{number}\n{_times(cue, ',')}\n{said}\n")
    return "\n".join(blocks)


def vtt(lines: Iterable[SpokenLine], *, end_ms: int | None = None) -> str:
    """The speaker's name is in a voice tag of every cue. `end_ms`: see `srt`."""
    blocks = ["WEBVTT\n"]
    for cue, line, _ in _shown(lines, end_ms, named=False):
        voice = f"<v {_escape(line.speaker)}>" if line.speaker else ""
        said = _escape("\n".join(cue.lines))
        blocks.append(f"{_times(cue, '.')}\n{voice}{said}\n")
    return "\n".join(blocks)


def clock(ms: int, point: str) -> str:
    """HH:MM:SS and milliseconds; SubRip wants a comma, WebVTT a point."""
    seconds, millis = divmod(max(0, ms), 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{millis:03}"


def one_line(text: str) -> str:
    """A blank line would end a cue."""
    return " ".join(text.split())


def _shown(lines: Iterable[SpokenLine], end_ms: int | None, *, named: bool) -> list[tuple[Cue, SpokenLine, bool]]:
    """By their start, with the line of each and whether it is the line's first. One speaker's never overlap."""
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
    """In order, with the start of what is next: of the same speaker, or of anybody who began when it was over. Behind
    the last there is the end."""
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
