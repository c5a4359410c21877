"""A language model may repeat the same tokens over noise for ever. No speaker does: generation ends there."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 12
"""The most tokens of a pattern."""
TIMES = 8
"""A pattern is a loop when it comes so often in a row; a single token twice as often, for numbers have many zeros."""


def pattern(tokens: Sequence[int]) -> list[int]:
    """The tokens that the answer so far repeats at its end; empty when it is in no loop."""
    for size in range(1, LONGEST + 1):
        times = 2 * TIMES if size == 1 else TIMES
        if len(tokens) < size * times:
            break
        if tokens[-1] != tokens[-1 - size]:  # nearly always, and this is asked with each token
            continue
        tail = tokens[-size * times :]
        if all(tail[at] == tail[at + size] for at in range(len(tail) - size)):
            return list(tail[-size:])
    return []


def is_loop(tokens: Sequence[int]) -> bool:
    """True when the answer so far ends in a loop."""
    return bool(pattern(tokens))


def once(tokens: Sequence[int]) -> list[int]:
    """The answer with the loop at its end only once."""
    again = pattern(tokens)
    end = len(tokens)
    while again and list(tokens[end - 2 * len(again) : end]) == 2 * again:
        end -= len(again)
    return list(tokens[:end])
