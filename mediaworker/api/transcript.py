"""A call's finals as a transcript: JSON, plain text, SubRip, WebVTT. Pure formatting."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from mediaworker.api.cues import LINE, Cue, cues, width
from mediaworker.events.schema import CallRecord, TranscriptFinal, TranscriptWords, Word, decode

Format = Literal["json", "txt", "srt", "vtt"]
FORMATS: tuple[Format, ...] = get_args(Format)
MEDIA_TYPES: dict[Format, str] = {
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One final. `speaker` is the leg's name, else its label, its role when known, else the leg."""

    utterance_id: str
    leg: str
    role: str
    speaker: str
    start_ms: int
    end_ms: int
    text: str
    language: str
    reason: str
    error: str | None = None
    words: list[Word] = []
    """Empty: nobody asked when they were said, or it could not be told."""


class Transcript(msgspec.Struct, frozen=True):
    call_id: str
    state: str
    segments: list[Segment]


def segments(record: CallRecord, frames: Iterable[str]) -> list[Segment]:
    """From `transcript.final` and `transcript.words` frames, in the order in which people began to speak."""
    speakers = {leg.leg: leg.name or leg.label for leg in record.legs}
    bodies = [decode(frame).body for frame in frames]
    words = {body.utterance_id: body.words for body in bodies if isinstance(body, TranscriptWords)}
    found = []
    for final in bodies:
        if not isinstance(final, TranscriptFinal):
            continue
        role = final.role if final.role != "unknown" else ""
        speaker = speakers.get(final.leg) or role or final.leg
        found.append(
            Segment(
                utterance_id=final.utterance_id,
                leg=final.leg,
                role=final.role,
                speaker=speaker,
                start_ms=final.start_ms,
                end_ms=final.end_ms,
                text=final.text,
                language=final.language,
                reason=final.reason,
                error=final.error,
                words=words.get(final.utterance_id, []),
            )
        )
    return sorted(found, key=lambda segment: (segment.start_ms, segment.end_ms))


def render(record: CallRecord, found: Sequence[Segment], format: Format) -> str:
    """JSON has every final; the others leave out those without text, and subtitles cut those whose words have times."""
    if format == "json":
        return msgspec.json.encode(Transcript(record.call_id, record.state, list(found))).decode()
    spoken = [segment for segment in found if segment.text.strip()]
    if format == "txt":
        return "".join(f"[{_clock(s.start_ms, '.')}] {_line(s.speaker)}: {_line(s.text)}\n" for s in spoken)
    if format == "srt":
        shown = [(cue, _srt(s, cue)) for s in spoken for cue in _cues(s, indent=width(f"{_line(s.speaker)}: "))]
        shown.sort(key=lambda each: each[0].start_ms)
        return "\n".join(f"{number}\n{_times(cue, ',')}\n{said}\n" for number, (cue, said) in enumerate(shown, 1))
    shown = [(cue, _vtt(s, cue)) for s in spoken for cue in _cues(s)]
    shown.sort(key=lambda each: each[0].start_ms)
    return "\n".join(["WEBVTT\n", *(f"{_times(cue, '.')}\n{said}\n" for cue, said in shown)])


def _clock(ms: int, point: str) -> str:
    """HH:MM:SS and milliseconds; SubRip wants a comma, WebVTT a point."""
    seconds, millis = divmod(max(0, ms), 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{millis:03}"


def _cues(segment: Segment, *, indent: int = 0) -> list[Cue]:
    """One for all of it, unless its words say where to cut. `indent`: of the speaker's name; a long one takes no more
    than half a line."""
    text = _line(segment.text)
    return cues(text, segment.words, indent=min(indent, LINE // 2)) or [
        Cue(segment.start_ms, segment.end_ms, (text,))
    ]


def _times(cue: Cue, point: str) -> str:
    start_ms = max(0, cue.start_ms)
    # A cue of no length is an error in WebVTT and shown by no player.
    return f"{_clock(start_ms, point)} --> {_clock(max(cue.end_ms, start_ms + 1), point)}"


def _line(text: str) -> str:
    """On one line: a blank line ends a cue."""
    return " ".join(text.split())


def _srt(segment: Segment, cue: Cue) -> str:
    return re.sub("--+>", "->", f"{_line(segment.speaker)}: " + "\n".join(cue.lines))


def _vtt(segment: Segment, cue: Cue) -> str:
    return f"<v {_escape(segment.speaker)}>" + "\n".join(map(_escape, cue.lines))


def _escape(text: str) -> str:
    return html.escape(_line(text), quote=False)
