"""From a model's raw words to a language and a text: the package's way and ours."""

from __future__ import annotations

import re

from asr import languages, text
from asr.engines.qwen.model.prompt import SPECIAL

LOUD = text.Evidence(seconds=60.0, peak_dbfs=-10.0)
RAW = (
    ("language English<asr_text>four seven", ""), ("four seven", ""), ("four seven", "English"), ("", ""), ("  ", ""),
    ("", "German"), ("language None<asr_text>", ""), ("language None<asr_text>yes", ""), ("<asr_text>yes", ""),
    ("language Klingon<asr_text>nuqneH", ""), ("language cantonese<asr_text>早晨。", ""),
    ("language English<asr_text> four  seven\n one ", ""), ("language English<asr_text>" + "a" * 40, ""),
    ("ha " * 30 + "ho", "English"), ("abc" * 20 + "d" * 20, "English"), ("so " * 19 + "so", "English"),
    ("1" + "0" * 30, "English"), ("12" * 40, "English"), ("..." * 20, "English"), ("ab" * 25 + "xy" * 25, "English"),
    ("language English<asr_text>one<asr_text>two", ""),
    ("one<|im_end|>two", "English"), ("language English\n<asr_text>one", ""),
)  # fmt: skip
"""Answers and the language that was forced, by the model's name."""
RULES = {
    "silent": "a forced language is still the language of an answer without words; in the package it has none",
    "spaces": "spaces and line ends between words become one space",
    "number": "a loop without letters may be a number that was said: 64 characters of it are kept, not one or two",
    "again": "behind one loop another is cut as well, not only when 40 characters or more are left",
    "leaked": "tags and special tokens in the middle of an answer are removed, not shown",
}
_LOOP = re.compile(r"(.{1,20}?)\1{19,}")
_TAG = re.compile(r"language[ \t]+\w+\s*<asr_text>|" + "|".join(re.escape(token) for token in SPECIAL))


def ours(raw: str, forced: str) -> tuple[str, str]:
    """(ISO 639 code, text)."""
    code, words = text.parse_output(raw, languages.code(forced) if forced else "")
    return code, text.clean(words, evidence=LOUD)


def rule(theirs: tuple[str, str], ours: tuple[str, str]) -> str | None:
    """`equal`, why they differ, or None when that has no reason. Theirs is (name of the language, text)."""
    name, words = theirs
    code, shown = ours
    if not words and not shown:
        return "equal" if languages.code(name) == code else "silent" if not name else None
    if languages.code(name) != code:
        return None
    if words == shown:
        return "equal"
    if " ".join(words.split()) == shown:
        return "spaces"
    if _TAG.search(words) and not _TAG.search(shown) and "".join(_TAG.sub("", words).split()) == "".join(shown.split()):
        return "leaked"
    if _LOOP.sub(r"\1", words) == shown:
        return "again"
    if len(words) < len(shown) <= text.DIGITS_KEPT + 1 and not any(each.isalpha() for each in shown):
        return "number"
    return None
