"""One utterance at Whisper: from its bytes to the text of an answer, one call of the network at a time.

The session makes no call itself. An answer is a generator that yields the calls it needs and is sent their results, so
that the engine can order the calls of all utterances, and put several together.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr.engines.interface import Answer
from asr.engines.shown import Shown
from asr.engines.speech import RATE_HZ, SpeechDetector, cuts
from asr.engines.whisper import answers, belief
from asr.engines.whisper.belief import Belief
from asr.engines.whisper.model import Decode, Decoded, Detect, Encode, Sound, WhisperModel
from asr.samples import Wideband
from asr.scheduling.request import Request
from asr.text import joined
from asr.utterance import BYTES_PER_S, Utterance

LONGEST_S = 15.0
"""A piece is at most this long. Nothing more urgent can be done during a call, and one about 30 s takes four times as
long as two about 15 s."""
BEAM, BEAM_PARTIAL = 5, 1
PARTIAL_S = 2.0
"""The audio between two partials: each decodes everything anew."""

Answering = Generator[Any, Any, Answer]
Samples = NDArray[np.float32]


class WhisperSession:
    """The audio of an utterance, and what was understood in it so far. One thread uses it."""

    def __init__(self, model: WhisperModel, speech: SpeechDetector, utterance: Utterance, among: Sequence[str]) -> None:
        """`among`: the languages that are possible when the utterance names none."""
        self.utterance, self._among, self._model, self._speech = utterance, among, model, speech
        self._resampler = Wideband(utterance.format)
        self._pending: list[bytes] = []
        self._samples = np.zeros(0, np.float32)
        self._shown = Shown()
        self._partial_end = 0
        """The end of the audio of the latest partial, in bytes."""

    def append(self, audio: bytes) -> None:
        """Keep the audio until an answer is asked for: it comes in many small pieces."""
        self._pending.append(audio)

    def due(self, request: Request) -> bool:
        """Whether enough was said since the latest partial."""
        return self._seconds(request.end - self._partial_end) >= PARTIAL_S

    def answer(self, request: Request) -> Answering:
        """The calls that make the answer to a request."""
        return self.final(request) if request.final else self.partial(request)

    def final(self, request: Request) -> Answering:
        """A final depends on the audio and on what the utterance was opened with, and on nothing else."""
        text, heard = yield from self._text(request)
        self._shown.pause(text)
        return self._answered(request, text, heard)

    def partial(self, request: Request) -> Answering:
        self._partial_end = request.end
        text, heard = yield from self._text(request)
        return self._answered(request, self._shown.partial(text) if text else "", heard)

    def _answered(self, request: Request, text: str, heard: Belief) -> Answer:
        language = self.utterance.language or belief.likeliest(heard)
        if not text:  # a sound that was no speech says nothing of the language either
            return Answer(request, "", "", heard=self.utterance.heard)
        return Answer(request, text, language, heard=heard)

    def samples(self, request: Request) -> Samples:
        """The audio that the request is about, at 16 kHz."""
        self._samples = np.concatenate([self._samples, self._resampler.feed(b"".join(self._pending))])
        self._pending = []
        return self._samples[: round(self._seconds(request.end) * RATE_HZ)]

    def _seconds(self, size: int) -> float:
        return size / BYTES_PER_S[self.utterance.format]

    def _text(self, request: Request) -> Generator[Any, Any, tuple[str, Belief]]:
        """The text that a request is about, and the belief after it."""
        samples = self.samples(request)
        if not self.is_speech(samples):
            return "", self.utterance.heard
        first, heard = yield from self.identify(samples)
        language = self.utterance.language or belief.likeliest(heard)
        text = yield from self.decode(samples, first, language, final=request.final)
        return text, heard

    def is_speech(self, samples: Samples) -> bool:
        return len(samples) >= answers.SHORTEST_S * RATE_HZ and self._speech.first(samples) is not None

    def identify(self, samples: Samples) -> Generator[Any, Any, tuple[Sound, Belief]]:
        """The sound of the first piece, and the belief after it."""
        heard = self.utterance.heard
        sound = yield from self._encode(_pieces(samples)[0])
        if self.utterance.language:
            return sound, heard
        if len(self._among) == 1:
            return sound, ((self._among[0], 1.0),)
        odds = yield Detect(sound)
        return sound, belief.updated(heard, odds, self._among, sound.samples / RATE_HZ)

    def decode(self, samples: Samples, first: Sound, language: str, *, final: bool) -> Generator[Any, Any, str]:
        """The text of all pieces. `first`: the sound of the first one."""
        beam, texts = BEAM if final else BEAM_PARTIAL, []
        for number, piece in enumerate(_pieces(samples)):
            sound = (yield from self._encode(piece)) if number else first
            texts.append((yield from self._decode(piece, sound, language, beam)))
        if final and self.utterance.words and len(texts) == 1:
            self._model.remember(samples, first)  # the aligner hears the whole of it in one piece
        return joined(texts)

    def _encode(self, piece: Samples) -> Generator[Any, Any, Sound]:
        sound: Sound = yield Encode(piece, answers.window(len(piece)))
        return sound

    def _decode(self, piece: Samples, sound: Sound, language: str, beam: int) -> Generator[Any, Any, str]:
        """The text of a piece; empty where nobody spoke."""
        found: Decoded = yield Decode(sound, language, beam, self.utterance.context)
        if self.utterance.context and (found.nothing or found.no_speech > answers.DOUBTFUL):
            # The context may have led the decoder astray, or made a text of a sound that was no speech.
            found = yield Decode(sound, language, beam)
        if found.loop and sound.frames < answers.LONGEST_FRAMES:  # rare: once more, in the window of the training
            sound = yield Encode(piece, answers.LONGEST_FRAMES)
            found = yield Decode(sound, language, beam)
        return "" if found.nothing else found.text


def _pieces(samples: Samples) -> list[Samples]:
    """The samples in pieces that are not too long, of which most utterances are one."""
    return np.split(samples, cuts(samples, LONGEST_S))
