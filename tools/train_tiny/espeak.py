"""Speech with the place of every word in it: libespeak-ng in this process (3 ms a phrase; the program takes 23)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

RATE_HZ = 22050

_RETRIEVE, _CHARACTERS, _UTF8 = 2, 1, 1
_SPEED, _PITCH, _RANGE, _WORD_GAP = 1, 3, 4, 7
_EVENT_END_OF_LIST, _EVENT_WORD = 0, 1


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True, slots=True)
class Speaker:
    voice: str
    """Accent and variant: `en-gb+f2`."""
    words_per_min: int = 175
    pitch: int = 50
    pitch_range: int = 50
    gap: int = 0
    """Between words, in 10 ms at the default speed."""


@dataclass(frozen=True, slots=True)
class Speech:
    samples: npt.NDArray[np.float32]
    """Full scale is 1."""
    spans: tuple[tuple[int, int], ...]
    """Begin and end of each word; a pause is part of none."""


class _Library:
    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libespeak-ng.so.1")
        rate_hz = self._lib.espeak_Initialize(_RETRIEVE, 0, None, 0)
        assert rate_hz == RATE_HZ, f"espeak-ng speaks at {rate_hz} Hz"
        self._blocks: list[npt.NDArray[np.int16]] = []
        self._starts: dict[int, int] = {}
        # Kept here: espeak-ng holds only a pointer to it.
        self._callback = _Callback(self._receive)
        self._lib.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_Event]) -> int:
        if count > 0:
            self._blocks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while events[i].type != _EVENT_END_OF_LIST:
            if events[i].type == _EVENT_WORD:
                self._starts.setdefault(events[i].text_position - 1, events[i].sample)
            i += 1
        return 0

    def synthesize(self, text: str, speaker: Speaker) -> tuple[npt.NDArray[np.int16], dict[int, int]]:
        """-> samples, and the first sample of the word at each index into `text`."""
        self._blocks.clear()
        self._starts.clear()
        if self._lib.espeak_SetVoiceByName(speaker.voice.encode()):
            raise ValueError(f"espeak-ng has no voice {speaker.voice}")
        for parameter, value in (
            (_SPEED, speaker.words_per_min),
            (_PITCH, speaker.pitch),
            (_RANGE, speaker.pitch_range),
            (_WORD_GAP, speaker.gap),
        ):
            self._lib.espeak_SetParameter(parameter, value, 0)
        data = text.encode() + b"\0"
        self._lib.espeak_Synth(data, len(data), 0, _CHARACTERS, 0, _UTF8, None, None)
        return np.concatenate(self._blocks or [np.zeros(0, np.int16)]), dict(self._starts)


@cache
def _library() -> _Library:
    return _Library()


def say(words: list[str], speaker: Speaker, separator: str = " ") -> Speech:
    """Connected speech. Silence at both ends is cut off."""
    samples, starts = _library().synthesize(separator.join(words), speaker)
    loud = _loud(samples)
    at, begins = 0, []
    for word in words:
        # Two words that its dictionary takes together bring one event.
        begins.append(starts.get(at, begins[-1] if begins else 0))
        at += len(word) + len(separator)
    spans = []
    for begin, following in zip(begins, [*begins[1:], samples.size], strict=True):
        spoken = np.flatnonzero(loud[begin : following if following > begin else samples.size])
        spans.append((begin + int(spoken[0]), begin + int(spoken[-1]) + 1) if spoken.size else (begin, begin + 1))
    first, last = min(spans)[0], max(end for _, end in spans)
    return Speech(
        samples[first:last].astype(np.float32) / 32768, tuple((begin - first, end - first) for begin, end in spans)
    )


def _loud(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Of each sample: does its 5 ms reach 1 % of the peak?"""
    block = RATE_HZ // 200
    padded = np.pad(np.abs(samples.astype(np.int32)), (0, -samples.size % block))
    peaks = padded.reshape(-1, block).max(axis=1, initial=0)
    return np.repeat(peaks > max(1, 0.01 * peaks.max(initial=0)), block)[: samples.size]
