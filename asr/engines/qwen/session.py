"""One utterance in the engine: from its bytes to the tokens of an answer, a bounded piece at a time.

A hypothesis is decoded greedily. The one before it is a draft (speculative decoding, arXiv 2211.17192, with the last
answer in the place of a draft model): one forward prefills the new audio and verifies the draft, so an answer that has
only grown costs one forward. Its tokens are those of greedy decoding from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from asr.engines.qwen.encoder import Audio, Encoding
from asr.engines.qwen.model.prompt import Prompt, Prompts, audio_tokens
from asr.engines.qwen.packed import AUDIO, Input, PackedRow
from asr.engines.qwen.sound import MODEL_HZ, Sound
from asr.repetition import is_loop, once
from asr.scheduling.request import Request
from asr.utterance import BYTES_PER_S, Utterance


def longest(seconds: float) -> int:
    """The most tokens of an answer to this much audio: nobody speaks more, in any of the languages."""
    return 24 + round(16 * seconds)


@dataclass(slots=True)
class _Decoding:
    """An answer on its way."""

    request: Request
    limit: int
    """The answer has at most this many tokens."""
    encoding: Encoding | None = None
    """The audio, on its way through the encoder."""
    windows: list[Tensor] = field(default_factory=list)
    """The embeddings of its windows, (tokens, width) each, once it is through."""
    input: Input | None = None
    """The positions from `start` on that are still to be prefilled; the last ones are those of `draft`."""
    start: int = 0
    draft: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """The tokens that are decided."""


class QwenSession:
    """One utterance, its audio, and what is on its pages. `QwenEngine` decides when it is its turn."""

    def __init__(self, utterance: Utterance, prompt: Prompt) -> None:
        self.utterance, self.prompt = utterance, prompt
        self.sound = Sound(utterance.format)
        self.audio = Audio()
        self.now: _Decoding | None = None
        self._kept: list[Tensor] = []
        """The embeddings of the windows whose positions are on the pages, right behind the head."""
        self._headed = False
        """The positions of the head are on the pages."""
        self.drafted: list[int] = []
        """The last hypothesis, which is the draft of the next one."""

    def end(self, request: Request) -> int:
        """The number of samples at 16 kHz that a request is about."""
        return request.end * MODEL_HZ // BYTES_PER_S[self.utterance.format]

    def most_positions(self, request: Request, frames: int) -> int:
        """The most positions that prompt and answer of a request may need. `frames` is the length of its audio."""
        audio = audio_tokens(frames)
        return len(self.prompt.head) + audio + len(self.prompt.tail) + longest(self.end(request) / MODEL_HZ)

    # -- a request --------------------------------------------------------------------------------------------------

    @property
    def work(self) -> _Decoding:
        """The answer that `begin` has begun and that has not ended."""
        assert self.now is not None, "no request"
        return self.now

    def has_begun(self, request: Request) -> bool:
        return self.now is not None and self.now.request is request

    def begin(self, request: Request) -> None:
        """Work on this request from now on; nothing happens if the session already does."""
        if not self.has_begun(request):
            self.drop()
            self.now = _Decoding(request, longest(self.end(request) / MODEL_HZ))

    def drop(self) -> None:
        """Give up the answer on its way. Its tokens become the beginning of the next draft.

        They have been verified. The old draft would be rejected at the same token again, and if the pages kept
        changing hands no answer would ever end.
        """
        now, self.now = self.now, None
        if now is None:
            return
        self.drafted = [*now.tokens, *self.drafted[len(now.tokens) :]]
        if now.windows:
            self._keep(now)

    def evict(self) -> None:
        """Forget what was on the pages, which are gone; drafts and embeddings stay."""
        self.drop()
        self._kept, self._headed = [], False

    def prefill(self, windows: Sequence[Tensor], positions: int) -> None:
        """Build the input of the text model from the embeddings of the audio, which is through the encoder.

        Raises:
            ValueError: prompt and audio leave no room for an answer in `positions`.
        """
        now = self.work
        known = 0
        for kept, window in zip(self._kept, windows, strict=False):
            if kept is not window:  # a window that was not computed again is the same object
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
        """Note which windows of the prompt are on the pages."""
        stop = len(self.prompt.head)
        self._kept, self._headed = [], now.start >= stop
        for window in now.windows:
            stop += len(window)
            if stop > now.start:
                break
            self._kept.append(window)

    def row(self, pages: Sequence[int], limit: int) -> PackedRow:
        """The next positions, at most `limit`. The draft and the position before it, after which the answer goes on,
        stay in one row even if they are more."""
        now = self.work
        assert now.input is not None
        logits_count = len(now.draft) + 1
        count = len(now.input)
        if count > max(limit, logits_count):
            return PackedRow(pages, now.start, now.input[: min(limit, count - logits_count)], 0)
        return PackedRow(pages, now.start, now.input, logits_count)

    def shorten_draft(self, limit: int) -> None:
        """Cut the draft so that it is verified in one row of at most `limit` positions. The rest is decoded anew."""
        now = self.work
        assert now.input is not None
        excess = len(now.draft) + 1 - limit
        now.draft, now.input = now.draft[:-excess], now.input[:-excess]

    def accept(self, row: PackedRow, row_tokens: Sequence[int], prompts: Prompts) -> list[int] | None:
        """Take over the tokens that a forward computed for `row`. Returns the answer's tokens when it is complete."""
        now = self.work
        assert now.input is not None
        count = len(row)
        now.start += count
        if count < len(now.input):
            now.input = now.input[count:]
            return None
        agreed = next((at for at, token in enumerate(now.draft) if row_tokens[at] != token), len(now.draft))
        # The rejected rest of the draft stays on the pages; the next row begins before it and overwrites it.
        now.start -= len(now.draft) - agreed
        now.tokens += now.draft[:agreed]
        now.draft = []
        following = row_tokens[agreed]
        over = following in prompts.ends
        looped = agreed > 0 and is_loop(now.tokens)  # a draft that loops is not continued
        if not over and not looped:
            now.tokens.append(following)
            looped = is_loop(now.tokens)
        if over or looped or len(now.tokens) >= now.limit:
            self._keep(now)
            self.drafted, self.now = now.tokens, None
            if not looped:
                return now.tokens
            cut = once(now.tokens)
            # A repetition without letters may be a number, as in a telephone number, and stays.
            return cut if prompts.has_letters(now.tokens[len(cut) :]) else now.tokens
        now.input = Input([following])
        return None
