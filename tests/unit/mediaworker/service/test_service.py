"""A process that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import pytest

from config import Settings
from mediaworker.service import serve as service
from mediaworker.service.reload import ReloadCounters


class Slow:
    """A service one of whose parts takes its time to end."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.reloads, self.parts = settings, ReloadCounters(last_s=0.0), ()

    @property
    def hosts(self) -> Mapping[str, str]:
        return {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield
        await asyncio.create_task(asyncio.sleep(0.3), name="the slow part")

    def on_started(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def drain(self) -> None: ...

    def check(self, settings: Settings) -> None: ...

    def use(self, settings: Settings, changed: Collection[str]) -> None: ...


@pytest.mark.parametrize("late_s", [0.05, 30.0])
def test_what_does_not_end_is_named(
    late_s: float, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "LATE_S", late_s)
    settings = Settings()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert service.serve(settings, lambda: settings, Slow) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    said = "".join(capfd.readouterr())
    assert ("some parts do not end" in said and "the slow part" in said) == (late_s < 1)
