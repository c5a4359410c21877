"""Finds the places where a text may be cut, and rates them. It knows nothing of times. No I/O.

In every script a text may be cut at a space. Han, kana, Thai, Lao, Khmer and Burmese are written without spaces. There
it may be cut between characters, but never before a character that must not begin a line, nor after one that must not
end it (a small part of the Unicode line breaking algorithm, UAX #14, and of the Japanese rules called kinsoku).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


class BreakPlace(IntEnum):
    """The kind of text after which a cut lies. The higher, the better."""

    HARD = 0
    """Inside a word that is longer than a line."""
    POOR = 1
    """After a character, probably inside a word."""
    PLAIN = 2
    """After a word."""
    CLAUSE = 3
    """After a clause."""
    PAUSE = 4
    """After a word that a short silence follows."""
    END = 5
    """After a sentence, or after a word that a long silence follows."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A part of a text that is never cut: a word with its punctuation, or a character of a script without spaces."""

    start: int
    end: int
    """The end in the text, without a following space."""
    place: BreakPlace
    """The kind of a cut after it."""


_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff"
                       "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff、。，！？：；」』）】]")  # fmt: skip
_KANA = re.compile("[\u3040-\u30ff]")
_HIRAGANA = re.compile("[\u3040-\u309f]")
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

_FIRST = "เแโใไເແໂໃໄ"
"""The vowels of Thai and Lao that are written before their consonant, so that a syllable begins with them."""
_STARTS_NO_LINE = frozenset(
    # These belong to the character before them.
    "ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶー々ゝゞヽヾ〜～ｧｨｩｪｫｬｭｮｯｰ゛゜"
    "ะาำๅๆฯະາຳໆ"  # vowels and signs of Thai and Lao that follow their consonant
)
_ENDS_NO_LINE = frozenset(
    _FIRST + "\u1039\u17d2\u200d"  # join two letters: Burmese virama, Khmer coeng, zero width joiner
    "$£¥€＄￡￥#＃"
)
_QUOTES = "\"'”’“‘»«›‹)）」』】》〉〕］]}"
_SHORTENED = re.compile(r"\W*(mr|mrs|ms|dr|prof|st|hr|fr|sra|mme|mlle|vs|[a-hj-z])\.", re.IGNORECASE)
"""A title or an initial, whose point does not end a sentence: it belongs to the name that follows."""
_SENTENCE, _CLAUSE = ".?!…。？！．؟۔।॥։။។", ",;:，、；：،؛—–"


def columns(text: str) -> int:
    """Return the width of a text: a wide character has two columns, a combining mark none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def is_spoken(character: str) -> bool:
    """Return whether a character is a letter or a number, which words of speech consist of."""
    return unicodedata.category(character)[0] in "LN"


def atoms(text: str, *, line: int, first_line: int) -> list[Atom]:
    """Return the atoms of a text with single spaces. None has more columns than a line, and the first not more than
    `first_line`."""
    spans: list[tuple[int, int]] = []
    for start, end in _joined(text, list(_unbroken(text))):
        spans.extend(_short(text, start, end, line if spans else first_line))
    kana = bool(_KANA.search(text))
    nexts = [*(start for start, _ in spans), len(text)][1:]
    return [
        Atom(start, end, _place(text, start, end, behind, kana))
        for (start, end), behind in zip(spans, nexts, strict=True)
    ]


def _unbroken(text: str) -> Iterator[tuple[int, int]]:
    for token in re.finditer(r"\S+", text):
        start = token.start()
        if not token[0].isascii():
            for at in range(start + 1, token.end()):
                if _parts(text[at - 1], text[at]):
                    yield start, at
                    start = at
        yield start, token.end()


def _parts(before: str, after: str) -> bool:
    """Return whether a line may end between two adjacent characters."""
    if not (_UNSPACED.match(before) or _UNSPACED.match(after)):
        return False
    return not (_opens(before) or _closes(after) or '"' in (before, after))


def _opens(character: str) -> bool:
    return unicodedata.category(character) in ("Ps", "Pi") or character in _ENDS_NO_LINE


def _closes(character: str) -> bool:
    """Return whether a character must not begin a line: closing punctuation, or a mark on the character before it."""
    return unicodedata.category(character) in ("Pe", "Pf", "Po", "Pd", "Pc", "Mn", "Mc", "Me", "Cf") or (
        character in _STARTS_NO_LINE
    )


def _joined(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join punctuation that stands alone (a dash, ` !` in French) to the word before it; opening punctuation is joined
    to the word after it."""
    joined: list[tuple[int, int]] = []
    waiting: int | None = None
    for start, end in spans:
        begin = start if waiting is None else waiting
        waiting = None
        if any(unicodedata.category(each)[0] != "P" for each in text[start:end]):
            joined.append((begin, end))
        elif joined and not _opens(text[start]):
            joined[-1] = (joined[-1][0], end)
        else:
            waiting = begin
    if waiting is not None:
        joined.append((waiting, spans[-1][1]))
    return joined


def _short(text: str, start: int, end: int, room: int) -> Iterator[tuple[int, int]]:
    """Split a part with more columns than `room` into parts of about the same length."""
    whole = columns(text[start:end])
    if whole <= room:
        yield start, end
        return
    part = -(-whole // -(-whole // room))
    at, used = start, 0
    for index in range(start, end):
        width = _columns(text[index])
        if used + width > part:
            yield at, at + len(text[at:index].rstrip())
            at, used = (index + 1, 0) if text[index] == " " else (index, width)
        else:
            used += width
    yield at, end


def _place(text: str, start: int, end: int, behind: int, kana: bool) -> BreakPlace:
    """Return the place after the atom from `start` to `end`. `behind`: the start of the next atom."""
    if behind >= len(text):
        return BreakPlace.END
    last, before, after = text[start:end].rstrip(_QUOTES)[-1:], text[end - 1], text[behind]
    spaced, parts = behind > end, _parts(before, after)
    if not spaced and not parts:
        return BreakPlace.HARD
    if spaced and _SHORTENED.fullmatch(text, start, end):
        return BreakPlace.POOR
    if last and last in _SENTENCE and (spaced or not last.isascii()):
        # A sentence does not begin with a small letter, so the point is that of an abbreviation (`z. B. this`).
        return BreakPlace.CLAUSE if after.islower() else BreakPlace.END
    if last and last in _CLAUSE and (spaced or not last.isascii()):
        return BreakPlace.CLAUSE
    if spaced:
        return BreakPlace.CLAUSE if _UNSPACED.match(before) and _UNSPACED.match(after) else BreakPlace.PLAIN
    return _between(before, after, kana)


def _between(before: str, after: str, kana: bool) -> BreakPlace:
    """Return the place between two characters of a script without spaces, whose words are unknown. In Japanese a phrase
    mostly ends in hiragana and the next one begins with another script. Chinese words are too short to matter much."""
    if after in _FIRST:
        return BreakPlace.PLAIN
    if kana:
        good = bool(_HIRAGANA.match(before)) and not _HIRAGANA.match(after)
    else:
        good = not before.isdigit() and bool(_HAN.match(before) or _HAN.match(after))
    return BreakPlace.PLAIN if good else BreakPlace.POOR
