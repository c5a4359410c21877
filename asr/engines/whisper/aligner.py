"""Times of the words of any engine's text, from the attention of Whisper's decoder to the audio.

CTranslate2 aligns each token with the audio by the heads that the model's `config.json` names, and by dynamic time
warping. `word_times` puts together what it says and what the voice detector hears.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr.engines.aligner import AlignRequest
from asr.engines.interface import EngineUnusable
from asr.engines.speech import PROBABILITY, RATE_HZ, SpeechDetector
from asr.engines.whisper import answers, word_times
from asr.engines.whisper.model import Encode, NetworkError, Sound, WhisperModel
from asr.samples import Wideband
from asr.text import word_spans
from asr.utterance import TimedWord

STEP_S = 0.02
"""The network's times are multiples of this."""
LONGEST_S = 31.0
"""The longest utterance of a call, with what precedes and follows it. The network hears 30 s of it."""
WARM_UP = AlignRequest("PCMU", bytes([255]) * 8000, "one two", "en")


class WhisperAligner:
    """Implements `asr.engines.aligner.Aligner`."""

    longest_s = LONGEST_S
    together_s = 0.0
    """A CPU gains nothing from several at once."""

    def __init__(self, model: WhisperModel) -> None:
        self._model, self._speech = model, SpeechDetector()
        self.languages = tuple(model.languages)

    def align(self, spoken: Sequence[AlignRequest]) -> list[tuple[TimedWord, ...]]:
        """Raises NetworkError."""
        return [self._align(each) for each in spoken]

    def _align(self, request: AlignRequest) -> tuple[TimedWord, ...]:
        spans = word_spans(request.text)
        samples = Wideband(request.format).feed(request.audio)[: answers.LONGEST_FRAMES * RATE_HZ // 100]
        if not spans or len(samples) < answers.SHORTEST_S * RATE_HZ:
            return ()
        written = self._model.tokenizer.encode(f" {request.text}", add_special_tokens=False)
        sound = self._sound(samples)
        times, chances = self._model.align(sound, request.language, written.ids)
        starts = _starts(times, len(written.ids))
        # One place further, for the space before the text. Bytes of one character are several tokens.
        covered = [_covered(written.offsets, begin + 1, end + 1) for begin, end in spans]
        voiced = self._speech.probabilities(samples) >= PROBABILITY
        placed = word_times.place([starts[first] for first, _ in covered], voiced, len(samples) / RATE_HZ)
        return tuple(
            TimedWord(request.text[begin:end], _ms(start_s), _ms(end_s), _mean(chances[first:behind]))
            for (begin, end), (first, behind), (start_s, end_s) in zip(spans, covered, placed, strict=True)
        )

    def _sound(self, samples: NDArray[np.float32]) -> Sound:
        if (known := self._model.recent(samples)) is not None:
            return known
        sound: Sound = self._model.perform([Encode(samples, answers.window(len(samples)))])[0]
        return sound

    def warm_up(self) -> None:
        """Raises EngineUnusable."""
        try:
            self.align([WARM_UP])
        except NetworkError as error:
            raise EngineUnusable(f"the Whisper model times no words: {error}") from error


def _starts(times: Sequence[tuple[int, int]], tokens: int) -> list[float]:
    """The seconds at which the decoder turns to each token, and at the end to what follows. They never fall."""
    first: dict[int, float] = {}
    for token, step in times:
        first.setdefault(token, step * STEP_S)
    starts, latest = [], 0.0
    for token in range(tokens + 1):
        latest = max(latest, first.get(token, latest))
        starts.append(latest)
    return starts


def _covered(offsets: Sequence[tuple[int, int]], begin: int, end: int) -> tuple[int, int]:
    """The first token with a character of the text from `begin` to `end`, and the one behind the last."""
    covered = [at for at, (left, right) in enumerate(offsets) if left < end and right > begin]
    return (covered[0], covered[-1] + 1) if covered else (len(offsets), len(offsets))


def _mean(chances: Sequence[float]) -> float:
    return round(sum(chances) / max(1, len(chances)), 3)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
