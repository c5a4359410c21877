"""`mediaworker bench cluster`: it runs, and compares what it says that it compares."""

from __future__ import annotations

import json
from pathlib import Path

from lab.worker.peers import command


def test_events_of_another_worker(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = command("bench", "cluster", "--calls", "20", "--seconds", "8", "--json", str(file))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(file.read_text())["runs"]
    assert row["legs"] == 40 and row["events"] > 100
    for kind in ("transcript.final", "transcript.partial"):
        assert 0 < row[f"{kind}_p50_ms"] <= row[f"{kind}_p99_ms"]


def test_finals_from_a_process_and_from_servers(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = command("bench", "cluster", "--finals", "50", "--json", str(file))
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["runs"]
    assert [row["way"] for row in rows] == [
        "an inference process of this machine",
        "an engine server, TCP with a token",
        "an engine server, TLS with certificates",
    ]
    for row in rows:
        assert row["finals"] == 50 and 0 < row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["way"] in done.stdout
