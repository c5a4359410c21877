"""Audio from before a codec change: it is kept until it is too old to be read, and joined to the audio after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audio.codecs import g711
from audio.codecs.codec import Codec


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The audio that `Leg.read` returned for [start, end) while `codec` was in force."""

    codec: Codec
    start: int
    audio: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.audio) // _bytes(self.codec)

    def read(self, start: int, stop: int) -> bytes:
        """The part of [start, stop) that this epoch contains."""
        size = _bytes(self.codec)
        return self.audio[max(0, start - self.start) * size : max(0, stop - self.start) * size]


def join(pieces: list[tuple[Codec, bytes]]) -> bytes:
    """The consecutive pieces as one, in the codec of the last piece."""
    codec = pieces[-1][0]
    return b"".join(audio if _form(own) == _form(codec) else _convert(audio, own, codec) for own, audio in pieces)


def _bytes(codec: Codec) -> int:
    return 4 if codec.wide else 1


def _form(codec: Codec) -> str:
    return "wide" if codec.wide else codec.rtp_name


def _convert(audio: bytes, codec: Codec, to: Codec) -> bytes:
    if codec.wide:
        # Averaging pairs is crude, but a read across a change from wide to narrow happens at most once per re-INVITE.
        pairs = np.frombuffer(audio, "<i2").astype(np.int32).reshape(-1, 2)
        samples = (pairs.sum(axis=1) >> 1).astype(np.int16)
    else:
        samples = g711.alaw_decode(audio) if codec is Codec.PCMA else g711.ulaw_decode(audio)
    if to.wide:
        wide: bytes = samples.repeat(2).astype("<i2").tobytes()
        return wide
    return g711.alaw_encode(samples) if to is Codec.PCMA else g711.ulaw_encode(samples)
