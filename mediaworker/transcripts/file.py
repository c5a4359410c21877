"""Renders the transcript of a file in every format that a client may request. No I/O.

`json`, `verbose_json` and `diarized_json` are OpenAI's objects (its API reference, "Create transcription") with some
further fields.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from asr import languages
from mediaworker.files.decoder_process import FileFacts
from mediaworker.files.messages import Ended
from mediaworker.files.segments import FileSegment, language, speaker, whole_text
from mediaworker.policy.inverse_normalisation import shown_words
from mediaworker.transcripts import formats
from mediaworker.transcripts.formats import SpokenLine, plain_text, srt, vtt

Format = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
FORMATS: tuple[Format, ...] = get_args(Format)
MEDIA_TYPES: dict[str, str] = {each: formats.MEDIA_TYPES.get(each, formats.JSON) for each in FORMATS}
MEDIA_TYPES["text"] = formats.MEDIA_TYPES["txt"]

ONE_CHANNEL = "the audio has one channel, and speakers are told apart by channel: all of it is one speaker's"


@dataclass(frozen=True, slots=True)
class FileTranscript:
    """The segments of a file, and the facts about the file that the formats show."""

    segments: Sequence[FileSegment]
    """The segments in the order of `arranged`."""
    duration_s: float
    channels: int = 1
    speakers: Sequence[str] = ()
    damaged: int = 0
    """The number of places where audio is missing or could not be decoded."""
    jumps: int = 0
    """How often the file's timestamps were wrong or were set back."""

    @classmethod
    def of(cls, facts: FileFacts, segments: Sequence[FileSegment], speakers: Sequence[str]) -> FileTranscript:
        """Return the transcript of a file as far as it has been read."""
        channels, ended = facts.opened.channels if facts.opened else 1, facts.ended or Ended(0.0, 0)
        return cls(segments, ended.duration_s, channels, speakers, ended.damaged, ended.jumps)

    @property
    def warnings(self) -> list[str]:
        """Sentences for the reader about the parts of the file that the transcript lacks."""
        found = []
        if failed := sum(segment.error is not None for segment in self.segments):
            found.append(f"{failed} of {len(self.segments)} stretches of speech could not be recognised")
        if self.damaged:
            places = "in one place" if self.damaged == 1 else f"in {self.damaged} places"
            found.append(f"the file is damaged or cut off: {places} silence stands for what cannot be decoded")
        if self.jumps:
            found.append(
                f"the file's clock jumped {self.jumps} times: what follows may have other times than in a player"
            )
        return found

    @property
    def whole(self) -> bool:
        """True when the whole file was decoded and recognised."""
        return not self.damaged and all(segment.error is None for segment in self.segments)

    def speaker(self, segment: FileSegment) -> str:
        """Return the name of a segment's speaker; empty when there is a single channel without a name."""
        if self.channels == 1 and not any(self.speakers):
            return ""
        return speaker(segment.channel, self.speakers)


def render(transcript: FileTranscript, format: Format, *, granularities: Sequence[str] = ("segment",)) -> str:
    """Return the transcript in a format. `granularities`: the parts of `verbose_json`, `segment` and `word`."""
    end_ms = round(1000 * transcript.duration_s) or None
    match format:
        case "text" if transcript.channels > 1:
            return plain_text(_lines(transcript))
        case "text":
            return f"{whole_text(transcript.segments)}\n"
        case "srt":
            return srt(_lines(transcript), end_ms=end_ms)
        case "vtt":
            return vtt(_lines(transcript), end_ms=end_ms)
        case "json":
            return _encode(_ended(transcript, format, {"text": whole_text(transcript.segments)}))
        case "verbose_json":
            return _encode(_verbose(transcript, granularities))
        case "diarized_json":
            return _encode(_diarized(transcript))


def warnings_of(transcript: FileTranscript, format: Format) -> list[str]:
    """Return the warnings of the transcript, and those that apply to this format only."""
    alone = format == "diarized_json" and transcript.channels == 1
    return transcript.warnings + ([ONE_CHANNEL] if alone else [])


def spoken_line(transcript: FileTranscript, segment: FileSegment) -> str:
    """Return a segment as a line of text, after the name of its speaker."""
    return plain_text([_line(transcript, segment)])


def segment_id(segment: FileSegment) -> str:
    return f"seg_{segment.index}"


def diarized_segment(transcript: FileTranscript, segment: FileSegment) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": segment_id(segment),
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "speaker": speaker(segment.channel, transcript.speakers),
    }


def _verbose(transcript: FileTranscript, granularities: Sequence[str]) -> dict[str, Any]:
    spoken = _spoken(transcript)
    code = language(transcript.segments)
    found: dict[str, Any] = {
        "task": "transcribe",
        "language": (languages.name(code) or "").lower(),
        "duration": round(transcript.duration_s, 3),
        "text": whole_text(transcript.segments),
    }
    if "segment" in granularities:
        found["segments"] = [_segment(transcript, number, each) for number, each in enumerate(spoken)]
    if "word" in granularities:
        words = (word for segment in spoken for word in segment.words)
        found["words"] = [{"word": w.word, "start": w.start_ms / 1000, "end": w.end_ms / 1000} for w in words]
    return _ended(transcript, "verbose_json", found)


def _segment(transcript: FileTranscript, number: int, segment: FileSegment) -> dict[str, Any]:
    # Token probabilities are not kept; the fields that clients expect are present with the value zero.
    found: dict[str, Any] = {
        "id": number,
        "seek": segment.start_ms // 10,
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": 0.0,
        "compression_ratio": _compression(segment.text),
        "no_speech_prob": 0.0,
        "language": segment.language,
        "channel": segment.channel,
    }
    name = transcript.speaker(segment)
    return found | ({"speaker": name} if name else {}) | ({"spoken": segment.spoken} if segment.spoken else {})


def _diarized(transcript: FileTranscript) -> dict[str, Any]:
    found = {
        "task": "transcribe",
        "duration": round(transcript.duration_s, 3),
        "text": whole_text(transcript.segments),
        "segments": [diarized_segment(transcript, each) for each in _spoken(transcript)],
    }
    return _ended(transcript, "diarized_json", found)


def _ended(transcript: FileTranscript, format: Format, found: dict[str, Any]) -> dict[str, Any]:
    """Add the members with which all JSON formats end."""
    found["usage"] = {"type": "duration", "seconds": round(transcript.duration_s)}
    if warnings := warnings_of(transcript, format):
        found["warnings"] = warnings
    return found


def _spoken(transcript: FileTranscript) -> list[FileSegment]:
    return [segment for segment in transcript.segments if segment.text]


def _lines(transcript: FileTranscript) -> list[SpokenLine]:
    return [_line(transcript, segment) for segment in transcript.segments]


def _line(transcript: FileTranscript, segment: FileSegment) -> SpokenLine:
    words = shown_words(segment.words, segment.spoken, segment.text)
    return SpokenLine(segment.start_ms, segment.end_ms, segment.text, transcript.speaker(segment), words)


def _compression(text: str) -> float:
    data = text.encode()
    return round(len(data) / len(zlib.compress(data)), 3) if data else 0.0


def _encode(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
