"""One utterance in the engine: from its bytes to the text of an answer, one call of the network at a time."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.engines.interface import Answer
from asr.engines.moonshine import answers
from asr.engines.moonshine.model import END, RATE_HZ, Model
from asr.engines.shown import Shown
from asr.engines.speech import SpeechDetector, cuts
from asr.samples import Wideband
from asr.scheduling.request import Request
from asr.text import joined
from asr.utterance import BYTES_PER_S, Utterance

Decoding = Generator[None, None, list[int]]
"""Yields after each call of the network; returns the tokens of the answer."""


LONGEST_S = 25.0
"""A piece is at most this long. Recorded sentences behind each other, without a pause that would end an utterance, come
out as well in 35 s as in 15; at 40 s words begin to be missing, and at 50 s the model repeats itself."""
_TAIL = np.zeros(round(0.5 * RATE_HZ), np.float32)
"""Silence behind a pause: with less than some 300 ms the model takes the end for a word that breaks off. On 330
recorded prompts 6.9 % of the words are wrong with it, and 8.4 % without."""


CLEARLY = 1.5
"""A token replaces one that a partial has shown when it is some four times as likely."""
SURE, EARLY_S = 0.5, 1.3
"""The first partials come quickly one after the other: of less than `EARLY_S` of audio, the pre-roll included, a word
is shown when two in a row have it and each of its tokens is as likely as `SURE`, or when three have it."""


@dataclass(slots=True)
class _PendingAnswer:
    """An answer on its way."""

    request: Request
    calls: Generator[None, None, str]
    answer: Answer | None = None


class MoonshineSession:
    """One thread at a time uses it.

    A final is decoded plainly, a token at a time, so that it depends on the audio alone. A partial takes the tokens of
    the one before as a draft, which one call verifies: what has only grown costs few calls. Where the draft is refused
    it goes on being a guess: what has followed the next token there may follow it here.
    """

    def __init__(self, model: Model, speech: SpeechDetector, utterance: Utterance) -> None:
        self.utterance = utterance
        self._model, self._speech = model, speech
        self._work: _PendingAnswer | None = None
        self._resampler = Wideband(utterance.format)
        self._pending: list[bytes] = []
        self._samples = np.zeros(0, np.float32)
        self._cuts: tuple[int, ...] = ()
        self._settled: dict[int, str] = {}
        """Text of the pieces before the cuts, by where they end."""
        self._draft: list[int] = []
        """The last hypothesis about the piece that begins at `_draft_begin`."""
        self._draft_begin = 0
        self._shown = Shown()
        self._sure = 0
        """The number of tokens of the last early partial before the first unlikely one."""
        self.likelihoods: list[float] = []
        """Of the latest final, the logarithm of each token's probability."""
        self._speech_from: int | None = None
        """Samples after which it is known that somebody speaks."""

    def append(self, audio: bytes) -> None:
        """Keep the audio until an answer is asked for: it comes in many small pieces."""
        self._pending.append(audio)

    def begin(self, request: Request) -> None:
        """Work on this request from now on; nothing happens when the session already does."""
        if self._work is None or self._work.request is not request:
            self._work = _PendingAnswer(request, self._answer(request))

    def advance(self) -> bool:
        """Make at most one call of the network. Returns True when the answer is there. Raises ModelError."""
        work = self._work
        assert work is not None, "no request"
        if work.answer is None:
            try:
                next(work.calls)
            except StopIteration as end:
                work.answer = Answer(work.request, end.value, "en" if end.value else "")
        return work.answer is not None

    def pop_answer(self) -> Answer | None:
        """The answer, when it is there; only once."""
        work = self._work
        if work is None or work.answer is None:
            return None
        self._work = None
        return work.answer

    # -- an answer --------------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Generator[None, None, str]:
        self._resample()
        samples = self._samples[: request.end * RATE_HZ // BYTES_PER_S[self.utterance.format]]
        self.likelihoods = []
        if not self._is_speech(samples):
            return ""
        ends = self._cuts_of(samples)
        texts, begin = [], 0
        for end in ends:
            if end not in self._settled:
                tokens = yield from self._plain(samples[begin:end])
                self._settled[end] = self._model.tokens.text(tokens)
            texts.append(self._settled[end])
            begin = end
        if len(samples) - begin < answers.SHORTEST_S * RATE_HZ:
            tokens = []
        elif request.final:
            tokens = yield from self._plain(samples[begin:])
        else:
            tokens = yield from self._drafted(samples[begin:], begin, sum(len(text.split()) for text in texts))
        text = joined([*texts, self._model.tokens.text(tokens)])
        if request.final and not self._shown.pause(text):
            return text  # a reader is not shown it before the utterance is over, so partials go on as they were
        self._draft, self._draft_begin = tokens, begin
        if request.final:
            return text
        early = len(samples) < EARLY_S * RATE_HZ
        return self._shown.partial(text, self._model.tokens.whole_words(tokens, self._sure) if early else None)

    def _resample(self) -> None:
        """Make samples of what has come."""
        self._samples = np.concatenate([self._samples, self._resampler.feed(b"".join(self._pending))])
        self._pending = []

    def _is_speech(self, samples: NDArray[np.float32]) -> bool:
        if self._speech_from is None:
            self._speech_from = self._speech.first(samples)
        return self._speech_from is not None and self._speech_from <= len(samples)

    def _cuts_of(self, samples: NDArray[np.float32]) -> tuple[int, ...]:
        """A replayed request may be about less audio than one before it."""
        if len(samples) == len(self._samples):
            self._cuts = cuts(samples, LONGEST_S, self._cuts)
            return self._cuts
        return cuts(samples, LONGEST_S)

    def _plain(self, samples: NDArray[np.float32]) -> Decoding:
        """Decode audio that ends in a pause."""
        return (yield from self._decode(np.concatenate([samples, _TAIL]), ()))

    def _drafted(self, samples: NDArray[np.float32], begin: int, words: int) -> Decoding:
        """Decode audio that breaks off, with the last hypothesis as its draft. `words` is the number of words in the
        pieces before."""
        if begin != self._draft_begin:
            return (yield from self._decode(samples, ()))
        shown = self._model.tokens.first_words(self._draft, self._shown.words - words)
        return (yield from self._decode(samples, self._draft, shown))

    def _decode(self, samples: NDArray[np.float32], draft: Sequence[int], shown: int = 0) -> Decoding:
        """`shown`: so many tokens of the draft have been shown, and stay unless they are clearly wrong."""
        limit = answers.longest(len(samples))
        draft, self._sure, sure = draft[:limit], limit, len(samples) < EARLY_S * RATE_HZ
        audio = self._model.encode(samples)
        yield
        logits, cache = self._model.begin(audio, draft)
        tokens, guess = list[int](), list(draft)
        while True:
            # `logits` are about what follows `tokens`, and then about what follows each token of the guess.
            best = logits.argmax(axis=-1)
            found = best.tolist()
            if not draft:
                self.likelihoods.append(_likelihood(logits[0], found[0]))
            for at, token in enumerate(guess[: max(0, shown - len(tokens))]):
                if logits[at, token] >= logits[at, found[at]] - CLEARLY:
                    found[at] = token
            right = next((at for at, token in enumerate(guess) if found[at] != token), len(guess))
            if sure and (doubt := _doubt(logits, found[: right + 1], max(0, shown - len(tokens)))) is not None:
                self._sure, sure = len(tokens) + doubt, False
            tokens += guess[:right]
            if right < len(guess):
                cache = self._model.keep(cache, len(tokens))
            token = found[right]
            if token == END:
                return tokens
            if answers.is_over(tokens, limit):
                return answers.believable(tokens, limit)
            guess = answers.continuation(draft, token, len(tokens))[: limit - len(tokens) - 1]
            tokens.append(token)
            yield
            logits, cache = self._model.advance(audio, [token, *guess], cache)


def _likelihood(logits: NDArray[np.float32], token: int) -> float:
    """The logarithm of the token's probability."""
    return -float(np.log(np.exp(logits - logits[token]).sum()))


def _doubt(logits: NDArray[np.float32], tokens: Sequence[int], first: int) -> int | None:
    """The place of the first unlikely token from `first` on; row i of the logits is about token i."""
    for at in range(first, len(tokens)):
        if np.exp(logits[at] - logits[at, tokens[at]]).sum() * SURE > 1:
            return at
    return None
