"""The findings of `mediaworker check`: their severity, subject and text."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial


class Level(enum.IntEnum):
    """The severity of a finding."""

    GOOD = 0
    WARNING = 1
    """The worker starts, but a part of it will not work or is not safe."""
    FAILED = 2
    """The worker does not start, or accepts no calls."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the command's output. The text is a sentence without its full stop."""

    level: Level
    subject: str
    text: str


good = partial(Finding, Level.GOOD)
warning = partial(Finding, Level.WARNING)
failed = partial(Finding, Level.FAILED)
