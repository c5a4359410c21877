"""What the engine makes of the same samples without a network, a clock or another process.

A call's packets go through a leg of the worker's own kind, from memory; what the leg would hand to the engine is cut
out of it twice: whole prompts, and the utterances that voice activity detection and endpointing find.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from asr.utterance import Format, Languages, Utterance
from audio import Codec, Detector, SpeechOffset, SpeechOnset
from benchmarks.offline import recognize
from benchmarks.words.calls import Line, Part
from config import Settings
from mediaworker.calls.media_loop import TICK_S
from mediaworker.ingress.twilio.messages import MediaMessage, parse
from mediaworker.replay.link import Faults
from mediaworker.replay.source import Packets, load

_ids = count()


@dataclass(frozen=True)
class Span:
    """An utterance, in positions."""

    start: int
    end: int
    text: str
    lost_ms: int


@dataclass(frozen=True)
class Heard:
    whole: list[str]
    """Of each prompt, taken as one utterance."""
    utterances: list[Span]
    """As endpointing cuts them."""
    begin: int
    """Position of the first packet that arrived, in the call."""


def hear(settings: Settings, line: Line, file: Path, faults: Faults, parts: tuple[Part, ...]) -> Heard:
    """The capture or recording through a leg, and the leg's audio through the engine. Raises RuntimeError when the
    engine fails."""
    leg_codec = line.codec
    detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.silence_after_s)
    transport = "stream" if line.twilio else "rtp"
    leg = detector.open(leg_codec, settings.endpointing.assist, transport=transport)  # type: ignore[arg-type]
    audio, cuts, audio_start, begin = bytearray(), list[tuple[int, int, int, int, int]](), 0, 0
    form: Format = "L16" if leg_codec.wide else "PCMA" if leg_codec is Codec.PCMA else "PCMU"
    per_position = 4 if leg_codec.wide else 1

    def note(detections: list) -> None:  # type: ignore[type-arg]
        nonlocal audio_start
        for detection in detections:
            if isinstance(detection, SpeechOnset):
                audio_start = detection.audio_start
            elif isinstance(detection, SpeechOffset):
                lost_ms = leg.lost(audio_start, detection.audio_end) // 8
                cuts.append((detection.start, detection.end, audio_start, detection.audio_end, lost_ms))

    def consume() -> None:
        audio.extend(leg.read(len(audio) // per_position, leg.position))

    tick = None
    for at_s, position, payload in _arrivals(line, file, faults):
        if tick is None:
            begin, tick = position, at_s
            if line.twilio:
                leg.anchor(at_s)
        while tick <= at_s:
            for detections in detector.step(tick):
                note(detections)
            consume()
            tick += TICK_S
        if line.twilio:
            leg.receive_chunk(position, payload, at_s)
        else:
            leg.receive_rtp(payload, at_s)
    for detection in detector.finishing(leg, "hangup"):
        note([detection])
    consume()
    detector.close(leg)

    def said(start: int, end: int, previous: str = "", heard: Languages = ()) -> tuple[str, Languages]:
        """What the engine hears in this piece, and what it tells the next utterance of the leg about its language."""
        if not (piece := bytes(audio[max(0, start) * per_position : end * per_position])):
            return "", heard
        utterance = Utterance(
            f"offline-{next(_ids)}", form, settings.asr.language, live=False, previous=previous, heard=heard
        )
        hypothesis = recognize(settings, utterance, piece)
        return hypothesis.text, hypothesis.heard or heard

    spans: list[Span] = []
    heard: Languages = ()
    text = ""
    for start, end, first, last, lost_ms in cuts:
        text, heard = said(first, last, text, heard)
        spans.append(Span(start, end, text, lost_ms))
    return Heard([said(part.start - begin, part.end - begin)[0] for part in parts], spans, begin)


def _arrivals(line: Line, file: Path, faults: Faults) -> Iterator[tuple[float, int, bytes]]:
    """When it comes, its position in the call, and the datagram or the chunk."""
    source = load(file, faults, codec=line.codec, payload_type=line.codec.payload_type)
    if isinstance(source, Packets):
        for at_s, datagram, _ in source.arrivals[0]:
            yield at_s, 160 * int.from_bytes(datagram.payload[2:4], "big"), datagram.payload
    else:
        for at_s, message, _ in source.arrivals:
            if isinstance(found := parse(message.text), MediaMessage):
                yield at_s, 8 * found.media.timestamp, bytes(found.media.payload)


def recognise(settings: Settings, form: Format, audio: bytes) -> str:
    """A prompt as it is, with no path at all."""
    return recognize(settings, Utterance(f"offline-{next(_ids)}", form, settings.asr.language, live=False), audio).text


def warm(settings: Settings) -> None:
    """Load the engine into this process, if it is not there."""
    recognise(settings, "L16", bytes(32000))
