"""What a model with random weights is made to say: so much per second of speech, and not quite the same each time.

An answer is the beginning of the utterance's own sequence of words, as long as the audio heard so far. A share of a
partial's words, its last ones, are others: the next answer takes them back, as a model does that hears half a word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.engine.limit import TOKENS_PER_S
from benchmarks.engine.plan import CODES_PER_MS

UNSURE = 0.06
"""Of a partial's tokens are taken back: 91 to 96 % of a draft were accepted in life."""


class Script:
    """The same for every design and every run with the same seed."""

    def __init__(self, words: Sequence[int], end: int, seed: int) -> None:
        """`words`: ids to draw from, each one word; `end`: the id after which an answer is over."""
        self._words, self._end, self._seed = list(words), end, seed
        self._said: dict[str, tuple[random.Random, list[int]]] = {}
        self._last: dict[str, tuple[int, bool, list[int]]] = {}

    def answer(self, utterance_id: str, codes: int, *, final: bool) -> list[int]:
        """Ids of the answer to so many µ-law codes, with its end."""
        last = self._last.get(utterance_id)
        if last is None or last[:2] != (codes, final):  # it is asked for with each token that is decoded
            last = self._last[utterance_id] = (codes, final, self._answer(utterance_id, codes, final=final))
        return last[2]

    def _answer(self, utterance_id: str, codes: int, *, final: bool) -> list[int]:
        generator, said = self._said.setdefault(utterance_id, (random.Random(f"{self._seed}/{utterance_id}"), []))
        count = round(TOKENS_PER_S * codes / CODES_PER_MS / 1000)
        said += generator.choices(self._words, k=max(0, count - len(said)))
        answer = said[:count]
        if not final:
            # Decided by what is asked, not by when: every design has the same words taken back.
            mine = random.Random(f"{self._seed}/{utterance_id}/{codes}")
            unsure = min(count, int(UNSURE * count + mine.random()))
            for at in range(count - unsure, count):
                answer[at] = mine.choice([word for word in self._words if word != said[at]])
        return [*answer, self._end]

    def forget(self, utterance_id: str) -> None:
        self._said.pop(utterance_id, None)
        self._last.pop(utterance_id, None)
