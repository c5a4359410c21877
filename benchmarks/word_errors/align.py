"""How many words are wrong: the least number of words to replace, leave out or put in. Pure.

Spaces are no errors: words that together read the same ("black list", "blacklist"; "1 2 3 4", "1234") are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

JOINED = 6
"""So many words may be one word of the other side."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Words that are not the same; either side may be empty."""

    said: tuple[str, ...]
    recognised: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' '.join(self.said) or '–'} → {' '.join(self.recognised) or '–'}"


@dataclass(frozen=True, slots=True)
class WordErrors:
    errors: int
    words: int
    """That were said."""
    differences: tuple[Difference, ...]
    """In order; neighbouring errors are one difference."""


def align(said: Sequence[str], recognised: Sequence[str]) -> WordErrors:
    """`said` is the reference. Takes time proportional to the product of the lengths."""
    rows, columns = len(said) + 1, len(recognised) + 1
    cost = [[0] * columns for _ in range(rows)]
    step = [[(0, 0)] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            if i == j == 0:
                continue
            best, way = rows + columns, (0, 0)
            if i and j:
                best, way = cost[i - 1][j - 1] + (said[i - 1] != recognised[j - 1]), (1, 1)
                for a, b in _joins(said, i, recognised, j):
                    if cost[i - a][j - b] < best:
                        best, way = cost[i - a][j - b], (a, b)
            if i and cost[i - 1][j] + 1 < best:
                best, way = cost[i - 1][j] + 1, (1, 0)
            if j and cost[i][j - 1] + 1 < best:
                best, way = cost[i][j - 1] + 1, (0, 1)
            cost[i][j], step[i][j] = best, way
    return WordErrors(cost[-1][-1], len(said), tuple(_differences(said, recognised, step)))


def _joins(said: Sequence[str], i: int, recognised: Sequence[str], j: int) -> list[tuple[int, int]]:
    """Pairs (a, b) such that the last a words before i and the last b before j are the same letters."""
    one, other = said[i - 1], recognised[j - 1]
    if one == other or not (one.endswith(other) or other.endswith(one)):
        return []
    a = b = 1
    while one != other:
        # Only numerals may be divided differently on both sides: "12 34" and "1 2 3 4".
        if len(one) < len(other) and i > a and a < JOINED and other.endswith(one):
            a += 1
            one = said[i - a] + one
        elif len(other) < len(one) and j > b and b < JOINED and one.endswith(other):
            b += 1
            other = recognised[j - b] + other
        else:
            return []
        if min(a, b) > 1 and not (one.isdecimal() and other.isdecimal()):
            return []
    return [(a, b)]


def _differences(
    said: Sequence[str], recognised: Sequence[str], step: Sequence[Sequence[tuple[int, int]]]
) -> list[Difference]:
    found: list[Difference] = []
    i, j = len(said), len(recognised)
    wrong_said: list[str] = []
    wrong_recognised: list[str] = []
    while i or j:
        a, b = step[i][j]
        mine, theirs = said[i - a : i], recognised[j - b : j]
        if "".join(mine) != "".join(theirs):
            wrong_said[:0], wrong_recognised[:0] = mine, theirs
        elif wrong_said or wrong_recognised:
            found.append(Difference(tuple(wrong_said), tuple(wrong_recognised)))
            wrong_said, wrong_recognised = [], []
        i, j = i - a, j - b
    if wrong_said or wrong_recognised:
        found.append(Difference(tuple(wrong_said), tuple(wrong_recognised)))
    return found[::-1]
