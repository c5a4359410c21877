"""Audio of phone calls: bytes from a line become a sample-exact timeline, and the timeline becomes utterances.

`Detector` holds all legs; a `Leg` receives RTP packets or stream chunks; `Detector.step` yields detections. Nothing in
this package does I/O, reads a clock or starts a thread: `now` is always an argument.

AudioError
├── RtpError       a datagram is no RTP packet: the peer's fault, caught in `Leg.receive_rtp`; a ValueError
├── OpusError      a packet is damaged: the peer's fault, caught in the leg as well; a ValueError
└── WeightsError   the VAD's weights are not installed: the installation's fault

A plain `ValueError` from `Leg.read` and `Detector.open` is the caller's fault, an `AssertionError` ours.
"""

from audio.codecs.codec import Codec
from audio.detector import ALL, Detector, Shard
from audio.endpointing.detections import (
    Detection,
    Digit,
    EndReason,
    SpeechOffset,
    SpeechOnset,
    SpeechPaused,
    SpeechResumed,
)
from audio.legs.leg import Leg
from audio.ring import WINDOW
from audio.rtp.packet import RtpError, RtpPacket, TelephoneEvent, is_rtcp
from audio.vad.weights import WeightsError

__all__ = [
    "ALL", "WINDOW", "Codec", "Detection", "Detector", "Digit", "EndReason", "Leg", "RtpError", "RtpPacket",
    "SpeechOffset", "SpeechPaused", "SpeechResumed", "SpeechOnset", "TelephoneEvent", "Shard", "WeightsError",
    "is_rtcp",
]  # fmt: skip
