"""New inputs from old ones: bytes flipped, cut, doubled and spliced, numbers at their edges, words of the trade."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

MAX_BYTES = 4096
EDGES = (b"0", b"-1", b"1", b"255", b"256", b"65535", b"65536", b"2147483648", b"18446744073709551616", b"1e999")
COMMON = (b"\0", b"\r\n", b"\r\n\r\n", b"\n", b" ", b":", b";", b"=", b",", b'"', b"<", b"\\", b"%00", b"\xff")


class Mutator:
    """Seeded: the same seed makes the same inputs. `words` are put in as they are."""

    def __init__(self, seeds: Sequence[bytes], words: Sequence[bytes], seed: int) -> None:
        self._seeds, self._words = list(seeds), [*words, *EDGES, *COMMON]
        self._dice = Random(seed)
        assert self._seeds, "nothing to begin with"

    def next(self) -> bytes:
        dice = self._dice
        data = bytearray(dice.choice(self._seeds))
        for _ in range(dice.choice((0, 1, 1, 1, 2, 3, 5, 9))):
            _CHANGES[dice.randrange(len(_CHANGES))](self, data)
        return bytes(data[:MAX_BYTES])

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._dice.randrange(len(data))] = self._dice.randrange(256)

    def _cut(self, data: bytearray) -> None:
        start = self._dice.randrange(len(data) + 1)
        del data[start : start + self._dice.choice((1, 2, 4, 16, len(data)))]

    def _double(self, data: bytearray) -> None:
        start, size = self._dice.randrange(len(data) + 1), self._dice.choice((1, 4, 16, 64))
        if len(data) < MAX_BYTES:
            data[start:start] = data[start : start + size] * self._dice.choice((1, 1, 2, 20))

    def _word(self, data: bytearray) -> None:
        start = self._dice.randrange(len(data) + 1)
        data[start : start + self._dice.choice((0, 0, 1, 4))] = self._dice.choice(self._words)

    def _splice(self, data: bytearray) -> None:
        other = self._dice.choice(self._seeds)
        data[self._dice.randrange(len(data) + 1) :] = other[self._dice.randrange(len(other) + 1) :]

    def _number(self, data: bytearray) -> None:
        digits = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
        if digits:
            start = end = self._dice.choice(digits)
            while end < len(data) and 48 <= data[end] <= 57:
                end += 1
            data[start:end] = self._dice.choice(EDGES)


_CHANGES = (
    Mutator._flip,
    Mutator._flip,
    Mutator._byte,
    Mutator._cut,
    Mutator._double,
    Mutator._word,
    Mutator._word,
    Mutator._splice,
    Mutator._number,
)
