"""The vocabulary of the model: what each token is in text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BEGIN, END = 1, 2
_SPACE = "\u2581"
"""SentencePiece's sign for a space before a word."""


class Tokens:
    """The pieces of `tokenizer.bin`.

    The file is a sequence of strings in UTF-8, one per token in the order of their numbers, each after its length: one
    byte below 128, or two, the lower seven bits with the highest bit set and then the rest.
    """

    def __init__(self, data: bytes) -> None:
        """Raises ValueError when the file breaks off."""
        self._pieces: list[bytes] = []
        at = 0
        while at < len(data):
            length = data[at]
            at += 1
            if length >= 128:
                if at == len(data):
                    raise ValueError("the vocabulary breaks off in a length")
                length += 128 * (data[at] - 1)
                at += 1
            if at + length > len(data):
                raise ValueError("the vocabulary breaks off in a token")
            self._pieces.append(data[at : at + length])
            at += length

    def __len__(self) -> int:
        return len(self._pieces)

    def text(self, tokens: Iterable[int]) -> str:
        """The text of an answer. Its bytes may end in the middle of a character, which becomes U+FFFD."""
        joined = b"".join(self._pieces[token] for token in tokens)
        return joined.decode("utf-8", "replace").replace(_SPACE, " ").strip()

    def first_words(self, tokens: Sequence[int], count: int) -> int:
        """How many of the tokens make the first `count` words."""
        begun = 0
        for at, token in enumerate(tokens):
            begun += self._pieces[token].startswith(_SPACE.encode()) or at == 0
            if begun > count:
                return at
        return len(tokens)

    def whole_words(self, tokens: Sequence[int], count: int) -> int:
        """How many words lie within the first `count` tokens, to their ends."""
        begins = [at == 0 or self._pieces[token].startswith(_SPACE.encode()) for at, token in enumerate(tokens)]
        return sum(begins[:count]) - (0 < count < len(tokens) and not begins[count])
