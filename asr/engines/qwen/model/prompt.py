"""The prompt around the audio, and what comes back: token ids on one side, a language and words on the other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from asr import languages
from asr.text import ASR_TAG, parse_output

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
AUDIO_START, AUDIO_END, AUDIO_PAD = "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"
END_OF_TEXT = "<|endoftext|>"
SPECIAL = (IM_START, IM_END, AUDIO_START, AUDIO_END, AUDIO_PAD, END_OF_TEXT, ASR_TAG)
MAX_CONTEXT = 256
"""Tokens of a context that are used; the rest is left out, at its end."""
CONTEXTS = 512
"""This many contexts are remembered: calls of one profile have the same, and each call opens many utterances."""


def audio_tokens(frames: int) -> int:
    """Positions of so many frames of sound between head and tail: 13 a second, the last of which may be cut off."""
    return 13 * (frames // 100) + -(-(frames % 100) // 8)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The token ids before and behind an utterance's audio."""

    head: tuple[int, ...]
    tail: tuple[int, ...]
    language: str
    """ISO 639 code of the language that is forced; empty: the model detects it."""


class Prompts:
    """Builds prompts as the model was trained with them."""

    def __init__(self, tokenizer: Any, *, ends: tuple[int, ...]) -> None:
        """`ends`: ids after which there is no more text."""
        self._tokenizer, self.ends = tokenizer, frozenset(ends)
        self._before = self._plain(f"{IM_START}system\n")
        self._between = self._plain(f"{IM_END}\n{IM_START}user\n{AUDIO_START}")
        self._after = self._plain(f"{AUDIO_END}{IM_END}\n{IM_START}assistant\n")
        added = "|".join(map(re.escape, sorted(tokenizer.get_added_vocab())))
        self._added = re.compile(f"(?=(?:{added}))" if added else "(?!)")
        """Matches before each token that is no piece of words; they may overlap."""
        self.vocabulary: dict[str, int] = tokenizer.get_vocab()
        # No token stands for more characters than it is written with.
        self._most_characters = MAX_CONTEXT * max(map(len, self.vocabulary))
        self._context = lru_cache(CONTEXTS)(lambda context: tuple(self._words(context)[:MAX_CONTEXT]))
        self.never = tokenizer.convert_tokens_to_ids(AUDIO_PAD)
        """The placeholder of audio, which is no answer."""

    def _plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _words(self, context: str) -> list[int]:
        """A context is words and nothing else: a special token in it would end the system's turn.

        `split_special_tokens` spells out those that the tokenizer calls special. `<asr_text>` and `<timestamp>` are
        added to the vocabulary without being called so: text is cut behind the first character of each.
        """
        cuts = [0, *(found.start() + 1 for found in self._added.finditer(context)), len(context)]
        parts = [context[start:stop] for start, stop in pairwise(cuts) if start < stop]
        spelled = (self._tokenizer(part, add_special_tokens=False, split_special_tokens=True) for part in parts)
        return [token for part in spelled for token in part["input_ids"]]

    def build(self, *, context: str = "", language: str = "") -> Prompt:
        """`language`: an ISO 639 code; one that the model does not know is not forced."""
        words = self._context(context[: self._most_characters])
        name = languages.name(language) if language else None
        forced = self._plain(f"language {name}{ASR_TAG}") if name else ()
        return Prompt(
            head=(*self._before, *words, *self._between),
            tail=(*self._after, *forced),
            language=languages.code(name) if name else "",
        )

    def read(self, tokens: list[int], prompt: Prompt) -> tuple[str, str]:
        """(ISO 639 code, text) of an answer without its end."""
        return parse_output(self._tokenizer.decode(tokens, skip_special_tokens=False), prompt.language)

    def has_letters(self, tokens: list[int]) -> bool:
        return any(character.isalpha() for character in self._tokenizer.decode(tokens, skip_special_tokens=True))
