"""Cleans an engine's text before it is shown: removes loops, echoes of the context, and text without speech.

Pure functions over strings. `clean` applies them in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from asr import languages
from asr.utterance import MAX_TEXT

ASR_TAG = "<asr_text>"

RUN_CHARS = 20
"""A run of one character that is longer than this is a loop of the language model."""
LOOP_MIN_CHARS = 40
LOOP_REPEATS = 20
LOOP_PATTERN_CHARS = 20
DIGITS_KEPT = 64
"""A loop without letters (`1000…0`, `12 12 12 …`) may be a spoken number: this many characters of it are kept."""
WORDS_PER_S = 8.0
"""The most words per second that anybody speaks; a text with more of them does not come from the audio."""
QUIET_DBFS = -50.0
"""Loudest 100 ms of an utterance that holds no speech: idle line noise is at −60 to −70 dBFS, a whisper above −45."""
SILENT_DBFS = -56.0
"""Audio below this level holds no speech, so its text is dropped whatever it is."""
ECHO_MIN_WORDS = 4
"""In loud audio, only a text that is the whole context, and has at least this many words, is an echo: a caller may
really have spoken a few names of it."""

_TAGGED = re.compile(r"language[ \t]+([^<>\n]{1,40}?)\s*<asr_text>", re.IGNORECASE)
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</?asr_text>")
_CHARACTER_RUN = re.compile(rf"([^\d\s])\1{{{RUN_CHARS},}}")
_LOOP = re.compile(rf"(.{{1,{LOOP_PATTERN_CHARS}}}?)\1{{{LOOP_REPEATS - 1},}}", re.DOTALL)
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_UNSPACED_RANGES = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNSPACED = re.compile(f"[{_UNSPACED_RANGES}]")
_SHOWN_WORD = re.compile(rf"[{_UNSPACED_RANGES}]|[^\s{_UNSPACED_RANGES}]+")
"""Thai, kana and Han characters. These scripts are written without spaces, so a word may end after any of them."""


def parse_output(raw: str, forced: str = "") -> tuple[str, str]:
    """Return (ISO 639 code, text) of a Qwen3-ASR answer `language English<asr_text>…`.

    With a forced language (its code) the prompt holds the tag already and the answer is text alone. Leaked tags and
    special tokens are removed in every case; `language None` means no speech was recognised and gives no code.
    """
    head, tag, rest = raw.partition(ASR_TAG)
    code = forced
    text = raw
    if tag and not forced:
        found = _TAGGED.search(head + tag)
        text = rest
        if found:
            code = languages.code(found[1])
    # A tag in the middle means that the model has started over. The words on both sides are kept, the tag is not.
    if "<" in text:
        text = _SPECIAL.sub("", _TAGGED.sub("", text))
    return code, text.strip()


def cut_repetitions(text: str) -> str:
    """Cut the loops into which a language model falls: a run of one character, or a pattern of up to 20 characters that
    is repeated 20 times, becomes one copy. Loops without letters keep their first 64 characters, since a long number
    may have been spoken.

    The result is not prefix-stable: a longer text may have a shorter result. For live text the engine stops generating
    instead.
    """
    # The regular expressions cost more than everything else here, so most texts skip them. A pattern that is repeated
    # 20 times has a character that occurs 20 times. In ordinary text only the space is that frequent, and a loop of
    # spaces would need two in a row.
    if len(text) < LOOP_REPEATS or "  " not in text and not _has_frequent_character(text):
        return text
    text = _CHARACTER_RUN.sub(r"\1", text)
    return text if len(text) < LOOP_MIN_CHARS else _LOOP.sub(_one_copy, text)


def _has_frequent_character(text: str) -> bool:
    return any(text.count(character) >= LOOP_REPEATS for character in set(text) if character != " ")


def _one_copy(found: re.Match[str]) -> str:
    if any(character.isalpha() for character in found[1]):
        return found[1]
    return found[1] * (min(len(found[0]), DIGITS_KEPT) // len(found[1]))


def joined(parts: Iterable[str]) -> str:
    """Join consecutive texts, with a space in between where the script has spaces."""
    whole = ""
    for part in map(str.strip, parts):
        if whole and part and not (_is_unspaced(whole[-1]) and _is_unspaced(part[0])):
            whole += " "
        whole += part
    return whole


def without_first_word(text: str) -> str:
    """Return the text from its second word on, without punctuation at its start."""
    found = _WORD.search(text)
    if found is None:
        return text
    rest = text[found.start() + 1 :] if _UNSPACED.match(found[0]) else text[found.end() :]
    return rest.lstrip(" ,.;:!?、。，；：！？")


def _is_unspaced(character: str) -> bool:
    """True for a character, or a full-width punctuation mark, of a script that is written without spaces."""
    return bool(_UNSPACED.match(character)) or character in "、。，；：！？）」』】《"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of the audio itself for or against speech."""

    seconds: float
    peak_dbfs: float
    """RMS of the loudest 100 ms against full scale."""


def words(text: str) -> list[str]:
    """Return the words for a comparison: case-folded, without punctuation; one per character in unspaced scripts."""
    found: list[str] = []
    for word in _WORD.findall(text.casefold()):
        found += list(word) if _UNSPACED.search(word) else [word]
    return found


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words stand in the text, as they are shown with their times: from the first letter or digit between two
    spaces to the last one (`well-known`, `3.14`, `don’t`). In unspaced scripts each character is one."""
    spans = []
    for found in _SHOWN_WORD.finditer(text):
        begin, end = found.span()
        while begin < end and not text[begin].isalnum():
            begin += 1
        while begin < end and not text[end - 1].isalnum():
            end -= 1
        spans += [(begin, end)] if begin < end else []
    return spans


def is_echo(text: str, source: str, evidence: Evidence) -> bool:
    """True when `text` comes from `source` (the context or hotword list, or the previous transcript) and not from the
    audio: the source contains its words in this order, and the audio is too quiet or too short for them.
    """
    spoken, known = words(text), words(source)
    if not spoken or not known or not _contains(spoken, known):
        return False
    return evidence.peak_dbfs < QUIET_DBFS or len(spoken) > WORDS_PER_S * evidence.seconds + 1


def is_recital(text: str, context: str, evidence: Evidence) -> bool:
    """True when `text` is the context: an echo, or all of it word by word, which no caller speaks."""
    known = words(context)
    return is_echo(text, context, evidence) or (len(known) >= ECHO_MIN_WORDS and words(text) == known)


def _contains(part: list[str], whole: list[str]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def clean(text: str, *, context: str = "", previous: str = "", evidence: Evidence) -> str:
    """Return an engine's text as it may be shown: without loops and repeated spaces, and at most `MAX_TEXT` long. It is
    empty if the text is an echo, or if the audio holds no speech."""
    if evidence.peak_dbfs < SILENT_DBFS:
        return ""
    text = " ".join(cut_repetitions(text[:MAX_TEXT]).split())
    if context and is_recital(text, context, evidence):
        return ""
    if previous and is_echo(text, previous, evidence):
        return ""
    return text


def takes_back(previous: str, current: str) -> bool:
    """True when `current` changes or drops a word of `previous`; case and punctuation may change."""
    before = words(previous)
    return words(current)[: len(before)] != before


def stable_prefix(previous: str, current: str) -> int:
    """Return how many code points at the start of both agree, up to a word boundary of both.

    A word counts only when it is complete in both: `call` in `call` and `calling` does not count.
    """
    at = _agreed(previous, current)
    while at > 0 and not (_boundary(previous, at) and _boundary(current, at)):
        at -= 1
    return at


def _agreed(previous: str, current: str) -> int:
    """Return how many code points at the start of both are equal. It bisects, because comparing slices is much faster
    than a loop over characters."""
    low, high = 0, min(len(previous), len(current))
    if previous[:high] == current[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if previous[low:middle] == current[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _boundary(text: str, at: int) -> bool:
    """True when a word ends right before `at` (> 0)."""
    if text[at - 1].isspace():
        return False
    if at == len(text) or not (text[at].isalnum() or text[at] in "'’-"):
        return True
    return bool(_UNSPACED.match(text[at - 1]) or _UNSPACED.match(text[at]))
