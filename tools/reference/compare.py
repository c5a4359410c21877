"""Question by question: is what the engine did what the official package did?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.reference import deviations, times, words
from tools.reference.cases import MODEL_HZ, Case, Talk, talks
from tools.reference.deviations import ENCODER_TOLERANCE, MEL_TOLERANCE, WINDOW_S, agreement, distance, where
from tools.reference.ours import EXACT, WHOLE, Engine, Said

Answers = Mapping[tuple[str, int], Said]


@dataclass(slots=True)
class Row:
    """A question and what came of it."""

    case: Case
    tokens: int = 0
    """Compared."""
    reasons: list[str] = field(default_factory=list)
    """Of what differs and is explained."""
    wrong: list[str] = field(default_factory=list)
    """What differs and is not."""
    mel: float = 0.0
    encoder: float = 0.0
    """Relative to the largest value."""

    @property
    def result(self) -> str:
        return "DIFFERENT" if self.wrong else ", ".join(dict.fromkeys(self.reasons)) or "equal"


class Ours:
    """The engine's answers: as it is by default, and as it is without what may explain a difference."""

    def __init__(self, folder: Path, models: tuple[str, ...]) -> None:
        self.engines = {name: Engine(folder / name) for name in models}
        self.default = self._hear(self.engines, lambda talk: True)
        shown = ((EXACT, "exact"), (WHOLE, "whole"))
        engines = {key: {name: Engine(folder / name, shape) for name in models} for shape, key in shown}
        self.whole_engines = engines["whole"]
        self.exact = self._hear(engines["exact"], lambda talk: talk.sound.seconds > WINDOW_S)
        self.whole = self._hear(engines["whole"], lambda talk: talk.sound.seconds > WINDOW_S)

    @staticmethod
    def _hear(engines: Mapping[str, Engine], wanted: Any) -> dict[tuple[str, int], Said]:
        asked = [talk for talk in talks() if wanted(talk)]
        return {(talk.name, end): said for talk in asked for end, said in engines[talk.model].hear(talk).items()}


def compare(case: Case, answer: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]], ours: Ours) -> Row:
    row, key = Row(case), (case.talk.name, case.end)
    said, engine = ours.default[key], ours.engines[case.talk.model]
    without = answer.get("without")
    _prompt(row, engine.prompt(case), answer, without)
    _tokens(row, said, answer, without, ours, key)
    told = without if without and said.tokens == without["tokens"] else answer
    if said.tokens == told["tokens"]:
        _note(row, "text", words.rule((told["language"], told["text"]), (said.language, said.text)), (said, told))
    if case.final:
        _numbers(row, arrays, ours, bool(without))
    return row


def _note(row: Row, what: str, reason: str | None, shown: object = "") -> None:
    if reason is None:
        row.wrong.append(f"{what} {shown}")
    elif reason != "equal":
        row.reasons.append(reason)


def _prompt(row: Row, ours: list[int], answer: Mapping[str, Any], without: Mapping[str, Any] | None) -> None:
    if ours != answer["prompt"] and (without is None or ours != without["prompt"]):
        row.wrong.append(f"prompt {where(ours, answer['prompt'])}")


def _tokens(
    row: Row, said: Said, answer: Mapping[str, Any], without: Mapping[str, Any] | None, ours: Ours, key: tuple[str, int]
) -> None:
    case, tokens = row.case, said.tokens
    told = (without or answer)["tokens"]
    if "window" in answer["switches"] and not case.final and agreement(case, tokens, told) is None:
        tokens = ours.exact[key].tokens
        row.reasons.append("frozen")
    row.tokens = min(len(tokens), len(told))
    _note(row, "tokens", agreement(case, tokens, told), where(tokens, told))
    if without and agreement(case, said.tokens, answer["tokens"]) is None:
        row.reasons += answer["switches"]
    if "window" in answer["switches"]:
        whole = ours.whole[key].tokens
        _note(row, "one window", agreement(case, whole, answer["tokens"]), where(whole, answer["tokens"]))


def _numbers(row: Row, arrays: Mapping[str, NDArray[np.float32]], ours: Ours, without: bool) -> None:
    case, suffix = row.case, "/without" if without else ""
    compared = [(ours.engines[case.talk.model], suffix)]
    if case.seconds > WINDOW_S:
        compared.append((ours.whole_engines[case.talk.model], ""))
    for engine, kind in compared:
        mel, embeddings = engine.seen(case)
        row.mel = max(row.mel, distance(mel, arrays[f"{case.name}/mel{kind}"]))
        scale = float(np.abs(embeddings).max())
        row.encoder = max(row.encoder, distance(embeddings, arrays[f"{case.name}/embeddings{kind}"]) / scale)
    if row.mel > MEL_TOLERANCE:
        row.wrong.append(f"mel by {row.mel:.2g}")
    if row.encoder > ENCODER_TOLERANCE:
        row.wrong.append(f"encoder by {row.encoder:.2g}")


@dataclass(frozen=True, slots=True)
class Stream:
    """The package's streaming recipe on one talk."""

    name: str
    chunk_s: float
    rolls_back: bool
    """As published: the last answer but five tokens is given as a beginning. Else every answer is made anew."""
    count: int
    same: int
    """Answers that are the engine's for the same audio; as published: those that are the recipe's made anew."""


def streamed(heard: Mapping[str, Any], anew: Mapping[str, Any], talk: Talk, ours: Ours) -> Stream:
    """`anew`: the same talk and cadence, every answer made anew."""
    known = ours.exact if talk.sound.seconds > WINDOW_S else ours.default
    same = 0
    for answer, other in zip(heard["heard"], anew["heard"], strict=True):
        case = Case(talk, answer["end"] * 8000 // MODEL_HZ)
        if heard["rolls_back"]:
            same += answer["text"] == other["text"]
        else:
            same += agreement(case, known[talk.name, case.end].tokens, answer["tokens"]) is not None
    return Stream(talk.name, heard["chunk_s"], heard["rolls_back"], len(heard["heard"]), same)


def counts(rows: Sequence[Row] | Sequence[times.Row]) -> Counter[str]:
    """How often each reason was needed."""
    return Counter(reason for row in rows for reason in dict.fromkeys(row.reasons))


CAUSES = {
    **{name: (switch.cause, switch.check) for name, switch in deviations.SWITCHES.items()},
    **deviations.FOUND,
    **times.CAUSES,
    **{name: (cause, "the words are the same but for that") for name, cause in words.RULES.items()},
}
