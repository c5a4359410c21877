"""What was said against what was recognised, prompt by prompt. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.word_errors.align import Difference, align
from benchmarks.word_errors.normalise import words

_PLAIN = re.compile(r"[\w']+")
OVERLAP = 8 * 100
"""Positions (100 ms) that an utterance has to share with a prompt to belong to it."""


@dataclass(frozen=True)
class Piece:
    """An utterance, in positions of the call."""

    start: int
    end: int
    text: str
    lost_ms: int = 0
    """Audio that was sent and did not come, or not in time."""


@dataclass(frozen=True)
class Scored:
    """One prompt, or several that an utterance has run together."""

    name: str
    said: str
    words: int
    offline: str
    """Each prompt whole, on the samples that the leg has heard."""
    offline_errors: int
    cut: str
    """The same samples, as endpointing cuts them."""
    cut_errors: int
    live: str
    live_errors: int
    wrong: tuple[Difference, ...]
    """In the live text, against what was said."""
    added: tuple[Difference, ...]
    """Where the live text is another than the same utterances offline: the path's own."""
    added_words: int
    mended_words: int
    """That are really said, where the list of texts has something else."""
    mended_errors: int
    """In the live text, against these."""
    utterances: int
    late_ms: int
    """Audio that came too late for the live call, or got lost on the way; not what the condition loses on purpose."""
    why: str
    """What else differs, where the path has added something."""


def groups(windows: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Which utterances belong to which prompts: (prompts, utterances) by index, all in order.

    An utterance belongs to every prompt that it overlaps, else to the nearest. Prompts that share one are one group.
    """
    home = list(range(len(windows)))
    """The first prompt of the group that a prompt is in."""
    owners = []
    for start, end in pieces:
        shared = [min(end, last) - max(start, first) for first, last in windows]
        own = [index for index, overlap in enumerate(shared) if overlap >= OVERLAP] or [shared.index(max(shared))]
        owners.append(own[0])
        for index in range(own[0], own[-1] + 1):
            home[index] = min(home[index], home[own[0]])
    for index in range(len(home)):
        home[index] = home[home[index]]
    return [
        (
            [index for index in range(len(windows)) if home[index] == first],
            [index for index, owner in enumerate(owners) if home[owner] == first],
        )
        for first in sorted(set(home))
    ]


def score(
    names: Sequence[str],
    texts: Sequence[str],
    windows: Sequence[tuple[int, int]],
    whole: Sequence[str],
    cut: Sequence[Piece],
    live: Sequence[Piece],
    *,
    mended: Sequence[str] | None = None,
    language: str = "en",
) -> list[Scored]:
    """`windows`: where each prompt lies in its call, in positions; `whole`: each prompt's text offline; `mended`: what
    is really said in each prompt, empty where that is its text."""
    mended = mended or [""] * len(texts)
    spans = [(piece.start, piece.end) for piece in (*cut, *live)]
    return [
        _scored(
            [names[index] for index in prompts],
            [texts[index] for index in prompts],
            [mended[index] or texts[index] for index in prompts],
            [whole[index] for index in prompts],
            [cut[index] for index in pieces if index < len(cut)],
            [live[index - len(cut)] for index in pieces if index >= len(cut)],
            language,
        )
        for prompts, pieces in groups(windows, spans)
    ]


def _scored(
    names: list[str],
    texts: list[str],
    mended: list[str],
    whole: list[str],
    cut: list[Piece],
    live: list[Piece],
    language: str,
) -> Scored:
    said, really = ([word for text in each for word in words(text, language)] for each in (texts, mended))
    cut_text, live_text = (" ".join(piece.text for piece in pieces) for pieces in (cut, live))
    pairs = [(words(text, language), words(one, language)) for text, one in zip(texts, whole, strict=True)]
    cut_words, live_words = words(cut_text, language), words(live_text, language)
    heard, path = align(said, live_words), align(cut_words, live_words)
    return Scored(
        name="+".join(names),
        said=" / ".join(texts),
        words=len(said),
        offline=" / ".join(whole),
        offline_errors=sum(align(text, one).errors for text, one in pairs),
        cut=cut_text,
        cut_errors=align(said, cut_words).errors,
        live=live_text,
        live_errors=heard.errors,
        wrong=heard.differences,
        added=path.differences,
        added_words=path.errors,
        mended_words=len(really),
        mended_errors=align(really, live_words).errors,
        utterances=len(live),
        late_ms=_lost_ms(live) - _lost_ms(cut),
        why=_why(cut, live) if path.errors else "",
    )


def _why(cut: list[Piece], live: list[Piece]) -> str:
    if (late_ms := _lost_ms(live) - _lost_ms(cut)) > 0:
        return f"{late_ms} ms of audio came too late, or not at all"
    if len(cut) != len(live):
        return f"{len(live)} utterances live, {len(cut)} offline"
    moved = [(b.start - a.start, b.end - a.end) for a, b in zip(cut, live, strict=True)]
    start, end = (max((each[side] for each in moved), key=abs) / 8 for side in (0, 1))
    if abs(start) < 1 and abs(end) < 1:
        return "the same utterances, another text"
    return f"an utterance begins {start:+.0f} ms, ends {end:+.0f} ms elsewhere"


def _lost_ms(pieces: Sequence[Piece]) -> int:
    return sum(each.lost_ms for each in pieces)


def taken_back(partials: Sequence[str]) -> tuple[int, int]:
    """(partials that follow another, those of them that lack a word which the one before showed)."""
    shown = [_PLAIN.findall(text.lower()) for text in partials]
    back = sum(after[: len(before)] != before for before, after in zip(shown, shown[1:], strict=False))
    return max(0, len(shown) - 1), back
