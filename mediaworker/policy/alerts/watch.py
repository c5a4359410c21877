"""Reloads the rules' file when it changes, and checks the timed rules of live calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import structlog

from config import ConfigError
from config.metrics.registry import MetricsRegistry
from config.process.tasks import end_tasks
from mediaworker.policy.alerts.rules import NONE, Rules, RulesError, parse

PERIOD_S = 0.5
MAX_BYTES = 1_000_000
log = structlog.get_logger()


class Watched(Protocol):
    """The part of `mediaworker.calls.call.Call` that the watch uses."""

    @property
    def ending(self) -> bool: ...

    def check_alerts(self) -> None: ...


class AlertWatch:
    """Reloads the rules and checks live calls every `PERIOD_S`. Without a `path` there are no rules.

    Raises ConfigError if the file cannot be used at the start.
    """

    def __init__(self, path: str, calls: Callable[[], Iterable[Watched]]) -> None:
        self.rules = NONE
        self.ok = True
        """True while the rules are those of the current file."""
        self._path, self._calls = Path(path) if path else None, calls
        self._stamp: tuple[int, ...] | None = None
        self._task: asyncio.Task[None] | None = None
        if self._path is not None:
            self._stamp = _stamp(self._path)
            try:
                self.rules = read(self._path)
            except (OSError, RulesError) as error:
                raise ConfigError("alerts.file", path, _reason(error)) from None

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.gauge("alert_rules", "Shows how many rules for alerts are in force.", lambda: len(self.rules))
        metrics.gauge(
            "alert_rules_ok",
            "Is 0 while the file of alert rules cannot be used and older rules are in force.",
            lambda: self.ok,
        )

    def start(self) -> None:
        if self._path is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self._path), name="alerts")

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self, path: Path) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                self._check_file(path)
                if self.rules.timed:
                    for call in self._calls():
                        if not call.ending:
                            call.check_alerts()
            except Exception:  # an error must not end the watch of all calls
                log.exception("alerts")

    def _check_file(self, path: Path) -> None:
        """Read the file if it has changed. The old rules stay in force if it is missing or invalid."""
        if (stamp := _stamp(path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self.rules = read(path)
        except (OSError, RulesError) as error:
            self.ok = False
            log.error("alert rules not read: the old ones stay in force", file=str(path), reason=_reason(error))
        else:
            self.ok = True
            log.info("alert rules read", file=str(path), rules=len(self.rules))


def read(path: Path) -> Rules:
    """Read the rules of a file. Raises OSError, RulesError."""
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise RulesError(f"larger than {MAX_BYTES} bytes")
    try:
        return parse(text.decode())
    except UnicodeDecodeError as error:
        raise RulesError(f"not UTF-8: {error}") from None


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
