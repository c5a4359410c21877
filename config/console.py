"""The log for a person at a terminal: structlog's lines, in which no foreign text can pass for a line of ours."""

from __future__ import annotations

import sys
from typing import Any

import structlog
from structlog.typing import EventDict

from config.log_text import coloured, printable

BLOCKS = ("message", "stack", "exception", "exc_info")
"""Texts of several lines: each is set below its line. structlog expects the last three in forms of its own."""


class _Escaped:
    """structlog prints what is not a string by its `repr`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


class ConsoleRenderer:
    """A structlog processor: `processors` end with it. Escapes names, values and each line of a block."""

    def __init__(self) -> None:
        self._line = structlog.dev.ConsoleRenderer(colors=coloured(sys.stderr))

    def __call__(self, logger: Any, method: str, event: EventDict) -> str:
        blocks = [str(value) for name in BLOCKS if (value := event.pop(name, None)) is not None]
        shown = {printable(str(name)): _escaped(name, value) for name, value in event.items()}
        line = str(self._line(logger, method, shown))
        rows = (printable(row) for block in blocks for row in block.splitlines())
        return "\n    | ".join([line, *rows])


def _escaped(name: str, value: Any) -> Any:
    if not isinstance(value, str) or value.isprintable():
        return value
    return printable(value) if name == "event" else _Escaped(value)
