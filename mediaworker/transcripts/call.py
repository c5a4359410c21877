"""Renders the finals of a call as a transcript in JSON, plain text, SubRip or WebVTT. No I/O."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from mediaworker.events import schema as events
from mediaworker.events.frame import decode
from mediaworker.policy.inverse_normalisation import shown_words
from mediaworker.transcripts import formats
from mediaworker.transcripts.formats import SpokenLine, TextFormat, plain_text, srt, vtt

Format = Literal["json", TextFormat]
FORMATS: tuple[Format, ...] = ("json", "txt", "srt", "vtt")
MEDIA_TYPES: dict[str, str] = {"json": formats.JSON, **formats.MEDIA_TYPES}
TYPES = frozenset({"transcript.final", "transcript.words", "call.started", "leg.updated"})
"""The types of the events that `segments` reads."""


class CallSegment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One final. `speaker` is the name of the leg's speaker at that time, or else the leg's label, its role if known,
    or the name of the leg."""

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
    spoken: str = ""
    """The text as the engine wrote it, where `text` has digits instead; absent: as `text`."""
    words: list[events.Word] = []
    """The words as they were spoken, with their times; empty when word timestamps are off or could not be computed."""


class CallTranscript(msgspec.Struct, frozen=True):
    """The JSON form of a call's transcript."""

    call_id: str
    state: str
    segments: list[CallSegment]


def segments(record: events.CallRecord, frames: Iterable[str]) -> list[CallSegment]:
    """Return the segments of a call from the frames of `TYPES`, ordered by the start of speech."""
    labels = {leg.leg: leg.label for leg in record.legs}
    bodies = list(_bodies(frames))
    names = _names(record, bodies)
    words = {body.utterance_id: body.words for body in bodies if isinstance(body, events.TranscriptWords)}
    found = []
    for final in bodies:
        if not isinstance(final, events.TranscriptFinal):
            continue
        role = final.role if final.role != "unknown" else ""
        named = (name for since_ms, name in reversed(names.get(final.leg, [])) if final.start_ms >= since_ms)
        speaker = next(named, final.name) or labels.get(final.leg) or role or final.leg
        found.append(
            CallSegment(
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
                spoken=final.spoken,
                words=words.get(final.utterance_id, []),
            )
        )
    return sorted(found, key=lambda segment: (segment.start_ms, segment.end_ms))


def _names(record: events.CallRecord, bodies: Iterable[events.EventBody]) -> dict[str, list[tuple[int, str]]]:
    """Return, for each leg, its speakers in order as (start, name). When a speaker is renamed, the later name counts.

    A name that was set after the end of the call is only in the call's record, and is that of the leg's last speaker.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for body in bodies:
        for leg in (
            body.legs if isinstance(body, events.CallStarted) else [body] if isinstance(body, events.LegUpdated) else []
        ):
            since_ms = leg.since_ms if isinstance(leg, events.LegUpdated) else 0
            before = [each for each in found.get(leg.leg, []) if each[0] < since_ms]
            found[leg.leg] = [*before, (since_ms, leg.name)]
    for leg in record.legs:
        *before, (since_ms, _) = found.get(leg.leg, [(0, "")])
        found[leg.leg] = [*before, (since_ms, leg.name)]
    return found


def _bodies(frames: Iterable[str]) -> Iterator[events.EventBody]:
    for frame in frames:
        with contextlib.suppress(events.EventError):  # an event that is damaged on the disk is left out
            yield decode(frame).body


def render(record: events.CallRecord, found: Sequence[CallSegment], format: Format) -> str:
    """Return the transcript in a format. JSON has every final; the other formats leave out finals without text, and
    subtitles split long ones."""
    if format == "json":
        return msgspec.json.encode(CallTranscript(record.call_id, record.state, list(found))).decode()
    lines = [
        SpokenLine(each.start_ms, each.end_ms, each.text, each.speaker, shown_words(each.words, each.spoken, each.text))
        for each in found
    ]
    match format:
        case "txt":
            return plain_text(lines, clocks=True)
        case "srt":
            return srt(lines)
        case "vtt":
            return vtt(lines)
