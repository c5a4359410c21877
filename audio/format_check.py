"""The check of a stream's declared format against its first bytes, its bit patterns and its speed.

Bytes of another format sound like noise, for which an engine returns empty or invented text. Without this check users
would get no hint. Only streams that clearly have another format are reported.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from audio.codecs.g711 import ALAW, ULAW

BLOCK_BYTES = 8192
BLOCKS, AGREE = 12, 4
"""At least 4 of 12 blocks that are not silent must have the same verdict. Speech in the declared format resembles no
other format, but a block between two sentences may resemble any."""
SWAPPED = 1.6
"""PCM counts as byte-swapped if it is this many times rougher as declared: only speech in the right order is smooth."""
SMOOTH, LAWS, PCM = 0.8, 1.5, 2.2
"""G.711 counts as another format if it is smoother than SMOOTH in that format, and LAWS (or PCM) times rougher as
declared."""
SPEECH, TONE = 0.4, 1.75
"""Audio smoother than SPEECH has the declared format. So has audio rougher than TONE: it is a whistle near 3,400 Hz,
which is smooth if only every second code is considered."""
ROUGH, ENTROPY = 1.2, 7.7
"""Compressed or encrypted audio is as rough as noise, with a higher entropy in bits per byte: noise in G.711 has 7.4.
"""
QUIET = 64
"""The mean level below which a block counts as a pause and is ignored."""
LEAST_DC = 512
"""The level from which on a constantly repeated code is not silence."""
SLOW = 0.8
"""Audio that arrives steadily at less than this share of real time has another rate than declared."""
STEADY_S, STEADY = 8, 0.05
"""A speed is steady if each of STEADY_S seconds deviates from the mean by at most STEADY."""
CONTAINERS = {
    b"RIFF": "a WAV file with its header", b"\x1aE\xdf\xa3": "WebM or Matroska", b"OggS": "Ogg", b"fLaC": "FLAC",
    b"ID3\x03": "MP3", b"ID3\x04": "MP3", b"FORM": "an AIFF file", b"caff": "a CAF file",
}  # fmt: skip
NAMES = {"pcm_s16le": "16-bit PCM", "pcm_f32le": "32-bit float", "mulaw": "µ-law", "alaw": "A-law"}
SAMPLE_BYTES = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}


@dataclass(frozen=True, slots=True)
class Suspicion:
    why: Literal["format", "rate", "level"]
    detail: str
    """The explanation in one sentence."""


class FormatCheck:
    """The check of one speaker's bytes against one declared format. `feed` returns at most one suspicion."""

    def __init__(self, encoding: str, rate_hz: int) -> None:
        self._encoding, self._bytes_per_s = encoding, SAMPLE_BYTES[encoding] * rate_hz
        self._rate_hz = rate_hz
        self._block = b""
        self._begun = False
        self._votes: Counter[str] = Counter()
        self._speeds: deque[float] | None = deque(maxlen=STEADY_S)
        """The speeds of the last seconds; None if the sender does not determine its speed, or if it is right."""
        self._second_s = 0.0
        self._second_bytes = 0

    def held_back(self) -> None:
        """Ignore the speed, because the sender is throttled."""
        self._speeds = None

    @property
    def done(self) -> bool:
        """Whether enough audio has been examined."""
        return self._votes.total() >= BLOCKS

    def feed(self, data: bytes, now: float) -> Suspicion | None:
        """Check the next bytes, which arrived at `now`."""
        if not data:
            return None
        return self._container(data) or self._speed(len(data), now) or self._examine(data)

    def _container(self, data: bytes) -> Suspicion | None:
        if self._begun:
            return None
        self._begun, self._second_s = True, float("nan")
        name = CONTAINERS.get(data[:4]) or ("MP4" if data[4:8] == b"ftyp" else None)
        if name is None:
            return None
        return Suspicion("format", f"The audio was declared as {NAMES[self._encoding]} and begins like {name}.")

    def _speed(self, size: int, now: float) -> Suspicion | None:
        if self._speeds is None:
            return None
        if np.isnan(self._second_s):
            self._second_s = now  # the audio in the first message was spoken before
            return None
        self._second_bytes += size
        if now < self._second_s + 1:
            return None
        self._speeds.append(self._second_bytes / self._bytes_per_s / (now - self._second_s))
        self._second_s, self._second_bytes = now, 0
        mean = sum(self._speeds) / len(self._speeds)
        if len(self._speeds) < STEADY_S or mean >= SLOW or max(abs(each - mean) for each in self._speeds) > STEADY:
            return None
        self._speeds = None
        return Suspicion("rate", f"The audio comes at {mean:.0%} of the speed of the {self._rate_hz} Hz declared.")

    def _examine(self, data: bytes) -> Suspicion | None:
        if self.done:
            return None
        self._block += data[: BLOCK_BYTES - len(self._block)]
        if len(self._block) < BLOCK_BYTES:
            return None
        block, self._block = self._block, b""
        if (vote := self._vote(block)) is not None:
            self._votes[vote] += 1
        found = next((name for name, count in self._votes.items() if name and count >= AGREE), None)
        if found is None:
            return None
        self._votes[""] = BLOCKS  # one verdict is enough
        why: Literal["format", "level"] = "level" if found in (BEYOND, STUCK) else "format"
        return Suspicion(why, f"The audio was declared as {NAMES[self._encoding]} and looks like {found}.")

    def _vote(self, block: bytes) -> str | None:
        """The other format that the block resembles; empty for none, and None if the block decides nothing."""
        match self._encoding:
            case "pcm_s16le":
                return _instead_of_pcm(block)
            case "pcm_f32le":
                return _instead_of_floats(block)
            case "mulaw":
                return _instead_of_g711(block, ULAW, ALAW, "A-law")
        return _instead_of_g711(block, ALAW, ULAW, "µ-law")


BEYOND = "floats that were not scaled to ±1"
STUCK = "the same byte all the time, which is not its silence"


def _magnitudes(block: bytes) -> NDArray[np.float32]:
    """The absolute values of the block as floats, without zeros, and with NaN as infinity."""
    values = np.abs(np.frombuffer(block, "<f4").astype(np.float32))
    values[np.isnan(values)] = np.inf
    return values[values > 0]


def _level(samples: NDArray[Any]) -> float:
    wide = samples.astype(np.float32)
    return float(np.abs(wide - wide.mean()).mean())


def _roughness(samples: NDArray[Any]) -> float:
    """The mean step divided by the mean level; 0 for a constant."""
    level = _level(samples)
    return float(np.abs(np.diff(samples.astype(np.float32))).mean()) / level if level else 0.0


def _instead_of_pcm(block: bytes) -> str | None:
    samples = np.frombuffer(block, "<i2")
    if np.abs(samples.astype(np.int32)).mean() < QUIET:
        return None
    values = _magnitudes(block)
    if len(values) > len(samples) // 8 and ((values > 1e-15) & (values < 1.5)).mean() > 0.95:
        return "32-bit float"
    swapped = _roughness(samples.byteswap())
    return "16-bit PCM of the other byte order" if 0 < swapped * SWAPPED < _roughness(samples) else ""


def _instead_of_floats(block: bytes) -> str | None:
    values = _magnitudes(block)
    if len(values) < len(block) // 32:
        return None
    if ((values > 1e-9) & (values < 1e6)).mean() < 0.5:
        return "16-bit PCM or something else"
    return BEYOND if (values > 8).mean() > 0.5 else ""


def _instead_of_g711(block: bytes, own: NDArray[np.int16], other: NDArray[np.int16], other_name: str) -> str | None:
    """The other format that a G.711 block resembles, as `_vote` returns it.

    `own` and `other` are the samples of all codes in the declared law and in the other one.
    """
    codes = np.frombuffer(block, np.uint8)
    declared = own[codes]
    if (codes == codes[0]).all():
        return STUCK if abs(int(declared[0])) >= LEAST_DC else None
    if ((codes >= 0x20) & (codes < 0x7F)).all():
        return "text, such as Base64"
    if _level(declared) < QUIET or _level(other[codes]) < QUIET:
        return None
    rough = _roughness(declared)
    if not SPEECH <= rough <= TONE:
        return ""
    for name, samples, times in (
        (other_name, other[codes], LAWS),
        ("16-bit PCM", codes.view("<i2"), PCM),
        ("16-bit PCM of the other byte order", codes.view(">i2"), PCM),
        ("32-bit float", _floats(block), PCM),
    ):
        if 0 < _roughness(samples) < min(SMOOTH, rough / times):
            return name
    return "compressed or encrypted audio" if rough > ROUGH and _entropy(codes) > ENTROPY else ""


def _floats(block: bytes) -> NDArray[Any]:
    """The block as floats if it may consist of floats; otherwise one zero."""
    values = _magnitudes(block)
    if len(values) < len(block) // 32 or ((values > 1e-15) & (values < 1.5)).mean() < 0.95:
        return np.zeros(1, np.float32)
    return np.frombuffer(block, "<f4")


def _entropy(codes: NDArray[np.uint8]) -> float:
    """The entropy of the codes in bits per byte."""
    counts = np.bincount(codes, minlength=256)
    share = counts[counts > 0] / len(codes)
    return float(-(share * np.log2(share)).sum())
