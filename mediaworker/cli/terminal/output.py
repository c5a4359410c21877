"""What a command prints for a person: foreign text in it cannot steer the terminal or pass for a line of ours."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from config.log_text import printable
from mediaworker.errors import MediaworkerError

OK, FAILED, WRONG = 0, 1, 2
"""Exit codes of every command: done, failed, and wrong arguments or configuration."""


class CommandError(MediaworkerError):
    """Ends a command with its `code`; the message is one line for its user."""

    code = FAILED


class UsageError(CommandError):
    """The arguments are wrong, or a file that they name."""

    code = WRONG


def print_error(text: str) -> None:
    """Print one line on standard error, with the prefix that all lines of all commands have."""
    print(f"mediaworker: {printable(text)}", file=sys.stderr)


def print_now(text: str) -> None:
    """Print a line of a running program on standard output at once.

    Raises:
        SystemExit: whoever reads has seen enough (`mediaworker replay --json FILE | head`). It passes through tasks
            and callbacks, which take any other exception for a fault of theirs.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        close_output()
        raise SystemExit(0) from None


def close_output() -> None:
    """Nobody reads standard output any more: what is still written there goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def for_output(text: str, stream: TextIO) -> str:
    """Text for standard output: unchanged for a file or a pipe, escaped for a terminal."""
    return printable(text, keep="\n\t") if stream.isatty() else text
