"""The argument parser: it reports each mistake on the command line in one line that says what to write instead."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from config.sections.key_names import either, keys, similar
from config.settings import Settings
from mediaworker.cli.terminal.output import WRONG, print_error

EXIT_CODES = "Exit code: 0 done, 1 failed, 2 wrong arguments or configuration."
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_CHOICE = re.compile(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser that ends with code 2 and one line on standard error. Every command's help lists its exit codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"epilog": EXIT_CODES, **options})

    def explain(self, text: str) -> None:
        """Use the docstring of a command's module, after its first paragraph, as the help of the command."""
        for paragraph in text.split("\n\n")[1:]:
            if paragraph.startswith("Exit code:"):
                self.epilog = paragraph
            else:
                self.description = paragraph

    def add_subparsers(self, **options: Any) -> Any:
        self.actions = super().add_subparsers(**options)
        return self.actions

    def words(self) -> list[str]:
        """The words that may follow on a command line: actions, and options in full."""
        actions = getattr(self, "actions", None)
        return [*(actions.choices if actions else ()), *sorted(set(_OPTION.findall(self.format_help())))]

    def error(self, message: str) -> NoReturn:
        """Report a mistake that argparse has found, and exit; argparse calls this."""
        if found := _CHOICE.fullmatch(message):
            name, given, known = found[1], found[2], re.findall(r"'([^']*)'", found[3])
            near = similar(given, known)
            what = f"did you mean {either(near)}?" if near else f"expected {either(known)}"
            message = f"{name} {given!r}: {what}"
        command = self.prog.partition(" ")[2]
        print_error(f"{f'{command}: ' if command else ''}{message} ({self.prog} --help)")
        raise SystemExit(WRONG)

    def unknown(self, rest: Sequence[str], settings: bool) -> NoReturn:
        """Report the first argument that the command does not accept, and exit.

        `settings`: the command reads the configuration, so the argument may be a setting.
        """
        option, equals, value = rest[0].partition("=")
        if not option.startswith("-"):
            file = f"; did you mean --config {rest[0]}?" if settings and rest[0].endswith(".toml") else ""
            self.error(f"it takes no further argument, such as {rest[0]!r}{file}")
        if near := similar(option, [word for word in self.words() if word.startswith("-")]):
            self.error(f"there is no option {option}; did you mean {either(near)}?")
        if not equals and len(rest) > 1 and not rest[1].startswith("-"):
            value = rest[1]
        if settings and (found := _settings(option)):
            self.error(f"there is no option {option}, it is a setting: {_to_set(found, value or '…')}")
        self.error(f"there is no option {option}")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option `--config`, which every command has that reads the configuration."""
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")


def _settings(option: str) -> list[str]:
    """The configuration keys that the option names, as `--port`, `--http-port` and `--sip.port` do."""
    name = option.lstrip("-").replace("-", "_").replace(".", "_")
    every = list(keys(Settings))
    known = [key for key in every if key.replace(".", "_") == name]
    return known or [key for key in every if "." in key and key.rpartition(".")[2] == name][:6]


def _to_set(found: list[str], value: str) -> str:
    first, *others = found
    section, _, key = first.rpartition(".")
    where = f" under [{section}]" if section else ""
    environment = f"MEDIAWORKER_{first.upper().replace('.', '__')}"
    also = f" (or did you mean {either(others)}?)" if others else ""
    return f"write {key} = {_literal(value)}{where} in mediaworker.toml, or set {environment}={value}{also}"


def _literal(value: str) -> str:
    """The value as TOML, with text in quotes."""
    return value if re.fullmatch(r"[-+.\d]+|true|false|…|[\[{\"'].*", value) else f'"{value}"'
