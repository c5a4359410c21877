"""What a command prints for a person: foreign text in it cannot steer the terminal or pass for a line of ours."""

from __future__ import annotations

import sys
from typing import TextIO

from config.log_text import printable


def print_error(text: str, command: str = "mediaworker") -> None:
    """Print one line on standard error."""
    print(f"{command}: {printable(text)}", file=sys.stderr)


def for_output(text: str, stream: TextIO) -> str:
    """Text for standard output: unchanged for a file or a pipe, escaped for a terminal."""
    return printable(text, keep="\n\t") if stream.isatty() else text
