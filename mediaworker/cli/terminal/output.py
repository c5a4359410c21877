"""The output of commands: text from peers is escaped, so that it cannot control the terminal or imitate our lines."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from config.log.text import printable
from mediaworker.errors import MediaworkerError

OK, FAILED, WRONG = 0, 1, 2
"""Exit codes of every command: done, failed, and wrong arguments or configuration."""


class CommandError(MediaworkerError):
    """An error that ends the command with exit code `code`; the message is one line for its user."""

    code = FAILED


class UsageError(CommandError):
    """The arguments, or a file that they name, are wrong."""

    code = WRONG


def print_error(text: str) -> None:
    """Print one line on standard error, with the prefix that all lines of all commands have."""
    print(f"mediaworker: {printable(text)}", file=sys.stderr)


def print_now(text: str) -> None:
    """Print a line of a running program on standard output at once.

    Raises:
        SystemExit: the reader has closed the output (`mediaworker replay --json FILE | head`). This exception passes
            through tasks and callbacks, which would log any other one as their failure.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        close_output()
        raise SystemExit(0) from None


def close_output() -> None:
    """Redirect standard output to /dev/null, because its reader has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def for_output(text: str, stream: TextIO) -> str:
    """Text for standard output: unchanged for a file or a pipe, escaped for a terminal."""
    return printable(text, keep="\n\t") if stream.isatty() else text
