"""Media files with known speech in them, made when they are needed, each with the table of what is said and when.

The voices are espeak-ng's, as in the training of the tiny model; what is said is digits, which that model reads. The
same seed makes the same file, byte for byte, with the same versions of espeak-ng and PyAV. PyAV 18 brings
encoders for everything here except GSM, which comes from the ffmpeg program.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from lab.house import ROOT

RATE_HZ = 16000
Samples = NDArray[np.int16]

# Those of the first 209 whose beginning and end are sharp: the same within 12 ms for any threshold from -46 to -37
# dBFS, at 16 kHz and at 8. The tiny model read each without an error in six conditions: with margins of 0.1 s, with
# those that a VAD leaves and noise at -60, -50 and -40 dBFS, and through 8 kHz linear and µ-law. None failed.
SEEDS = (
    4, 7, 9, 13, 14, 25, 32, 36, 39, 41, 44, 46, 51, 55, 61, 64, 66, 72, 79, 82, 85, 93, 100, 101, 102, 104, 106, 110,
    111, 113, 117, 118, 122, 125, 127, 133, 134, 136, 143, 146, 147, 150, 153, 158, 159, 163, 164, 167, 171, 173, 174,
    176, 179, 183, 184, 191, 194, 195, 196, 197, 199, 206, 207, 208,
)  # fmt: skip
CLIPS = len(SEEDS)
_VOICES = ("en-us", "en-us+f3", "en-us+m1", "en", "en+f4", "en+m7", "en-us+f2", "en+f5")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_MARGIN = RATE_HZ // 10
LOUD_DBFS = -45.0
"""Speech begins with the first 5 ms as loud as this, and ends with the last: 5 dB above the usual noise."""
GAP_S = (0.7, 6.0)


@dataclass(frozen=True, slots=True)
class Spoken:
    """Something said in a file. Seconds from the beginning of its samples."""

    words: tuple[str, ...]
    start_s: float
    end_s: float
    spans_s: tuple[tuple[float, float], ...]
    """Begin and end of each word, as espeak-ng places them."""

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def later(self, seconds: float) -> Spoken:
        spans = tuple((begin + seconds, end + seconds) for begin, end in self.spans_s)
        return replace(self, start_s=self.start_s + seconds, end_s=self.end_s + seconds, spans_s=spans)


@dataclass(frozen=True, slots=True)
class Clip(Spoken):
    samples: Samples
    """16 kHz, a tenth of a second of digital silence around the speech."""

    def cut(self) -> tuple[Samples, Spoken]:
        """Without its margins."""
        first, last = round(self.start_s * RATE_HZ), round(self.end_s * RATE_HZ)
        spoken = Spoken(self.words, self.start_s, self.end_s, self.spans_s)
        return self.samples[first:last], spoken.later(-self.start_s)


def digit_clips(count: int, seed: int) -> list[Clip]:
    """Three to six digits each, from a pool of 64: no clip comes twice before all have come."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(CLIPS) for _ in range(count // CLIPS + 1)])
    return [_pool()[i] for i in order[:count]]


@cache
def _pool() -> tuple[Clip, ...]:
    """Of each clip what two processes have said alike: once in some thousand clips espeak-ng ends one otherwise."""
    agreed: dict[int, Clip] = {}
    said: list[dict[int, Clip]] = []
    while len(agreed) < CLIPS:
        assert len(said) < 10, "espeak-ng never says the same twice"
        now = _said()
        for before in said:
            agreed |= {seed: clip for seed, clip in now.items() if _same(clip, before[seed])}
        said.append(now)
    return tuple(agreed[seed] for seed in SEEDS)


def _said() -> dict[int, Clip]:
    # In a process of its own: espeak-ng takes the phase of its voice from phrase to phrase, so what it said before is
    # heard in what it says next.
    made = subprocess.run([sys.executable, "-m", "lab.media.material"], cwd=ROOT, capture_output=True, check=True)
    with np.load(io.BytesIO(made.stdout)) as arrays:
        return {seed: _clip(seed, arrays[f"samples{seed}"], arrays[f"spans{seed}"]) for seed in SEEDS}


def _same(one: Clip, other: Clip) -> bool:
    return one.spans_s == other.spans_s and np.array_equal(one.samples, other.samples)


def _clip(seed: int, samples: Samples, spans: NDArray[np.int64]) -> Clip:
    blocks = samples.reshape(-1, RATE_HZ // 200).astype(np.float64) / 32768
    loud = np.flatnonzero(10 * np.log10(np.square(blocks).mean(axis=1) + 1e-12) >= LOUD_DBFS)
    places = tuple((float(begin) / RATE_HZ, float(end) / RATE_HZ) for begin, end in spans)
    return Clip(_draw(seed)[0], float(loud[0]) / 200, float(loud[-1] + 1) / 200, places, samples)


def _draw(seed: int) -> tuple[tuple[str, ...], np.random.Generator]:
    rng = np.random.default_rng(seed)
    return tuple(_DIGITS[i] for i in rng.integers(10, size=rng.integers(3, 7))), rng


def _speak(seed: int) -> tuple[Samples, NDArray[np.int64]]:
    from tools.train_tiny import espeak  # only in the process that speaks

    words, rng = _draw(seed)
    speaker = espeak.Speaker(_VOICES[seed % len(_VOICES)], int(rng.integers(140, 181)), int(rng.integers(40, 61)))
    speech = espeak.say(list(words), speaker)
    sound = soxr.resample(speech.samples, espeak.RATE_HZ, RATE_HZ)
    sound *= 10 ** (rng.uniform(-12, -4) / 20) / np.abs(sound).max()
    padding = _MARGIN + -len(sound) % (RATE_HZ // 200)
    samples = np.pad(np.rint(sound * 32767).astype(np.int16), (_MARGIN, padding))
    return samples, _MARGIN + np.rint(np.array(speech.spans) * (RATE_HZ / espeak.RATE_HZ)).astype(np.int64)


# -- recordings --------------------------------------------------------------------------------------------------------


def recording(seconds: float, seed: int, noise_dbfs: float = -50) -> tuple[Samples, list[Spoken]]:
    """Clips at random places with white noise everywhere, at 16 kHz: exactly as long as asked."""
    rng = np.random.default_rng(seed)
    sound = rng.standard_normal(round(seconds * RATE_HZ), np.float32) * np.float32(32768 * 10 ** (noise_dbfs / 20))
    table = []
    for at, samples, spoken in _places(len(sound), rng, seed):
        sound[at : at + len(samples)] += samples
        table.append(spoken)
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16), table


def _places(count: int, rng: np.random.Generator, seed: int) -> Iterator[tuple[int, Samples, Spoken]]:
    at = round(rng.uniform(*GAP_S) * RATE_HZ)
    for clip in digit_clips(count // RATE_HZ + 1, seed):
        samples, spoken = clip.cut()
        if at + len(samples) + GAP_S[0] * RATE_HZ > count:
            return
        yield at, samples, spoken.later(at / RATE_HZ)
        at += len(samples) + round(rng.uniform(*GAP_S) * RATE_HZ)


def splice(path: Path, seconds: float, seed: int, noise_dbfs: float = -50, rate: int = RATE_HZ) -> list[Spoken]:
    """A 16-bit WAV of a recording."""
    samples, table = recording(seconds, seed, noise_dbfs)
    encode(path, samples, "pcm_s16le", rate)
    return table


def two_speakers(path: Path, seconds: float, seed: int) -> tuple[list[Spoken], list[Spoken]]:
    """A stereo WAV; left and right speak of their own, and at times both at once."""
    (left, lefts), (right, rights) = (recording(seconds, 2 * seed + side) for side in (0, 1))
    encode(path, np.stack([left, right]), "pcm_s16le", layout="stereo")
    return lefts, rights


def mostly_silent(path: Path, hours: float, clips: int, seed: int = 0) -> list[Spoken]:
    """A FLAC of digital silence with a clip in every `hours / clips`, 2 s of faint noise around each."""
    rng = np.random.default_rng(seed)
    share = hours * 3600 / clips
    pieces, table = [], []
    for number, clip in enumerate(digit_clips(clips, seed)):
        samples, spoken = clip.cut()
        length = len(samples) + 4 * RATE_HZ
        at = round((number * share + rng.uniform(0, share - length / RATE_HZ)) * RATE_HZ)
        faint = rng.normal(0, 32768 * 10 ** (-60 / 20), length)
        faint[2 * RATE_HZ : -2 * RATE_HZ] += samples
        pieces.append((at, np.clip(np.rint(faint), -32768, 32767).astype(np.int16)))
        table.append(spoken.later(at / RATE_HZ + 2))
    with Encoder(path, "flac") as encoder:
        at = 0
        for begin, sound in [*pieces, (round(hours * 3600 * RATE_HZ), np.zeros(0, np.int16))]:
            while at < begin:
                encoder.write(np.zeros((1, size := min(begin - at, 10 * RATE_HZ)), np.int16))
                at += size
            encoder.write(sound[np.newaxis])
            at += len(sound)
    return table


# -- containers --------------------------------------------------------------------------------------------------------


class Encoder:
    """One audio stream of a new file, fed piece by piece; with a picture that stands still when `video_s` is given."""

    def __init__(
        self, path: Path, codec: str, rate: int = RATE_HZ, layout: str = "mono", *, begin_s: float = 0,
        video_s: float = 0, bit_rate: int = 0, muxer: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        # bitexact: no random ids and no version strings.
        self._file = av.open(str(path), "w", options={"fflags": "+bitexact"} | (muxer or {}))
        # Streams first, all of them: the header is written with the first packet.
        if video_s:
            self._video: Any = self._file.add_stream("mpeg4", rate=5, width=64, height=48, pix_fmt="yuv420p")
        self._stream: Any = self._file.add_stream(codec, rate=rate, layout=layout)
        if bit_rate:
            self._stream.bit_rate = bit_rate
        self._stream.codec_context.flags |= av.codec.context.Flags.bitexact
        self._rate, self._layout, self._at = rate, layout, round(begin_s * rate)
        if video_s:
            self._show(video_s)

    def write(self, samples: NDArray[Any]) -> None:
        """(channels, n): int16, or float32 with full scale 1, which keeps what 24 bits or a float can hold."""
        if samples.shape[1]:
            form = "s16" if samples.dtype == np.int16 else "flt"
            frame = av.AudioFrame.from_ndarray(samples.T.reshape(1, -1), format=form, layout=self._layout)
            frame.rate, frame.pts, frame.time_base = self._rate, self._at, Fraction(1, self._rate)
            self._at += samples.shape[1]
            self._file.mux(self._stream.encode(frame))

    def _show(self, seconds: float) -> None:
        for number in range(round(seconds * 5)):
            frame = av.VideoFrame.from_ndarray(np.full((72, 64), 128, np.uint8), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 5)
            self._file.mux(self._video.encode(frame))
        self._file.mux(self._video.encode(None))

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.mux(self._stream.encode(None))


def encode(path: Path, samples: Any, codec: str, rate: int = RATE_HZ, layout: str = "mono", **more: Any) -> None:
    """16 kHz, (n,) or (channels, n) → a file at `rate`. The path's suffix names the container."""
    channels = np.atleast_2d(samples)
    if rate != RATE_HZ:
        channels = soxr.resample(channels.T, RATE_HZ, rate).T
    with Encoder(path, codec, rate, layout, **more) as encoder:
        for at in range(0, channels.shape[1], rate):
            encoder.write(channels[:, at : at + rate])


def video_only(path: Path, seconds: float) -> None:
    """An MP4 with a picture and no sound."""
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as file:
        stream: Any = file.add_stream("mpeg4", rate=5, width=64, height=48, pix_fmt="yuv420p")
        for number in range(round(seconds * 5)):
            frame = av.VideoFrame.from_ndarray(np.full((72, 64), number % 256, np.uint8), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 5)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def _surround(path: Path, samples: Samples) -> None:
    """As in a film: speech in the centre of eight."""
    channels = np.zeros((8, len(samples)), np.float32)
    channels[2] = samples.astype(np.float32) / 32768
    encode(path, channels, "pcm_f32le", 96000, "7.1")


def _24_bits(path: Path, samples: Samples) -> None:
    encode(path, np.stack([samples.astype(np.float32) / 32768] * 2), "pcm_s24le", 96000, "stereo")


def _late(path: Path, samples: Samples) -> None:
    encode(path, samples, "flac", begin_s=LATE_S, video_s=LATE_S + len(samples) / RATE_HZ)


def _gsm(path: Path, samples: Samples) -> None:
    command = ["ffmpeg", "-v", "error", "-y", "-f", "s16le", "-ar", str(RATE_HZ), "-ac", "1", "-i", "-"]
    command += ["-ar", "8000", "-c:a", "libgsm_ms", "-bitexact", str(path)]
    subprocess.run(command, input=samples.tobytes(), check=True)


LATE_S = 1.5
LAG_S = {"at-40000s.ts": 0.021, "windows.wma": -0.046}
"""By how much the first decoded sample comes late: these do not say what their codec adds or leaves out."""
Writer = Callable[[Path, Samples], None]
CONTAINERS: dict[str, Writer] = {
    "8k.wav": partial(encode, codec="pcm_s16le", rate=8000),
    "16k.wav": partial(encode, codec="pcm_s16le"),
    "44k1.wav": partial(encode, codec="pcm_s16le", rate=44100),
    "48k.wav": partial(encode, codec="pcm_s16le", rate=48000),
    "96k-7.1-float.wav": _surround,
    "96k-24bit.wav": _24_bits,
    "alaw.wav": partial(encode, codec="pcm_alaw", rate=8000),
    "gsm.wav": _gsm,
    "44k1.flac": partial(encode, codec="flac", rate=44100),
    "44k1.mp3": partial(encode, codec="libmp3lame", rate=44100),
    "opus.ogg": partial(encode, codec="libopus", rate=48000),
    "moov-behind.m4a": partial(encode, codec="aac", rate=44100),
    "moov-in-front.m4a": partial(encode, codec="aac", rate=44100, muxer={"movflags": "faststart"}),
    "opus.webm": partial(encode, codec="libopus", rate=48000),
    "audio-late.mkv": _late,
    "at-40000s.ts": partial(encode, codec="aac", rate=48000, begin_s=40000),
    "narrow.amr": partial(encode, codec="libopencore_amrnb", rate=8000),
    "windows.wma": partial(encode, codec="wmav2", rate=44100, bit_rate=64000),
}
"""File name → what writes a recording into it. In `audio-late.mkv` the picture is there LATE_S before the samples."""

if __name__ == "__main__":
    arrays: dict[str, Any] = {}
    for each in SEEDS:
        arrays[f"samples{each}"], arrays[f"spans{each}"] = _speak(each)
    np.savez(sys.stdout.buffer, **arrays)
