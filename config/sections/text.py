"""The settings of the texts that are shown and stored."""

from __future__ import annotations

from typing import Literal

from config.sections.section import Section


class Text(Section, frozen=True, kw_only=True):
    """How finals, and the texts of files, are written."""

    numerals: Literal["as spoken", "digits"] = "as spoken"
    """With `digits`, numbers that the engine has written as words are written in digits in finals and in the texts of
    files, in German, English, Spanish, French, Italian and Portuguese; a final keeps its first text in `spoken`.
    `as spoken` leaves the text as the engine has written it, and some engines write digits themselves."""
