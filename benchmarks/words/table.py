"""The rows of the table, and the table for a terminal, for docs and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.words.score import Scored

HEAD = (
    "engine", "path", "condition", "words", "offline", "live", "mended", "endpointing", "path added", "language right",
    "first partial", "final", "taken back", "CPU engine", "CPU worker",
)  # fmt: skip
NAMES = {
    "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian",
    "de": "German, by speech synthesis",
}  # fmt: skip


@dataclass(frozen=True)
class Detected:
    """How often the engine told the language, where it had to detect it."""

    finals_right: int
    finals: int
    """That have words."""
    legs_right: int
    """Of which most finals are."""
    legs: int

    def __str__(self) -> str:
        return f"{_share(self.finals_right, self.finals)}, {self.legs_right} of {self.legs} legs"


@dataclass(frozen=True)
class Row:
    engine: str
    path: str
    condition: str
    language: str
    prompts: int
    words: int
    """That were said."""
    offline_errors: int
    """Whole prompts, the same samples as live."""
    cut_errors: int | None = None
    """The same samples offline, as endpointing cuts them; None without a call."""
    live_errors: int | None = None
    added_words: int | None = None
    """Words that the call has otherwise than `cut`."""
    mended: tuple[int, int] | None = None
    """Errors against what was really said, and its words: live, or offline without a call. None where no text differs
    from it."""
    detected: Detected | None = None
    """None where the language was given."""
    first_partial_ms: tuple[float, float] | None = None
    """p50 and p95, from the start of speech."""
    final_ms: tuple[float, float] | None = None
    """p50 and p95 of utterances that ended in a pause, from the endpoint: without the silence that it waits for."""
    partials: int = 0
    """That follow another one."""
    taken_back: int = 0
    """Those that lack a word which the one before had."""
    shed_partials: int = 0
    late_packets: int = 0
    """That came after the worker had given them up: this machine was too busy for its callers, or for the worker."""
    failed_finals: int = 0
    inference_ms: float | None = None
    """CPU time of the inference process per second of the prompts."""
    worker_ms: float | None = None
    """The same of all its processes."""
    scored: tuple[Scored, ...] = field(default=(), repr=False)

    def cells(self) -> tuple[str, ...]:
        return (
            self.engine,
            self.path,
            self.condition,
            f"{self.words:,}",
            _share(self.offline_errors, self.words),
            _share(self.live_errors, self.words),
            "" if self.mended is None else _share(*self.mended),
            "" if self.cut_errors is None else f"{self.cut_errors - self.offline_errors:+d}",
            "" if self.added_words is None else f"{self.added_words}{self._late()}",
            "" if self.detected is None else str(self.detected),
            _range(self.first_partial_ms),
            _range(self.final_ms),
            _share(self.taken_back, self.partials) if self.partials else "",
            "" if self.inference_ms is None else f"{self.inference_ms:.0f} ms",
            "" if self.worker_ms is None else f"{self.worker_ms:.0f} ms",
        )

    def _late(self) -> str:
        """How many of the words that the path has added are in prompts of which audio came too late."""
        late = sum(each.added_words for each in self.scored if each.late_ms > 0)
        return f" ({late} late)" if late else ""


def terminal(rows: Sequence[Row]) -> str:
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(rows: Sequence[Row]) -> str:
    """A table for each language, without the columns that are empty in it; with headings unless all is English."""
    tables = {language: _table([row for row in rows if row.language == language]) for language in NAMES}
    found = {language: text for language, text in tables.items() if text}
    if list(found) == ["en"]:
        return found["en"]
    return "\n".join(f"### {NAMES[language]}\n\n{text}" for language, text in found.items())


def _table(rows: Sequence[Row]) -> str:
    lines = [HEAD, tuple("---" if column < 3 else "---:" for column in range(len(HEAD)))]
    lines += (cells := [row.cells() for row in rows])
    filled = [column for column in range(len(HEAD)) if any(each[column] for each in cells)]
    return "".join(f"| {' | '.join(line[column] for column in filled)} |\n" for line in lines if cells)


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(row) for row in rows]


def worst(row: Row, count: int) -> str:
    """The prompts with most errors, a few lines each."""
    lines = []
    for each in sorted(row.scored, key=lambda each: -(each.live_errors or 0))[:count]:
        if each.live_errors:
            lines += [
                f"{each.name}: {each.live_errors} of {each.words} words wrong live, {each.offline_errors} offline, "
                f"{each.utterances} utterances",
                *(f"    {difference}" for difference in each.wrong),
            ]
    return "\n".join(lines)


def explained(row: Row) -> str:
    """Each prompt in which the path has added something."""
    lines = []
    for each in row.scored:
        if each.added:
            lines += [f"{each.name}: {each.why}", *(f"    {difference}" for difference in each.added)]
    return "\n".join(lines)


def _share(count: int | None, of: int) -> str:
    return "" if count is None or not of else f"{100 * count / of:.1f} %"


def _range(values: tuple[float, float] | None) -> str:
    return "" if values is None else f"{values[0]:.0f} / {values[1]:.0f} ms"
