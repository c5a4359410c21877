"""The `mediaworker` command. A subcommand's module is imported only when it is the one that runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

COMMANDS = {
    "serve": "run the worker",
    "engine": "run an engine server that workers on this and other machines share",
    "transcribe": "files to text and subtitles",
    "call": "a test phone: place a SIP call and play a file into it",
    "stream": "a test Twilio: open a Media Stream and play a file into it",
    "replay": "run a capture or a recorded stream through the worker's path, with faults",
    "watch": "follow live events in the terminal",
    "health": "exit 0 when the worker on this machine answers",
    "models": "download model weights",
    "config": "print the effective configuration, secrets masked",
    "bench": "measure this machine: a table and the same figures as JSON",
}


class _Version(argparse.Action):
    """Looks the version up when it is asked for: that takes longer than the rest of a command's start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"mediaworker {version('mediaworker')}")
        parser.exit()


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command, return its exit code: 0 done, 1 failed, 2 wrong arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="mediaworker", description="Turns live phone calls into text while people are still talking."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if name == wanted:
            importlib.import_module(f"mediaworker.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    args = parser.parse_args(arguments)
    module = importlib.import_module(f"mediaworker.cli.{args.command}")
    try:
        return int(module.run(args))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
