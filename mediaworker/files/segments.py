"""The recognised segments of a file: their order on its timeline, and the text that they form. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from asr import text
from mediaworker.events.schema import Word
from mediaworker.policy.inverse_normalisation import with_digits


class FileSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One recognised segment of speech. Times are milliseconds of the source."""

    index: int
    """The index of its chunk."""
    channel: int
    start_ms: int
    end_ms: int
    text: str
    language: str = ""
    words: list[Word] = []
    torn: bool = False
    """The cut between this segment and the previous one went through a sound, so a word there may be in both."""
    error: str | None = None
    """Why there is no text; None when recognition succeeded."""
    spoken: str = ""
    """The text before its numbers were written in digits; empty when `text` is that. Stored segments have none."""


def arranged(segments: Iterable[FileSegment]) -> list[FileSegment]:
    """Return the segments in the order of the timeline, without words doubled by a cut."""
    last: dict[int, FileSegment] = {}
    found = []
    for segment in sorted(segments, key=lambda each: (each.start_ms, each.channel, each.index)):
        mended = mend(last.get(segment.channel), segment)
        last[segment.channel] = segment
        found.append(mended)
    return found


def mend(before: FileSegment | None, segment: FileSegment) -> FileSegment:
    """Return the segment without its first word if the cut went through it, so that `before` ends with it as well."""
    if before is None or not segment.torn:
        return segment
    ends, begins = text.words(before.text)[-1:], text.words(segment.text)[:1]
    if not ends or ends != begins:
        return segment
    rest = text.without_first_word(segment.text)
    words = segment.words[1:] if segment.words and text.words(segment.words[0].word)[:1] == begins else segment.words
    return msgspec.structs.replace(segment, text=rest, words=words)


def in_digits(segments: Iterable[FileSegment]) -> list[FileSegment]:
    """Return arranged segments with their numbers in digits; `words` stay as they were spoken."""
    found = []
    for segment in segments:
        written = with_digits(segment.text, segment.language)
        same = written == segment.text
        found.append(segment if same else msgspec.structs.replace(segment, text=written, spoken=segment.text))
    return found


def whole_text(segments: Sequence[FileSegment]) -> str:
    """Return the text of arranged segments."""
    return text.joined(segment.text for segment in segments)


def language(segments: Sequence[FileSegment]) -> str:
    """Return the language of the most speech, by time; empty when none was recognised."""
    spoken: Counter[str] = Counter()
    for segment in segments:
        if segment.language and segment.text:
            spoken[segment.language] += segment.end_ms - segment.start_ms
    return max(spoken, key=lambda code: spoken[code], default="")


def speaker(channel: int, names: Sequence[str]) -> str:
    """Return the name of a channel's speaker, or a letter where it has none: A, B, … Z, AA …"""
    if channel < len(names) and names[channel]:
        return names[channel]
    letters = ""
    channel += 1
    while channel:
        channel, letter = divmod(channel - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
