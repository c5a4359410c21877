"""`mediaworker bench media` and `sip`: what was sent arrives, and the figures say what it cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.worker.peers import command


def measured(folder: Path, *arguments: str) -> dict[str, Any]:
    file = folder / "figures.json"
    done = command("bench", *arguments, "--seconds", "2", "--no-baseline", "--json", str(file))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(file.read_text()))


@pytest.mark.parametrize("kind", [("media", "--legs", "6"), ("sip", "--calls", "3")])
def test_all_that_is_sent_is_received(tmp_path: Path, kind: tuple[str, ...]) -> None:
    figures = measured(tmp_path, *kind)
    assert figures["legs"] == 6
    assert figures["packets_received"] == figures["packets_sent"] > 6 * 50
    assert 0 < figures["cpu_s_per_leg_s"] < 1
    assert figures["events"] > 0 and figures["runs"][0]["legs"] == 6


def test_sessions_are_set_up_and_reported_on(tmp_path: Path) -> None:
    figures = measured(tmp_path, "sip", "--calls", "2")
    assert (figures["calls"], figures["refused"], figures["dropped"]) == (2, 0, 0)
    assert figures["setup_cpu_ms_per_call"] > 0
