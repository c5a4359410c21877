"""Where the engine may differ from the official package, and why. A difference is explained only when a check of its
cause holds for that very case; anything else is an error.

A cause that is known from the question is taken away on the official side (`SWITCHES`), and what it then says must be
what the engine says, whether or not the two differed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr.engines.qwen.model.prompt import MAX_CONTEXT, SPECIAL
from asr.engines.qwen.session import longest
from asr.repetition import is_loop, once
from tools.reference.cases import Case

WINDOW_S = 8.0
MEL_TOLERANCE = 1e-4
"""The filters run in another order of float32 operations."""
ENCODER_TOLERANCE = 1e-4
"""Of the largest value."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A cause that the question itself shows."""

    applies: Callable[[Case], bool]
    cause: str
    check: str


def _unlike_prompt(case: Case) -> bool:
    context = case.talk.context
    return len(context) > MAX_CONTEXT or any(token in context for token in SPECIAL)


SWITCHES = {
    "window": Switch(
        lambda case: case.seconds > WINDOW_S,
        "outside of flash attention the package does not pass the mask of the encoder's 8 s windows, so every"
        " second sees the whole recording; the library's class and the engine keep to the windows",
        "with that mask passed the package equals the engine, and with one window over everything the engine equals the"
        " package as published",
    ),
    "short": Switch(
        lambda case: case.seconds < 0.5,
        "the package fills up to 0.5 s only what it has cut from a long recording; the library's class, and the engine,"
        " fill up every recording",
        "given the same sound with zeros up to 0.5 s the package equals the engine",
    ),
    "tail": Switch(
        lambda case: case.seconds < 1.0,
        "the package's convolutions end where a recording of less than a second ends; the library's class and the"
        " engine fill up its only second, as all of them fill up the last of several",
        "with the frames filled up to a second the package equals the engine",
    ),
    "loud": Switch(
        lambda case: float(np.abs(case.samples).max(initial=0.0)) > 1.0,
        "the package divides a sound that passes 1.0 by its peak, which a stream does not know; the engine leaves it",
        "with that step left out the package equals the engine",
    ),
    "prompt": Switch(
        _unlike_prompt,
        "the package takes a context as it comes: special tokens in it work, and it has no limit; in the engine they"
        f" are letters, and {MAX_CONTEXT} tokens are used",
        "given the engine's prompt the package equals the engine",
    ),
}
FOUND = {
    "placeholder": (
        "the package may say the placeholder of audio, the engine never does",
        "with that token suppressed the package equals the engine",
    ),
    "loop": ("the engine ends an answer that has become a loop", "the tokens are the same up to there, and are a loop"),
    "limit": (
        "the engine ends an answer that is longer than anybody speaks",
        "the tokens are the same up to there, and are as many as the limit",
    ),
    "frozen": (
        "live partials keep the loudness that a finished window was encoded with",
        "with `exact` the engine equals the package with its windows, and so does the final",
    ),
}


def switches(case: Case) -> list[str]:
    return [name for name, switch in SWITCHES.items() if switch.applies(case)]


def agreement(case: Case, ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    """`equal` (as far as the package was asked), the rule by which the engine's answer ends first, or None."""
    if list(ours) == list(theirs):
        return "equal"
    count = min(len(ours), len(theirs))
    if list(ours[:count]) != list(theirs[:count]):
        return None
    if count == len(ours):
        said = (theirs[:end] for end in range(count, len(theirs) + 1))
        if any(is_loop(tokens) and list(ours) in (list(tokens), once(tokens)) for tokens in said):
            return "loop"
        return "limit" if count == longest(case.seconds) else None
    return "equal" if count == case.budget else None


def where(ours: Sequence[object], theirs: Sequence[object]) -> str:
    """The first place at which they part."""
    at = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return f"{len(ours)} here, {len(theirs)} there"
    return f"at {at}: {ours[at]!r} here, {theirs[at]!r} there"


def distance(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """Largest difference; infinite when the shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    return float(np.abs(ours - theirs).max(initial=0.0))
