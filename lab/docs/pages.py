"""The blocks of code on the pages for users, and how those that are commands are run as they stand.

A block that cannot be run here has a comment before it, `<!-- needs: a PBX -->`; one for which a worker has to run
already has `<!-- with: mediaworker serve -->`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.house import ROOT

FENCE = re.compile(
    r"^(?:<!-- (?P<word>needs|with): (?P<what>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    page: str
    line: int
    language: str
    text: str
    needs: str = ""
    """What this machine lacks; then the block is only read."""
    beside: str = ""
    """The command that runs already."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Of a block of the languages `sh` and `console`: what is typed, without prompts and comments."""
        text = self.text.replace("\\\n", " ")
        lines = text.splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> Iterator[Block]:
    """Of all pages."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            what = {found["word"]: found["what"]} if found["word"] else {}
            line = text.count("\n", 0, found.start("language")) + 1
            name = str(path.relative_to(ROOT))
            yield Block(name, line, found["language"], found["text"], what.get("needs", ""), what.get("with", ""))


def words(command: str) -> tuple[list[str], list[str]]:
    """The assignments before a command, and its own words; comments and what the shell does with the rest are left
    out."""
    parts = shlex.split(command.removesuffix("&"), comments=True)
    before = [part for part in parts if ASSIGNMENT.match(part) or part == "export"]
    rest = parts[next((index for index, part in enumerate(parts) if part not in before), len(parts)) :]
    return [part for part in before if part != "export"], rest
