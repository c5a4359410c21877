"""A language model that hears noise may say the same for ever. Nobody does: generation ends there."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 12
"""Tokens of a pattern."""
TIMES = 8
"""It has been said in a row; a single token twice as often, for numbers have many zeros."""


def pattern(tokens: Sequence[int]) -> list[int]:
    """What the answer so far says again and again at its end; empty: it is in no loop."""
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
    """Whether the answer so far ends in a loop."""
    return bool(pattern(tokens))


def once(tokens: Sequence[int]) -> list[int]:
    """An answer that ends in a loop with the loop said once."""
    again = pattern(tokens)
    end = len(tokens)
    while again and list(tokens[end - 2 * len(again) : end]) == 2 * again:
        end -= len(again)
    return list(tokens[:end])
