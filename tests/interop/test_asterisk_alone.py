"""What Asterisk's dialplan makes of a worker that is not there, or dies: the table of docs/how-to/pbx/asterisk.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.asterisk.pbx import Asterisk
from lab.patience import until
from lab.worker.peers import alive, launch


@pytest.mark.parametrize(
    ("number", "outcome", "on"),
    [("100", "0", False), ("101", "CHANUNAVAIL 38", True), ("110", "CHANUNAVAIL 3", True)],
)
def test_a_worker_that_is_not_there(asterisk: Asterisk, number: str, outcome: str, on: bool) -> None:
    asterisk.call(number, "stay", "transcribe")
    assert until(asterisk.dialled) == outcome
    assert asterisk.went_on(number) == on


@pytest.mark.parametrize(
    ("number", "outcome", "on"),
    [
        ("100", "16", True),
        ("101", "ANSWER 16", False),
        ("103", "ANSWER 16", True),
        ("110", "ANSWER 16", False),
        ("116", "ANSWER 16", True),
    ],
)
def test_a_worker_that_dies(asterisk: Asterisk, tmp_path: Path, number: str, outcome: str, on: bool) -> None:
    ports = {"AUDIOSOCKET__PORT": str(asterisk.audiosocket_port), "MEDIA__PORT": str(asterisk.media_port)}
    dying = launch(tmp_path, AUDIOSOCKET__ENABLED="true", SIP__ENABLED="false", **ports)
    try:
        until(lambda: alive(dying), 60)
        asterisk.call(number, "stay", "transcribe")
        until(dying.calls, 20, "a call")
    finally:
        dying.process.kill()
        dying.process.wait()
    assert until(asterisk.dialled) == outcome
    assert asterisk.went_on(number) == on
