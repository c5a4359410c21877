"""An answer may not be a loop, nor have more words than anybody can say.

Pure functions over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr.engines.moonshine.model import RATE_HZ
from asr.repetition import is_loop, once

SHORTEST_S = 0.4
"""The model makes up a word for less audio than this."""
TOKENS_PER_S = 6.5
"""Nobody says more: the model's authors end an answer there, and the fastest of 280 recorded prompts has 5.9."""
TOKENS_MORE = 4


def longest(samples: int) -> int:
    """Tokens that an answer to so much audio may have."""
    return int(TOKENS_PER_S * samples / RATE_HZ) + TOKENS_MORE


def is_over(tokens: Sequence[int], limit: int) -> bool:
    """Whether an answer that goes on may not."""
    return len(tokens) >= limit or is_loop(tokens)


def believable(tokens: Sequence[int], limit: int) -> list[int]:
    """The part of an answer that is shown: a repetition at its end is shown once.

    Somebody may say a word three times, so what is repeated counts as a loop only in an answer that did not come to an
    end by itself.
    """
    if not is_over(tokens, limit):
        return list(tokens)
    return _without_tail(once(tokens))


def _without_tail(tokens: Sequence[int]) -> list[int]:
    """Without the repetitions at the end, of which the last one may be incomplete."""
    for size in range(1, len(tokens) // 2 + 1):
        same = 0
        while same + size < len(tokens) and tokens[-1 - same] == tokens[-1 - same - size]:
            same += 1
        if same >= size:
            return list(tokens[: len(tokens) - same])
    return list(tokens)
