"""The segmentation of a recording: the VAD and the endpointing of calls, over audio that is completely available.

The windows pass through the network in blocks of 128: all layers but the recurrent cell process them at once, which
costs a third of single calls. The start of a block depends on the position only, so a second scan finds the same
utterances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio.endpointing.detections import Detection, EndReason, SpeechOffset, SpeechOnset
from audio.endpointing.table import SILENT_WINDOWS, WINDOW, Endpointer, powers
from audio.vad.decimate import LAG, MEMORY, decimate
from audio.vad.silero import CONTEXT, HIDDEN, MAX_BATCH, SileroVad
from config import Endpointing

BLOCK = MAX_BATCH * WINDOW
"""The positions per block: 4.1 s."""
LOUD_SPAN = 400
"""The positions around a cut whose level decides whether it lies in a sound: 50 ms."""
LOUD_PART = 0.1
"""A cut lies in a sound if the level (RMS) around it exceeds this share of the utterance's level: -20 dB."""

_NO_LEG: Any = None

Samples = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """An utterance of a recording. Positions are 8 kHz samples since its beginning."""

    start: int
    end: int
    """The end of the speech."""
    audio_start: int
    """The first sample to be recognised; no two segments share a sample."""
    samples: Samples
    """The audio from `audio_start` on, int16 at 16 kHz."""
    reason: EndReason
    torn: bool
    """Whether the previous segment was cut for its length in the middle of a sound, and this one continues it."""


class Scanner:
    """The segmentation of one channel. The results do not depend on the pieces in which audio is fed."""

    def __init__(self, vad: SileroVad, profile: Endpointing) -> None:
        self._vad = vad
        self._endpointer = Endpointer(profile, _NO_LEG)
        self._hidden, self._cell = np.zeros(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
        # The samples before a block that the decimator and the network need.
        self._memory, self._context = np.zeros(MEMORY, np.float32), np.zeros(CONTEXT, np.float32)
        self._kept = np.zeros(0, np.int16)
        """Samples from `_floor` on: those of the open utterance, or those for the pre-roll of the next one."""
        self._floor = 0
        self._fed = self._scanned = 0
        self._started: SpeechOnset | None = None
        self._segmented = 0
        """The end of the last segment's audio."""
        self._torn = False
        self._power = 0.0
        """The power of the last window."""
        self._silent = 0
        """The number of windows of digital silence just before `_scanned`."""

    @property
    def position(self) -> int:
        """The length of the audio so far, in positions."""
        return self._fed

    def feed(self, samples: Samples) -> Iterator[SpeechSegment]:
        """Process any number of samples, int16 at 16 kHz, and yield the segments that are complete."""
        self._kept = np.concatenate([self._kept, samples])
        self._fed = self._floor + len(self._kept) // 2  # an odd sample waits for the next one
        while self._fed - self._scanned >= BLOCK:
            yield from self._scan(BLOCK)

    def finish(self) -> Iterator[SpeechSegment]:
        """Process the last windows of the recording, and yield the open segment."""
        left = self._fed - self._scanned
        if left:
            yield from self._scan(left)
        yield from self._segments(self._endpointer.finish("endpoint"))

    def _scan(self, positions: int) -> Iterator[SpeechSegment]:
        windows = -(-positions // WINDOW)
        first = 2 * (self._scanned - self._floor)
        wide = np.zeros(MEMORY + 2 * windows * WINDOW, np.float32)
        wide[:MEMORY] = self._memory
        samples = self._kept[first : first + 2 * positions]
        np.multiply(samples, np.float32(1 / 32768), out=wide[MEMORY : MEMORY + len(samples)])
        self._memory = wide[-MEMORY:].copy()
        start, self._scanned = self._scanned, self._scanned + positions
        sounds = np.flatnonzero(samples)
        if not len(sounds) and self._silent >= SILENT_WINDOWS and self._endpointer.at_rest:
            self._endpointer.consumed = start + windows * WINDOW - LAG
        else:
            measured = (*self._infer(wide, windows), self._levels(wide[MEMORY:]))
            for number, (probability, power, level) in enumerate(
                zip(*(each.tolist() for each in measured), strict=True)
            ):
                at = start + number * WINDOW
                yield from self._segments(self._endpointer.window(max(at - LAG, 0), probability, power, level=level))
        last = int(sounds[-1]) // 2 // WINDOW + 1 if len(sounds) else -self._silent
        self._silent = windows - last
        self._forget()

    def _infer(self, wide: NDArray[np.float32], windows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The windows' probabilities and powers."""
        signal = np.empty(CONTEXT + windows * WINDOW, np.float32)
        signal[:CONTEXT] = self._context
        decimate(wide[None], signal[None, CONTEXT:])
        self._context = signal[-CONTEXT:].copy()
        shape, strides = (windows, CONTEXT + WINDOW), (WINDOW * signal.itemsize, signal.itemsize)
        views = np.lib.stride_tricks.as_strided(signal, shape, strides)
        return self._vad.follow(views, self._hidden, self._cell), powers(views[:, CONTEXT:])

    def _levels(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """The power of the 96 ms around each window: between two words it falls for this long."""
        power = np.square(samples).reshape(-1, 2 * WINDOW).mean(axis=1)
        about = np.concatenate([[self._power], power, power[-1:]])
        self._power = float(power[-1])
        levels: NDArray[np.float32] = about[:-2] + about[1:-1] + about[2:]
        return levels

    def _segments(self, detections: list[Detection]) -> Iterator[SpeechSegment]:
        for detection in detections:
            if isinstance(detection, SpeechOnset):
                self._started = detection
            elif isinstance(detection, SpeechOffset):
                yield self._stretch(detection)

    def _stretch(self, ended: SpeechOffset) -> SpeechSegment:
        assert self._started is not None, "an end without a start"
        audio_start = max(self._started.audio_start, self._segmented)
        audio_end = min(ended.audio_end, self._fed)
        samples = self._kept[2 * (audio_start - self._floor) : 2 * (audio_end - self._floor)].copy()
        torn, self._torn = self._torn, ended.reason == "max_length" and self._loud(audio_end, samples)
        self._segmented, self._started = audio_end, None
        end = min(ended.end, audio_end)
        return SpeechSegment(max(ended.start, audio_start), end, audio_start, samples, ended.reason, torn)

    def _loud(self, cut: int, samples: Samples) -> bool:
        """Whether a cut of the utterance at `cut` lies in a sound."""
        at = 2 * (cut - self._floor)
        about = self._kept[max(0, at - LOUD_SPAN) : at + LOUD_SPAN]
        return _rms(about) > LOUD_PART * _rms(samples)

    def _forget(self) -> None:
        """Drop the samples that no open or future utterance can need."""
        if self._started is not None:
            keep_from = self._started.audio_start
        else:
            keep_from = self._endpointer.earliest
        keep_from = max(self._floor, min(keep_from, self._scanned))
        self._kept = self._kept[2 * (keep_from - self._floor) :].copy()
        self._floor = keep_from


def _rms(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
