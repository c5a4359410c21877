"""What a worker logs at its start and at a clean stop: true, short, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.network.nats_servers import nats
from lab.network.ports import ports
from lab.patience import until
from lab.worker.peers import launch

LONGEST = 200
"""Characters of a value in a line of a start."""


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def test_an_engine_that_is_not_known_is_not_named_and_a_clean_stop_is_quiet(tmp_path: Path) -> None:
    (nobody,) = ports(1)
    with nats(tmp_path / "nats") as (server,):
        worker = launch(
            tmp_path, SIP__ENABLED="false", LOG__FORMAT="json", CLUSTER__NATS=f'["{server.url}"]',
            CLUSTER__REPLICAS="1", CLUSTER__TOKEN="token", ASR__SERVERS=f'["tcp://127.0.0.1:{nobody}"]',
        )  # fmt: skip
        try:
            until(lambda: {"ready", "cluster joined"} <= {line["event"] for line in lines(worker.log)})
            (ready,) = (line for line in lines(worker.log) if line["event"] == "ready")
            assert ready["engine"] == "unknown until an engine server answers"
        finally:
            assert worker.stop() == 0
        told = [line for line in lines(worker.log) if line["level"] != "info"]
        assert [line for line in told if "cluster" in line["event"] or "NATS" in str(line)] == []


def test_the_engine_is_named_with_a_short_reason(tmp_path: Path) -> None:
    settings = {"SIP__ENABLED": "false", "LOG__FORMAT": "json", "ASR__MODEL": "Qwen/Qwen3-ASR-0.6B"}
    worker = launch(tmp_path, {"HF_HOME": str(tmp_path)}, **settings)
    try:
        until(lambda: "ready" in {line["event"] for line in lines(worker.log)})
        (engine,) = (line for line in lines(worker.log) if line["event"] == "engine")
        assert engine["engine"] == "mixed" and "mediaworker models pull Qwen/Qwen3-ASR-0.6B" in engine["reason"]
        assert all(len(str(value)) <= LONGEST for line in lines(worker.log) for value in line.values())
    finally:
        assert worker.stop() == 0
