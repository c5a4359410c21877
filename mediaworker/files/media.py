"""Decodes any audio that FFmpeg reads into one timeline at 16 kHz, block by block. It loads PyAV, so only the child
process imports it.

Files come from strangers. A file opens no other (a playlist could name files of this machine, or hosts behind its
firewall). A fault of the file becomes a `MediaError` with a sentence, and a damaged packet becomes silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, NoReturn

import av
import av.error
import av.subtitles.codeccontext  # PyAV imports both with the first file, when the sandbox forbids opening files
import av.subtitles.stream
import numpy as np
import soxr
from numpy.typing import NDArray

from mediaworker.calls.sound import RAW
from mediaworker.errors import MediaworkerError
from mediaworker.files.messages import Channels, Fault
from mediaworker.files.timeline import SourceFrame, SourceTimeline

RATE_HZ = 16000
MAX_CHANNELS = 64
SILENCE_S = 1.0
"""The length of the blocks in which a gap is filled with silence, at most."""
HEADS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"#!AM", b"\x1aE\xdf\xa3")
"""First bytes of files with a header: such a file is not raw audio, whatever its suffix."""
TAGS = (b"ID3", b"TAG", b"APETAGEX", b"LYRICSBEGIN")
"""First bytes of the tags before and after the audio of MP3 and AAC files, and so in the midst of concatenated ones. A
packet that begins with one is not damage."""
CLOCKLESS = ("aac", "ac3", "amr", "dts", "eac3", "loas", "mp3")
"""Formats without timestamps: FFmpeg computes them by the sample rate of the file's first frame."""
GAPLESS = ("flac", "mpegts", "ogg")
"""Formats whose timestamps only skip where audio has been lost."""
DTX_S = 0.45
"""The longest gap that Opus leaves when nobody speaks (discontinuous transmission): 400 ms and one frame."""
CLAIM_S = 60.0
"""The audio after which the total length of a file is estimated from the part of its bytes that has been read."""
Floats = NDArray[np.float32]


class MediaError(MediaworkerError):
    def __init__(self, fault: Fault, reason: str) -> None:
        self.fault, self.reason = fault, reason
        super().__init__(f"{fault}: {reason}")


class MediaFile:
    """One audio track of a file, the one that a player would choose.

    Args:
        file: a seekable file.
        name: the name whose suffix gives the format of a file without a header.
        max_s: the longest duration; a longer file is refused, at once when it declares its duration.

    Raises MediaError, here and in `blocks`.
    """

    def __init__(self, file: BinaryIO, name: str, *, channels: Channels, max_s: float) -> None:
        self._file, self._max_s = file, max_s
        self._errors = self._holes = 0
        self._bytes = file.seek(0, os.SEEK_END)
        if not self._bytes:
            raise MediaError("empty", "the file is empty")
        file.seek(0)
        self._container = _open(file, name)
        self._stream = stream = _track(self._container)
        context = stream.codec_context
        context.thread_count = 1  # the sandbox forbids starting threads
        self.container: str = self._container.format.name
        self.codec: str = context.name
        duration = self._container.duration
        self.duration_s = duration / av.time_base if duration is not None and duration > 0 else None
        self._claims_s = 0.0
        if self.duration_s is not None and self.duration_s > max_s:
            self._claims_s, self.duration_s = self.duration_s, None
        count = context.channels if context.channels is not None else 0
        if not 1 <= count <= MAX_CHANNELS:
            raise MediaError("channels", f"the audio has {count} channels; 1 to {MAX_CHANNELS} can be read")
        self.channels: int = count if channels == "split" else 1
        self._start_s = (self._container.start_time or 0) / av.time_base
        self._timed_hz = context.sample_rate if self.container in CLOCKLESS else 0
        """The sample rate from which FFmpeg computes timestamps; they are wrong from the first frame of another rate
        on. 0: the file has timestamps."""
        self._timed = True
        self._hole_s = (DTX_S if self.codec == "opus" else 0.0) if self.container in GAPLESS else float("inf")
        self._timeline: SourceTimeline[Any] = SourceTimeline(longest_gap_s=max_s, channels=count)
        self._convert: _Converter | None = None

    def blocks(self) -> Iterator[NDArray[np.int16]]:
        """Yield (channels, n) at 16 kHz, n > 0, from the beginning of the source to its end without a gap."""
        decoded = False
        for frame in self._frames():
            decoded = True
            self._timed = self._timed and self._timed_hz in (0, frame.sample_rate)
            timed = self._timed and frame.pts is not None
            time_s = float(frame.pts * frame.time_base) - self._start_s if timed else None
            for silence, placed in self._timeline.place(SourceFrame(frame, time_s, frame.samples, frame.sample_rate)):
                yield from self._placed(placed, silence)
        for silence, placed in self._timeline.finish():
            yield from self._placed(placed, silence)
        if not decoded:
            raise MediaError("unreadable", f"none of the audio could be decoded ({self.codec} in {self.container})")
        if self._convert is not None:
            yield from self._convert.flush()

    @property
    def damaged(self) -> int:
        """The number of places where audio is missing or could not be decoded."""
        return max(self._errors, self._holes)

    @property
    def jumps(self) -> int:
        """How often the timestamps of the file were wrong or were set back."""
        return self._timeline.jumps

    def close(self) -> None:
        self._container.close()

    def _frames(self) -> Iterator[Any]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except MemoryError:
                raise
            except (av.error.FFmpegError, OSError):
                self._errors += 1  # the file is cut off here; the audio before it is used
                packet = None
            if packet is None:
                return
            try:
                yield from packet.decode()
            except av.error.EOFError:
                return
            except (av.error.FFmpegError, ValueError):
                self._errors += not bytes(packet).startswith(TAGS)

    def _placed(self, frame: Any, silence: int) -> Iterator[NDArray[np.int16]]:
        if self._convert is not None and silence / frame.sample_rate > self._hole_s:
            self._holes += 1
        kind = (frame.format.name, frame.layout.name, frame.layout.nb_channels, frame.sample_rate)
        if self._convert is None or self._convert.kind != kind:
            if self._convert is not None:
                yield from self._convert.flush()
            self._convert = _Converter(kind, self.channels)
        convert, rate_hz = self._convert, frame.sample_rate
        self._check_length(self._timeline.position_s)
        while silence:
            piece = min(silence, round(SILENCE_S * rate_hz))
            yield from convert.feed(np.zeros((self.channels, piece), np.float32))
            silence -= piece
        yield from convert.feed(convert.samples(frame))

    def _check_length(self, position_s: float) -> None:
        """Refuse a file that is too long. A file may declare a wrong duration, so a declared one counts only once the
        bytes read so far confirm it."""
        if position_s > self._max_s:
            self._too_long(position_s)
        if self._claims_s and position_s > CLAIM_S and position_s * self._bytes > self._max_s * self._file.tell():
            self._too_long(self._claims_s)

    def _too_long(self, seconds: float) -> NoReturn:
        allowed = self._max_s / 3600
        raise MediaError("too_long", f"the audio is {seconds / 3600:.1f} h or longer; {allowed:g} h are allowed")


class _Converter:
    """Converts frames of one format, layout and rate to int16 at 16 kHz, with one resampling.

    Channels are mixed by FFmpeg's weights where the file says what each channel is; otherwise all have equal weight.
    """

    def __init__(self, kind: tuple[str, str, int, int], channels: int) -> None:
        self.kind = kind
        self._channels = channels
        _, _, self._count, rate_hz = kind
        if not 1 <= self._count <= MAX_CHANNELS or not 1 <= rate_hz <= 768000:
            raise MediaError("unreadable", f"{self._count} channels at {rate_hz} Hz cannot be read")
        mono = channels == 1 and self._count > 1
        gain = _gain(kind[1], self._count) if mono else None
        named, self._equal = gain is not None, mono and gain is None
        # Packed samples: PyAV reads beyond the buffers of planar frames with eight planes or more.
        self._mix = av.AudioResampler(format="flt", layout="mono" if named else None)
        self._columns = 1 if named else self._count
        self._gain = np.float32(1.0) if gain is None else gain
        self._resample: Any = None
        if rate_hz != RATE_HZ:
            self._resample = soxr.ResampleStream(rate_hz, RATE_HZ, channels, dtype="float32", quality="HQ")

    def samples(self, frame: Any) -> Floats:
        """Return the frame's samples as (channels, n), at the frame's rate."""
        frame.pts = None
        (mixed,) = self._mix.resample(frame)
        packed: Floats = np.nan_to_num(mixed.to_ndarray(), posinf=0.0, neginf=0.0)
        samples: Floats = packed.reshape(-1, self._columns).T
        if self._equal:
            samples = samples.mean(axis=0, keepdims=True)
        if len(samples) < self._channels:  # fewer channels than the file began with
            samples = np.concatenate([samples, np.zeros((self._channels - len(samples), samples.shape[1]), np.float32)])
        return samples[: self._channels] * self._gain

    def feed(self, samples: Floats, *, last: bool = False) -> Iterator[NDArray[np.int16]]:
        if self._resample is not None:
            # soxr expects a column for each channel, and a one-dimensional array for a single channel.
            columns = samples.T if self._channels > 1 else samples[0]
            samples = self._resample.resample_chunk(np.ascontiguousarray(columns), last=last)
            samples = samples.T if self._channels > 1 else samples[None]
        if samples.shape[1]:
            yield np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)

    def flush(self) -> Iterator[NDArray[np.int16]]:
        if self._resample is not None:
            yield from self.feed(np.zeros((self._channels, 0), np.float32), last=True)
            self._resample = None


def _gain(layout: str, channels: int) -> np.float32 | None:
    """Return the gain that keeps a mix within full scale: FFmpeg's weights for floats add up to more than one, to 1.4
    for stereo.

    None: the layout gives only the number of channels and not their positions, or FFmpeg has no weights for it.
    """
    if layout.endswith(" channels") or layout.startswith("ambisonic"):
        return None
    ones = av.AudioFrame.from_ndarray(np.ones((1, 1024 * channels), np.float32), format="flt", layout=layout)
    ones.sample_rate = RATE_HZ
    try:
        (mixed,) = av.AudioResampler(format="fltp", layout="mono").resample(ones)
    except av.error.ArgumentError:
        return None
    return np.float32(1.0 / max(1.0, float(mixed.to_ndarray()[0, 512])))


def _open(file: BinaryIO, name: str) -> Any:
    raw, rate_hz = RAW.get(PurePath(name).suffix.lower(), (None, 0))
    head = file.read(16)
    file.seek(0)
    options = {"protocol_whitelist": "none"}
    if raw is not None and not head.startswith(HEADS):
        options |= {"sample_rate": str(rate_hz)} if raw != "g722" else {}
    else:
        raw = None
    try:
        return av.open(
            _Nameless(file), format=raw, container_options=options, io_open=_refuse, metadata_errors="replace"
        )
    except MemoryError:
        raise
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError("unreadable", f"this is no audio or video that can be read ({_reason(error)})") from None


class _Nameless:
    """Passes FFmpeg only the bytes of a file. From its name FFmpeg would guess a format, and search for other files
    beside it."""

    def __init__(self, file: BinaryIO) -> None:
        self.read, self.seek, self.tell = file.read, file.seek, file.tell


def _refuse(url: str, flags: int, options: object) -> NoReturn:
    raise PermissionError("a file may not open others")


def _track(container: Any) -> Any:
    stream = container.streams.best("audio")
    if stream is None:
        kinds = sorted({each.type for each in container.streams})
        raise MediaError("no_audio", f"there is no audio in it, only {' and '.join(kinds) or 'nothing'}")
    if stream.codec_context is None:
        raise MediaError("unreadable", "its audio is in a codec that is not known")
    return stream


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".")
