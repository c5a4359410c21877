"""`mediaworker bench events`, small: the figures are there, and those who never read are felt by nobody."""

from __future__ import annotations

import json
from pathlib import Path

from lab.worker.peers import command


def test_the_table_and_the_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    counts = ("--calls", "4", "--subscribers", "12", "--all", "3", "--stalled", "2", "--seconds", "6")
    done = command("bench", "events", *counts, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    figures = json.loads(file.read_text())
    assert [(run["design"], run["stalled"]) for run in figures["runs"]] == [
        ("ours", 0), ("ours", 2), ("usual", 0), ("usual", 2),
    ]  # fmt: skip
    for run in figures["runs"]:
        # Three follow four calls, nine one each; a call says two partials a second and more.
        assert run["deliveries"] > 6 * (3 * 4 + 9) and run["lost_subscribers"] == 0
        assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"] and run["cpu_us_per_delivery"] > 0
        assert run["rss_mb"] > 10 and run["loop_stall_p99_ms"] >= 0
    assert figures["stalled"] == 2 and figures["design"] == "ours"
    assert done.stdout.count("\n") == 6
