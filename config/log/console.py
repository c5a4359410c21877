"""The log format for terminals: structlog's lines, escaped so that text from peers cannot imitate a log line."""

from __future__ import annotations

import sys
from typing import Any

import structlog
from structlog.typing import EventDict

from config.log.text import coloured, printable

BLOCKS = ("message", "stack", "exception", "exc_info")
"""Fields with several lines of text, which are printed below the line. structlog would format the last three itself."""


class _Escaped:
    """A text that structlog prints escaped, because it prints objects other than strings by their `repr`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


class ConsoleRenderer:
    """The last structlog processor. It escapes names, values and each line of a block."""

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
