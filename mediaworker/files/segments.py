"""What was heard in a file: segments in the order of its timeline, and the text they make together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from asr import text
from mediaworker.events.schema import Word


class FileSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One stretch of speech, recognised. Times are milliseconds of the source."""

    index: int
    """Of its chunk."""
    channel: int
    start_ms: int
    end_ms: int
    text: str
    language: str = ""
    words: list[Word] = []
    torn: bool = False
    """Cut off from the one before it in the middle of a sound: what stood there may have been heard twice."""
    error: str | None = None
    """Why there is no text."""


def arranged(segments: Iterable[FileSegment]) -> list[FileSegment]:
    """As they were said, without what the cut of a long stretch has doubled."""
    last: dict[int, FileSegment] = {}
    found = []
    for segment in sorted(segments, key=lambda each: (each.start_ms, each.channel, each.index)):
        mended = mend(last.get(segment.channel), segment)
        last[segment.channel] = segment
        found.append(mended)
    return found


def mend(before: FileSegment | None, segment: FileSegment) -> FileSegment:
    """Without its first word, if that is the last of the one before it and the cut went through it."""
    if before is None or not segment.torn:
        return segment
    ends, begins = text.words(before.text)[-1:], text.words(segment.text)[:1]
    if not ends or ends != begins:
        return segment
    said = text.without_first_word(segment.text)
    words = segment.words[1:] if segment.words and text.words(segment.words[0].word)[:1] == begins else segment.words
    return msgspec.structs.replace(segment, text=said, words=words)


def whole_text(segments: Sequence[FileSegment]) -> str:
    """Of arranged segments."""
    return text.joined(segment.text for segment in segments)


def language(segments: Sequence[FileSegment]) -> str:
    """The one that most of the time was spoken in; empty when none was recognised."""
    spoken: Counter[str] = Counter()
    for segment in segments:
        if segment.language and segment.text:
            spoken[segment.language] += segment.end_ms - segment.start_ms
    return max(spoken, key=lambda code: spoken[code], default="")


def speaker(channel: int, names: Sequence[str]) -> str:
    """A name, or a letter: A, B, … Z, AA …"""
    if channel < len(names) and names[channel]:
        return names[channel]
    letters = ""
    channel += 1
    while channel:
        channel, letter = divmod(channel - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
