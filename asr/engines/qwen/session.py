"""One utterance in the engine: from its bytes to the tokens of an answer, a bounded piece at a time.

A hypothesis is decoded greedily. The one before it is a draft: it is verified in the same forward that prefills the new
audio, so that an answer that has only grown costs one forward, and is token for token what decoding from nothing gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from asr.engines.qwen.encoder import Audio, Encoding
from asr.engines.qwen.packed import AUDIO, Input, PackedRow
from asr.engines.qwen.prompt import Prompt, Prompts, audio_tokens
from asr.engines.qwen.sound import MODEL_HZ, Sound
from asr.repetition import is_loop, once
from asr.server.scheduler import Request
from asr.utterance import BYTES_PER_S, Utterance


def longest(seconds: float) -> int:
    """Tokens of an answer to so much audio: nobody speaks more, in any of the languages."""
    return 24 + round(16 * seconds)


@dataclass(slots=True)
class _Decoding:
    """An answer on its way."""

    request: Request
    limit: int
    """Tokens at most."""
    encoding: Encoding | None = None
    """The audio, on its way through the encoder."""
    windows: list[Tensor] = field(default_factory=list)
    """What came out."""
    input: Input | None = None
    """Positions from `start` on that are still to be prefilled; the last `draft` of them are a draft."""
    start: int = 0
    draft: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Decided so far."""


class QwenSession:
    """See the module. Used by `QwenEngine`, which decides whose turn it is and runs what is asked for here."""

    def __init__(self, utterance: Utterance, prompt: Prompt) -> None:
        self.utterance, self.prompt = utterance, prompt
        self.sound = Sound(utterance.format)
        self.audio = Audio()
        self.now: _Decoding | None = None
        self._kept: list[Tensor] = []
        """Embeddings of the windows whose positions are on its pages, right behind the head."""
        self._headed = False
        """The head is on them."""
        self.drafted: list[int] = []
        """The hypothesis before."""

    def end(self, request: Request) -> int:
        """Samples at 16 kHz that a request may hear."""
        return request.end * MODEL_HZ // BYTES_PER_S[self.utterance.format]

    def most_positions(self, request: Request, frames: int) -> int:
        """That the answer to a request may come to. `frames`: of the sound that it may hear."""
        audio = audio_tokens(frames)
        return len(self.prompt.head) + audio + len(self.prompt.tail) + longest(self.end(request) / MODEL_HZ)

    # -- a request --------------------------------------------------------------------------------------------------

    @property
    def work(self) -> _Decoding:
        """What `begin` has begun and nothing has ended."""
        assert self.now is not None, "no request"
        return self.now

    def has_begun(self, request: Request) -> bool:
        return self.now is not None and self.now.request is request

    def begin(self, request: Request) -> None:
        """Work on this one from now on; nothing happens when that has been so."""
        if not self.has_begun(request):
            self.drop()
            self.now = _Decoding(request, longest(self.end(request) / MODEL_HZ))

    def drop(self) -> None:
        """Give up the answer on its way. What it has said so far is the beginning of the draft for the next one: it has
        been verified, and a draft that failed there once would fail there again, for ever if pages keep changing
        hands."""
        now, self.now = self.now, None
        if now is None:
            return
        self.drafted = [*now.tokens, *self.drafted[len(now.tokens) :]]
        if now.windows:
            self._keep(now)

    def evict(self) -> None:
        """The pages are gone, and with them all that was on them; drafts and embeddings stay."""
        self.drop()
        self._kept, self._headed = [], False

    def prefill(self, windows: Sequence[Tensor], positions: int) -> None:
        """The audio is through the encoder. `positions`: of an utterance at most."""
        now = self.work
        known = 0
        for mine, theirs in zip(self._kept, windows, strict=False):
            if mine is not theirs:
                break
            known += 1
        self._kept, now.windows = list(windows[:known]), list(windows)
        head, tail = self.prompt.head, self.prompt.tail
        audio = sum(len(window) for window in windows)
        if len(head) + audio + len(tail) >= positions:
            raise ValueError(f"{audio} tokens of audio do not fit into {positions} positions")
        now.limit = min(now.limit, positions - len(head) - audio - len(tail))
        now.draft = self.drafted[: now.limit - 1]
        now.start = len(head) + sum(len(window) for window in windows[:known]) if self._headed else 0
        ids, parts = [] if self._headed else list(head), []
        for window in windows[known:]:
            parts.append((len(ids), window))
            ids += [AUDIO] * len(window)
        now.input = Input([*ids, *tail, *now.draft], parts)

    def _keep(self, now: _Decoding) -> None:
        """Note how much of the prompt is on the pages."""
        stop = len(self.prompt.head)
        self._kept, self._headed = [], now.start >= stop
        for window in now.windows:
            stop += len(window)
            if stop > now.start:
                break
            self._kept.append(window)

    def row(self, pages: Sequence[int], limit: int) -> PackedRow:
        """The next positions, at most `limit`; the last ones, which say how the answer goes on, stay together."""
        now = self.work
        assert now.input is not None
        telling = len(now.draft) + 1
        count = len(now.input)
        if count > max(limit, telling):
            return PackedRow(pages, now.start, now.input[: min(limit, count - telling)], 0)
        return PackedRow(pages, now.start, now.input, telling)

    def take(self, row: PackedRow, said: Sequence[int], prompts: Prompts) -> list[int] | None:
        """What the forward said of `row`: a token for each wanted position. The answer's when it is complete."""
        now = self.work
        assert now.input is not None
        count = len(row)
        now.start += count
        if count < len(now.input):
            now.input = now.input[count:]
            return None
        agreed = next((at for at, token in enumerate(now.draft) if said[at] != token), len(now.draft))
        # The rejected rest of the draft is on the pages, past what is valid.
        now.start -= len(now.draft) - agreed
        now.tokens += now.draft[:agreed]
        now.draft = []
        following = said[agreed]
        over = following in prompts.ends
        looped = agreed > 0 and is_loop(now.tokens)  # a draft that did is not gone on with
        if not over and not looped:
            now.tokens.append(following)
            looped = is_loop(now.tokens)
        if over or looped or len(now.tokens) >= now.limit:
            self._keep(now)
            self.drafted, self.now = now.tokens, None
            if not looped:
                return now.tokens
            cut = once(now.tokens)
            # What was said again and again may be a number if it has no letters.
            return cut if prompts.has_letters(now.tokens[len(cut) :]) else now.tokens
        now.input = Input([following])
        return None
