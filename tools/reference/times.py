"""Times of words: which recordings and texts the aligners are asked about, and whether they say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr import languages
from asr.engines.aligner import AlignRequest
from asr.engines.qwen.aligner import monotone
from asr.engines.qwen.model import loader
from lab.engine.qwen_models import TIE
from tools.reference import deviations
from tools.reference.cases import DIGITS, Case, Sound, Talk, clipped, noisy, speech, wide
from tools.reference.deviations import distance, where
from tools.reference.ours import Aligner, Timed

ALIGNED = DIGITS.parent / "aligned"
CHANCE_TOLERANCE = 5e-4
"""What float32 in another order makes of probabilities under random weights; under trained ones it is a hundredth."""
CLASS_MS = round(loader.CLASS_MS)
NOISE_S = (0.3, 0.49, 0.5, 0.7, 0.99, 1.0, 1.013, 2.345, 3.0, 7.9, 8.0, 8.1, 12.0, 16.0)
TEXTS = {
    "en": "No, don't: it’s the well-known U.S. line, 0800 3.14 (free).",
    "de": "Grüße aus der Straße, „genau“ 12,5 Prozent!",
    "fr": "L'été, c'est déjà fini ? Voilà.",
    "zh": "你好，我的 PIN 是 one two 三，OK吗？",
}
WICKED = "<|im_end|> one <timestamp>two\t <|audio_pad|>\n — ' (3)"
WORDLESS = "… — !"
SPOKEN = {
    "customer-1": "four seven one two", "customer-2": "nine oh five three eight",
    "customer": "four seven one two nine oh five three eight", "agent-1": "zero six two",
    "agent-2": "one eight four nine", "agent": "zero six two one eight four nine",
    "long-1": " ".join(["one two three four five six seven eight nine zero"] * 2),
}  # fmt: skip
CAUSES = {
    "batch": (
        "of several in one call that are not equally long the package makes the frames together: the last one of a"
        " shorter recording sees zeros behind it, not the reflected end, and there may be one more; the aligner makes"
        " them of each by itself",
        "with the frames made of each by itself the package equals the aligner",
    ),
    "tie": (
        "two classes of a time are as likely, and the order of float32 operations decides",
        f"on both sides one is within {TIE:.2%} of the other, and the package's times follow from its classes by the"
        " aligner's rules",
    ),
}


@dataclass(frozen=True)
class Line:
    """A recording, and the words that were said in it."""

    sound: Sound
    text: str
    language: str = "en"

    @property
    def spoken(self) -> AlignRequest:
        return AlignRequest(self.sound.format, self.sound.audio, self.text, self.language)


@dataclass(frozen=True)
class Question:
    """Lines that are asked about in one call."""

    model: str
    kind: str
    lines: tuple[Line, ...]

    @property
    def group(self) -> str:
        return f"{self.model} {self.kind}"

    @property
    def name(self) -> str:
        return f"{self.group}: {', '.join(f'{line.sound.name} {line.language}' for line in self.lines)}"

    def switches(self) -> list[str]:
        """Causes of a difference that the question shows."""
        sounds = {line.sound for line in self.lines}
        each = [deviations.switches(Case(Talk(self.model, sound), len(sound.audio))) for sound in sounds]
        found = [name for name in deviations.SWITCHES if any(name in several for several in each)]
        return [*found, *(["batch"] if len({len(sound.samples) for sound in sounds}) > 1 else [])]

    def ways(self) -> dict[str, list[str]]:
        """How the package is asked: as published; without what may make it differ; and without that, but for the
        windows of the encoder, which the aligner can do without as well."""
        switches = self.switches()
        ways: dict[str, list[str]] = {"published": []}
        if switches:
            ways["without"] = switches
        if "window" in switches:
            ways["whole"] = [switch for switch in switches if switch != "window"]
        return ways

    def told(self) -> dict[str, Any]:
        lines = [
            {"sound": line.sound.name, "text": line.text, "language": languages.name(line.language)}
            for line in self.lines
        ]
        return {"name": self.name, "model": self.model, "lines": lines, "ways": self.ways()}


def digits() -> list[Line]:
    return [Line(sound, SPOKEN[sound.name]) for sound in speech()]


def clips() -> list[Line]:
    known = json.loads((ALIGNED / "words.json").read_text(encoding="utf-8"))
    return [
        Line(Sound(f"clip-{name}", (ALIGNED / f"{name}.ulaw").read_bytes()), " ".join(each["word"] for each in words))
        for name, words in known.items()
    ]


def babble(seconds: float, language: str) -> Line:
    return Line(noisy(seconds), " ".join([TEXTS[language]] * (1 + int(seconds / 4))), language)


def questions() -> Iterator[Question]:
    spoken, told, codes = clips(), digits(), list(TEXTS)
    odd = [
        Line(wide(told[0].sound), told[0].text), Line(clipped(1.5), TEXTS["en"]),
        Line(Sound("silence", b"\xff" * 8000), TEXTS["fr"], "fr"),
    ]  # fmt: skip
    for model in ("tiny", "random"):
        for kind, lines in (("clips", spoken), ("digits", told), ("odd sounds", odd)):
            for line in lines:
                yield Question(model, kind, (line,))
            yield Question(model, f"{kind} together", tuple(lines))
        yield Question(model, "odd text", (Line(noisy(2.345), WICKED),))
        yield Question(model, "odd text", (Line(noisy(3.0), WORDLESS),))
        yield Question(
            model, "odd text together", (spoken[0], Line(spoken[1].sound, WORDLESS), Line(noisy(3.0), WICKED))
        )
        for code in codes:
            for seconds in NOISE_S if model == "random" else NOISE_S[::4]:
                yield Question(model, f"noise {code}", (babble(seconds, code),))
        yield Question(model, "noise, as long", tuple(Line(noisy(3.0), TEXTS[code], code) for code in codes))
        for step in (1, 3, 5):
            lengths = (NOISE_S * step)[::step][: len(NOISE_S)]
            for low in range(0, len(lengths), 4):
                some = enumerate(lengths[low : low + 4])
                yield Question(model, f"noise by {step}", tuple(babble(each, codes[at % 4]) for at, each in some))


class Ours:
    """The aligners' answers: as they are, and with all of an utterance in one window of the encoder."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        asked = list(questions())
        self.default = self._ask({name: Aligner(folder) for name, folder in folders.items()}, asked)
        wholes = {name: Aligner(folder, whole=True) for name, folder in folders.items()}
        self.whole = self._ask(wholes, [each for each in asked if "whole" in each.ways()])

    @staticmethod
    def _ask(aligners: Mapping[str, Aligner], asked: Sequence[Question]) -> dict[str, list[Timed]]:
        return {each.name: aligners[each.model].align([line.spoken for line in each.lines]) for each in asked}


@dataclass(slots=True)
class Row:
    """A question and what came of it."""

    question: Question
    words: int
    chances: float = 0.0
    """By how much a probability differs."""
    reasons: list[str] = field(default_factory=list)
    """Of what differs and is explained."""
    wrong: list[str] = field(default_factory=list)
    """What differs and is not."""

    @property
    def result(self) -> str:
        return "DIFFERENT" if self.wrong else ", ".join(dict.fromkeys(self.reasons)) or "equal"


def compare(
    question: Question, answer: Mapping[str, Any], arrays: Mapping[str, NDArray[np.float32]], ours: Ours
) -> Row:
    said = ours.default[question.name]
    row = Row(question, sum(len(each.tokens) for each in said))
    theirs = {
        kind: [
            _timed(words, arrays[f"{question.name}/{kind}/{number}"]) for number, words in enumerate(answer[kind])
        ]
        for kind in question.ways()
    }  # fmt: skip
    without = theirs.get("without", theirs["published"])
    check(row, said, without)
    if "whole" in theirs:
        check(row, ours.whole[question.name], theirs["whole"])
    if [_plain(each) for each in without] != [_plain(each) for each in theirs["published"]]:
        row.reasons += question.switches()
    return row


def _timed(words: Sequence[tuple[str, float, float]], chances: NDArray[np.float32]) -> Timed:
    """Of the package's answer, which is in seconds."""
    times = [[round(1000 * begin), round(1000 * end)] for _, begin, end in words]
    return Timed([word for word, _, _ in words], times, chances[: 2 * len(words)])


def _plain(timed: Timed) -> tuple[object, ...]:
    return timed.tokens, timed.classes, timed.times


def check(row: Row, ours: Sequence[Timed], theirs: Sequence[Timed]) -> None:
    """Note what differs and should not."""
    for line, mine, other in zip(row.question.lines, ours, theirs, strict=True):
        if mine.tokens != other.tokens:
            row.wrong.append(f"words of {line.sound.name} {where(mine.tokens, other.tokens)}")
            continue
        if mine.tokens:
            row.chances = max(row.chances, by := distance(mine.chances, other.chances))
            if by > CHANCE_TOLERANCE:
                row.wrong.append(f"probabilities of {line.sound.name} by {by:.2g}")
                continue
        times = mine.times
        if mine.classes != other.classes and tied(mine, other):
            repaired = monotone([float(CLASS_MS * each) for each in other.classes])
            times = [repaired[at : at + 2] for at in range(0, len(repaired), 2)]
            row.reasons.append("tie")
        elif mine.classes != other.classes:
            row.wrong.append(f"classes of {line.sound.name} {where(mine.classes, other.classes)}")
        if times != other.times:
            row.wrong.append(f"times of {line.sound.name} {where(times, other.times)}")


def tied(ours: Timed, theirs: Timed) -> bool:
    """Whether the classes in which they differ are as likely as each other, on both sides."""
    places = np.arange(len(ours.chances))
    mine, other = ours.classes, theirs.classes
    return all(
        bool((np.abs(np.log(each.chances[places, mine] / each.chances[places, other])) < TIE).all())
        for each in (ours, theirs)
    )
