"""What a check has found."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial


class Level(enum.IntEnum):
    """How bad it is."""

    GOOD = 0
    WARNING = 1
    """The worker starts, and something of it will not work or is not safe."""
    FAILED = 2
    """The worker does not start, or takes no calls."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for the person who asked. The text is a sentence without its full stop."""

    level: Level
    subject: str
    text: str


good = partial(Finding, Level.GOOD)
warning = partial(Finding, Level.WARNING)
failed = partial(Finding, Level.FAILED)
