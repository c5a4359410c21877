"""One utterance at Moonshine, at Whisper, or at both: whoever knows the language that is spoken.

While the language of a leg is not known, Whisper listens to an utterance first. Once it is known to be English, only
Moonshine does, unless it is unsure of its words. There are two reasons for that, and Whisper is better at both: noise,
and another language, of which Moonshine makes unlikely English.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from asr.engines.speech import RATE_HZ
from asr.engines.whisper import belief
from asr.engines.whisper.belief import Belief
from asr.engines.whisper.session import Answering, WhisperSession
from asr.scheduling.request import Request

ENGLISH = "en"
UNSURE = -0.13
"""The mean logarithm of the probabilities of Moonshine's tokens below which Whisper has the word: a third of clean
English prompts, half of those in loud noise, and all but 1 of 300 in other languages (docs/measurements/words.md)."""
LISTENED_S = (1.2, 2.3)
"""Audio after which a partial of an unknown language is preceded by listening: a second of speech with its pre-roll,
and two of them where the first leaves a doubt."""


@dataclass(frozen=True, slots=True)
class English:
    """A call that asks Moonshine."""

    request: Request


@dataclass(frozen=True, slots=True)
class Spoken:
    """Moonshine's answer."""

    text: str
    likelihood: float


class MixedSession(WhisperSession):
    """See the module."""

    _guess: Belief = ()
    """What partials of this utterance have shown of its language. A final does not use it: it depends on the audio
    alone."""
    _listened = 0
    """How many of `LISTENED_S` have been used."""

    @property
    def english(self) -> bool:
        """Whether Moonshine may be asked about this utterance."""
        return self.utterance.language in ("", ENGLISH)

    def final(self, request: Request) -> Answering:
        samples, heard = self.samples(request), self.utterance.heard
        if not self.is_speech(samples):
            return self._answered(request, "", heard)
        spoken: Spoken | None = None
        if self._known() == ENGLISH:
            spoken = yield English(request)
            if spoken.likelihood >= UNSURE:
                return self._answered(request, spoken.text, heard)
        first, heard = yield from self.identify(samples)
        language = self.utterance.language or belief.likeliest(heard)
        if language == ENGLISH and spoken is None:
            spoken = yield English(request)
            if spoken.likelihood >= UNSURE:
                return self._answered(request, spoken.text, heard)
        text = yield from self.decode(samples, first, language, final=True)
        self._shown.pause(text)
        return self._answered(request, text, heard)

    def _known(self) -> str:
        """The language of the utterance before it has been heard; empty when it is not known."""
        return self.utterance.language or belief.settled(self.utterance.heard)

    # -- partials ---------------------------------------------------------------------------------------------------

    def listens(self, request: Request) -> bool:
        """Whether a partial of this request begins by listening for the language."""
        if self._known() or belief.settled(self._guess) or self._listened == len(LISTENED_S):
            return False
        return self._seconds(request.end) >= LISTENED_S[self._listened]

    def speaks_english(self) -> bool:
        """Whether the next answer is Moonshine's, as far as is known."""
        return (self._known() or belief.likeliest(self._guess)) == ENGLISH

    def partial(self, request: Request) -> Answering:
        if self.listens(request):
            yield from self._listen(request)
        if self.speaks_english():
            spoken: Spoken = yield English(request)
            return self._answered(request, spoken.text, ((ENGLISH, 1.0),))
        if self._known() or self._guess:
            return (yield from super().partial(request))
        return self._answered(request, "", ())

    def _listen(self, request: Request) -> Generator[Any, Any, None]:
        samples = self.samples(request)
        while self._listened < len(LISTENED_S) and LISTENED_S[self._listened] <= len(samples) / RATE_HZ:
            self._listened += 1
        if self.is_speech(samples):
            _, self._guess = yield from self.identify(samples)
