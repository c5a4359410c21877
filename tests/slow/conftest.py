"""Slow tests by turns: `--turns 20` begins with another file for each commit, and begins no test after 20 minutes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from lab.house import ROOT

BEGAN_S = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turns", type=float, metavar="MINUTES", help="slow tests in turn, until the minutes are used")


class Turns:
    """The files in an order that rotates with the commit, and the tests whose turn has not come."""

    def __init__(self, minutes: float) -> None:
        self._until_s = BEGAN_S + 60 * minutes
        self.ran: list[Path] = []
        self.left: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = sorted({item.path for item in items})
        order = {path: n for n, path in enumerate(rotated(files, commit()))}
        items.sort(key=lambda item: order[item.path])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() > self._until_s:
            self.left.append(item.nodeid)
            return True
        if item.path not in self.ran:
            self.ran.append(item.path)
        return None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("slow tests by turns")
        terminalreporter.write_line("begun, in this order: " + ", ".join(path.stem for path in self.ran))
        terminalreporter.write_line("not their turn: " + (", ".join(self.left) or "none, all have run"))


def pytest_configure(config: pytest.Config) -> None:
    if minutes := config.getoption("turns"):
        config.pluginmanager.register(Turns(minutes), "turns")


def commit() -> int:
    """Of the checkout, as a number; 0 where there is no git."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return int(done.stdout.strip() or "0", 16)


def rotated(files: list[Path], number: int) -> list[Path]:
    first = number % max(1, len(files))
    return files[first:] + files[:first]
