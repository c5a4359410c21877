"""What the worker should make of a recording: the same detector and engine, fed from memory instead of a socket."""

from __future__ import annotations

from dataclasses import dataclass

from audio import Codec, Detector, SpeechOffset, SpeechOnset
from benchmarks.offline import transcribe
from config import Settings
from config.settings import Asr
from lab.worker.peers import TINY


@dataclass(frozen=True)
class Expected:
    start_ms: int
    end_ms: int
    text: str
    audio: bytes
    """In the codec, as the engine is given it."""


DEFAULT = Settings(asr=Asr(model=str(TINY)))
MOONSHINE = Settings(asr=Asr(engine="moonshine"))
"""Starts in half a second: for tests that kill the engine by the dozen, and for what people say."""


def utterances(
    codec: Codec, payloads: list[bytes], *, recognise: bool = True, settings: Settings = DEFAULT
) -> list[Expected]:
    """20 ms payloads of the codec → the utterances of the profile `assist`, with the engine's text."""
    detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.silence_after_s)
    leg = detector.open(codec, settings.endpointing.assist, transport="stream")
    found: list[Expected] = []
    audio_start = 0

    def take(detections: list) -> None:
        nonlocal audio_start
        for detection in detections:
            if isinstance(detection, SpeechOnset):
                audio_start = detection.audio_start
            elif isinstance(detection, SpeechOffset):
                heard = leg.read(audio_start, detection.audio_end)
                form = "L16" if codec.wide else codec.name
                text = transcribe(settings, form, heard) if recognise else ""
                found.append(Expected(detection.start // 8, detection.end // 8, text, heard))

    now = 100.0
    leg.start(now)
    for number, payload in enumerate(payloads):
        leg.receive_chunk(number * 160, payload, now + number * 0.020)
        for detections in detector.step(now + number * 0.020):
            take(detections)
    take(detector.finish(leg, "hangup"))
    detector.close(leg)
    return found


def packets(codes: bytes) -> list[bytes]:
    return [codes[i : i + 160] for i in range(0, len(codes), 160)]
