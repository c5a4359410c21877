"""What stands behind the question mark."""

from __future__ import annotations

from collections.abc import Sequence

from mediaworker.http.problem import Problem

LIMIT_DEFAULT, LIMIT_MAX = 50, 500


def page_limit(text: str | None) -> int:
    """How many items of a list. Raises Problem 400."""
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LIMIT_MAX):
        raise Problem(400, f"limit must be a number from 1 to {LIMIT_MAX}")
    return int(text)


def choice(name: str, text: str | None, choices: Sequence[str]) -> str | None:
    """One of them, or nothing. Raises Problem 400."""
    if text is not None and text not in choices:
        raise Problem(400, f"{name} must be one of {', '.join(choices)}")
    return text
