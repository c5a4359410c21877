"""The conversion of a client's audio to the bytes of a leg: G.711 unchanged, all else int16 at 16 kHz, resampled once.

Bytes may be cut anywhere: an incomplete sample, or an incomplete position of the leg, waits for the rest. So the output
does not depend on the cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from audio import WINDOW, Codec
from audio.format_check import FormatCheck
from audio.resample import Upsampler
from mediaworker.calls.call import Call
from mediaworker.events.schema import AudioSuspect

Encoding = Literal["pcm_s16le", "pcm_f32le", "mulaw", "alaw"]
WIDE_HZ = 16000
MAX_AHEAD = 8 * WINDOW
"""The most positions that a leg receives ahead of the VAD. All calls wait while a media tick processes the windows that
are due, so a file that is sent at once is processed at eight times real time and no faster."""
TAIL = 8000
"""Further positions for the end of a resampler's output."""
SAMPLE_BYTES: dict[Encoding, int] = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}
G711: dict[Encoding, Codec] = {"mulaw": Codec.PCMU, "alaw": Codec.PCMA}
SAME = 1.0 / 32768


@dataclass(frozen=True, slots=True)
class AudioForm:
    """The format of the client's bytes."""

    encoding: Encoding
    rate_hz: int
    channels: int = 1
    """The number of channels, interleaved sample by sample; each channel is a leg."""

    @property
    def codec(self) -> Codec:
        """The codec of the leg."""
        return G711.get(self.encoding, Codec.L16)


class Converter:
    """Converts one stream of bytes. `nonfinite` counts NaN and infinite samples, which become silence."""

    def __init__(self, form: AudioForm, nonfinite: int = 0) -> None:
        self.form, self.nonfinite = form, nonfinite
        self._sample_bytes = SAMPLE_BYTES[form.encoding]
        self._restart()

    def _restart(self) -> None:
        self._rest = self._odd = b""
        self._upsampler: Upsampler | None = None
        self._resampler: Any = None
        rate_hz = self.form.rate_hz
        if self.form.codec.wide and rate_hz == WIDE_HZ // 2:
            self._upsampler = Upsampler()  # it delays audio by 2 ms, soxr by 100 ms
        elif self.form.codec.wide and rate_hz != WIDE_HZ:
            import soxr  # only for such a client

            self._resampler = soxr.ResampleStream(rate_hz, WIDE_HZ, 1, dtype="float32", quality="HQ")

    def feed(self, data: bytes) -> bytes:
        """Returns whole positions of the leg's codec."""
        if not self.form.codec.wide:
            return data
        data = self._rest + data
        whole = len(data) // self._sample_bytes * self._sample_bytes
        self._rest = data[whole:]
        return self._whole(self._resampled(data[:whole]))

    def finish(self) -> bytes:
        """Return the audio held back, padded to a whole position, and reset. An incomplete sample is dropped."""
        if not self.form.codec.wide:
            return b""
        tail = b""
        if self._resampler is not None:
            tail = _int16(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        tail = self._whole(tail) + (self._odd + b"\0\0" if self._odd else b"")
        self._restart()
        return tail

    def _resampled(self, data: bytes) -> bytes:
        if self.form.encoding == "pcm_s16le":
            if self.form.rate_hz == WIDE_HZ:
                return data
            samples = np.frombuffer(data, "<i2").astype(np.float32) * np.float32(SAME)
        else:
            samples = self._finite(np.frombuffer(data, "<f4").astype(np.float32))
        if self._upsampler is not None:
            return _int16(self._upsampler.feed(np.frombuffer(_int16(samples), "<i2").astype(np.int16)))
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        return _int16(samples)

    def _finite(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        wrong = ~np.isfinite(samples)
        if wrong.any():
            self.nonfinite += int(wrong.sum())
            samples[wrong] = 0.0
        # Clip before resampling: a resampler would ring after a number near the largest float.
        return np.clip(samples, -1.0, 1.0)

    def _whole(self, samples: bytes) -> bytes:
        """The samples up to a whole number of positions, of two samples each; an odd sample waits."""
        samples = self._odd + samples
        whole = len(samples) // 4 * 4
        self._odd = samples[whole:]
        return samples[:whole]


def _int16(samples: NDArray[np.float32]) -> bytes:
    pcm: bytes = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype("<i2").tobytes()
    return pcm


class AudioIntake:
    """Splits a client's audio into channels and feeds each to its leg of the call."""

    def __init__(self, call: Call, legs: tuple[str, ...], form: AudioForm) -> None:
        assert len(legs) == form.channels
        self.form = form
        self._channels = [_Channel(call, leg, form) for leg in legs]
        self._rest = b""
        """The incomplete last frame (one sample of each channel)."""

    def receive(self, data: bytes, now: float) -> None:
        for channel, part in zip(self._channels, self._parts(data), strict=True):
            channel.receive(part, now)

    def _parts(self, data: bytes) -> Sequence[bytes]:
        if len(self._channels) == 1:
            return [data]
        data, size = self._rest + data, SAMPLE_BYTES[self.form.encoding]
        frame = size * len(self._channels)
        whole = len(data) // frame * frame
        self._rest = data[whole:]
        samples = np.frombuffer(data[:whole], np.uint8).reshape(-1, len(self._channels), size)
        return [samples[:, number].tobytes() for number in range(len(self._channels))]

    def finish(self, now: float) -> None:
        """Pass all waiting audio to the legs; an incomplete sample is dropped."""
        self._rest = b""
        for channel in self._channels:
            channel.finish(now)

    def switch(self, form: AudioForm, now: float) -> None:
        """Use another encoding or rate from here on. Another codec ends the open utterance."""
        self.finish(now)
        self.form = form
        for channel in self._channels:
            channel.switch(form, now)

    @property
    def nonfinite(self) -> int:
        """How many samples were NaN or infinite."""
        return sum(channel.converter.nonfinite for channel in self._channels)

    def advance(self) -> bool:
        """Pass audio to the legs as far as they have room; returns whether audio still waits."""
        return any([channel.advance() for channel in self._channels])


class _Channel:
    """Feeds one leg of a call, never more than `MAX_AHEAD` ahead of the VAD; further audio waits here.

    Audio continues where the previous audio ended, or at the present if the leg has been filled with silence meanwhile.
    """

    def __init__(self, call: Call, leg: str, form: AudioForm) -> None:
        self.form = form
        self._call, self._name = call, leg
        self._leg = call.legs[leg]
        call.members[leg].judged = True  # here, by the bytes as they come
        self.converter = Converter(form)
        self._check: FormatCheck | None = FormatCheck(form.encoding, form.rate_hz)
        """The check of the declared format; None once a suspicion has been published."""
        self._pending = b""
        self._now = 0.0

    def receive(self, data: bytes, now: float) -> None:
        self._now = now
        self._judge(data, now)
        if not self._pending:
            self._leg.resume(len(data) * 8000 // (SAMPLE_BYTES[self.form.encoding] * self.form.rate_hz), now)
        self._pending += self.converter.feed(data)
        self.advance()

    def _judge(self, data: bytes, now: float) -> None:
        """Publish once that the audio is most likely not in the declared format."""
        if self._check is None:
            return
        if self._pending:
            self._check.held_back()
        if (found := self._check.feed(data, now)) is not None:
            self._check = None
            self._call.publish(self._call.elapsed_ms(), AudioSuspect(self._name, found.why, found.detail))

    def finish(self, now: float) -> None:
        """Pass all waiting audio to the leg."""
        self._now = now
        self._pending += self.converter.finish()
        self.advance(MAX_AHEAD + TAIL)

    def switch(self, form: AudioForm, now: float) -> None:
        """Use another encoding or rate from here on. Another codec ends the open utterance."""
        self.finish(now)
        if form.codec is not self.form.codec:
            self._pending = b""  # not empty only if the shell read on although the session was ahead
            self._call.media_changed(self._name, form.codec, None, None)
        self.form, self.converter = form, Converter(form, self.converter.nonfinite)
        if self._check is not None:
            self._check = FormatCheck(form.encoding, form.rate_hz)

    def advance(self, limit: int = MAX_AHEAD) -> bool:
        """Pass audio to the leg as far as it has room; returns whether audio still waits."""
        size = self.form.codec.position_bytes
        while self._pending and not self._call.ending:
            room = (limit - self._leg.ahead) * size
            if room <= 0:
                return True
            part, self._pending = self._pending[:room], self._pending[room:]
            self._leg.receive_chunk(None, part, self._now)
        self._pending = b""
        return False
