"""Finds phrases in a text regardless of case, punctuation and spaces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

TIMEOUT_S = 0.05
"""How long a pattern may search a text, while all calls wait."""
_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
"""Scripts without spaces between words."""


class PatternError(ValueError):
    """A phrase or pattern cannot be used; the text says why."""


def phrases(texts: Iterable[str]) -> regex.Pattern[str] | None:
    """One pattern that finds any of the phrases as whole words; None if there are none. Raises PatternError."""
    found = [_phrase(text) for text in texts]
    return pattern("|".join(found)) if found else None


def pattern(text: str) -> regex.Pattern[str]:
    """Compiles a regular expression, which ignores case unless it says otherwise. Raises PatternError."""
    import regex  # 3 MB, loaded only for patterns

    try:
        compiled = regex.compile(text, regex.IGNORECASE | regex.FULLCASE | regex.V1)
    except (regex.error, RecursionError) as error:
        raise PatternError(f"not a regular expression: {error}") from None
    if compiled.match("") is not None:
        raise PatternError("it matches where nothing is said")
    return compiled


def _phrase(text: str) -> str:
    import regex

    words = regex.findall(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+", text, regex.V1)
    if not words:
        raise PatternError("a phrase needs a word")
    alone = [regex.match(rf"[{_SPACELESS}]", word, regex.V1) is not None for word in words]
    parts = ["" if alone[0] else r"(?<![^\W_])", regex.escape(words[0])]
    for number, word in enumerate(words[1:], 1):
        # Chinese, Japanese and Thai are written without spaces, and recognisers put some in.
        parts += [r"[\W_]*" if alone[number - 1] or alone[number] else r"[\W_]+", regex.escape(word)]
    return "".join([*parts, "" if alone[-1] else r"(?![^\W_])"])
