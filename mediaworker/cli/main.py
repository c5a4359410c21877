"""The `mediaworker` command: it finds the subcommand, imports only that one's module, and runs it."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from config import ConfigError
from config.sections.key_names import similar
from mediaworker.cli.terminal.output import WRONG, CommandError, UsageError, close_output, print_error
from mediaworker.cli.terminal.parser import Parser

COMMANDS = {
    "serve": "run the worker",
    "check": "look for what would keep the worker from working, before it is started",
    "config": "print the effective configuration, secrets masked",
    "health": "exit 0 when the worker on this machine answers",
    "watch": "follow live events in the terminal",
    "calls": "list the calls of a worker, the newest first",
    "transcript": "print what was said in a call",
    "erase": "erase everything that an ended call has left",
    "jobs": "list the file jobs of a worker, show or cancel one, or print its result",
    "transcribe": "files to text and subtitles",
    "call": "a test phone: place a SIP call and play a file into it",
    "stream": "a test Twilio: open a Media Stream and play a file into it",
    "replay": "run a capture or a recorded stream through the worker's path, with faults",
    "models": "download model weights, and check them",
    "engine": "run an engine server that workers on this and other machines share",
    "bench": "measure this machine: a table and the same figures as JSON",
    "completion": "print a script with which a shell completes this command",
    "help": "explain a command",
}
FOLDERS = {"check": "checks", "calls": "worker", "transcript": "worker", "erase": "worker", "jobs": "worker"}
"""The folders of commands whose modules are not beside this file."""


class _ShowVersion(argparse.Action):
    """Looks the version up only for `--version`: that takes longer than the rest of a command's start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"mediaworker {version('mediaworker')}")
        parser.exit()


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command, return its exit code: 0 done, 1 failed, 2 wrong arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = _run(_without_help(arguments))
        sys.stdout.flush()
        return code
    except CommandError as error:
        print_error(str(error))
        return error.code
    except ConfigError as error:
        print_error(str(error))
        return WRONG
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has closed it: `mediaworker config | head`
        close_output()
        return 0


def _run(arguments: list[str]) -> int:
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        near = similar(wanted, COMMANDS)
        what = f"did you mean `mediaworker {near[0]}`?" if near else "`mediaworker help` lists them"
        raise UsageError(f"there is no command {wanted!r}; {what}")
    if not arguments:
        raise UsageError("which command? `mediaworker help` lists them")
    parser, commands = create_parser(wanted)
    args, rest = parser.parse_known_args(arguments)
    command: Parser = commands.choices[args.command]
    if rest:
        command.unknown(rest, hasattr(args, "config"))
    try:
        return int(module(args.command).run(args))
    except argparse.ArgumentError as error:  # arguments that do not go together
        command.error(str(error))


def create_parser(wanted: str | None) -> tuple[Parser, Any]:
    """The parser with the arguments of the command `wanted`, and the action that has a parser for each command."""
    parser = Parser(
        prog="mediaworker", description="Turns live phone calls into text while people are still talking.",
        epilog="`mediaworker help COMMAND` explains a command.",
    )  # fmt: skip
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == wanted and name != "help":
            command.explain(module(name).__doc__ or "")
            module(name).add_arguments(command)
    return parser, commands


def module(command: str) -> Any:
    """The module of a command."""
    folder = FOLDERS.get(command)
    return importlib.import_module(f"mediaworker.cli.{f'{folder}.' if folder else ''}{command}")


def _without_help(arguments: list[str]) -> list[str]:
    """The arguments with `help`, `help COMMAND` or `help COMMAND ACTION` replaced by `--help`."""
    return [*arguments[1:], "--help"] if arguments[:1] == ["help"] else arguments


if __name__ == "__main__":
    sys.exit(main())
