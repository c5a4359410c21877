"""`mediaworker bench engine --predict`: the engine's own scheduler over a cost model of a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import predict as module
from benchmarks.engine.costs import COSTS
from benchmarks.engine.limit import PUBLISHED
from benchmarks.engine.predict import Options, predict
from benchmarks.engine.run import MODEL
from mediaworker.cli.main import main

MEASURED_MS = {
    (1, 1): 1.7, (32, 1): 1.76, (128, 1): 2.6, (1, 40): 1.6, (8, 40): 1.98, (32, 40): 4.0, (64, 40): 7.2,
    (128, 40): 11.7,
}  # fmt: skip
"""(rows, new positions of each) → a forward of 0.6B on an H200, from docs/measurements/h200.md."""


@pytest.mark.parametrize("shape", MEASURED_MS)
def test_a_forward_takes_what_was_measured(shape: tuple[int, int]) -> None:
    rows, length = shape
    found_ms = 1000 * COSTS["h200"].text(PUBLISHED["0.6B"], [(200, length)] * rows, rows, rows * length)
    assert found_ms == pytest.approx(MEASURED_MS[shape], rel=0.25)


def test_costs_grow_with_what_is_done() -> None:
    costs, model = COSTS["h200"], PUBLISHED["0.6B"]
    short, long = (costs.text(model, [(seen, 40)] * 64, 64, 2560) for seen in (100, 800))
    assert short < long < 2 * short
    assert costs.encoder(model, 0, 0) == 0 < costs.encoder(model, 1, 13) < costs.encoder(model, 64, 832)
    assert costs.text(PUBLISHED["1.7B"], [(200, 40)] * 64, 64, 2560) > 2 * costs.text(model, [(200, 40)] * 64, 64, 2560)


def run(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    costs = {"h200": replace(COSTS["h200"], **changes)}
    monkeypatch.setattr(module, "COSTS", costs)
    return predict(Options("h200", "0.6B", files=2, seconds=1.0, utterance_s=1.0, start=8, bound=8), MODEL)


def test_host_and_device_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes the longer of the two, and not both together."""
    host = run(monkeypatch, host_step_s=0.010, host_row_s=0.0)["runs"][0]
    both = run(monkeypatch, host_step_s=0.010, host_row_s=0.0, sound_s=0.006)["runs"][0]
    device = run(monkeypatch, host_step_s=0.001, host_row_s=0.0, sound_s=0.030)["runs"][0]
    # Ten milliseconds of the host and eight of the device; some steps only collect, which takes the host nothing.
    assert 5 < host["step_ms"] <= both["step_ms"] < 12
    assert device["step_ms"] > 2 * host["step_ms"] and device["device_share"] > device["host_share"]
    assert host["host_share"] > 2 * host["device_share"]
    assert host["partials_answered"] > 0.9 and both["rtfx"] > 0


def test_the_command_writes_what_it_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--predict", "l40s", "--model", "1.7B", "--start", "4", "--bound", "4", "--files", "1"]
    assert main(["bench", "engine", *arguments, "--seconds", "1", "--utterance-s", "1", "--json", str(file)]) == 0
    assert "predicted" in capsys.readouterr().out
    figures = json.loads(file.read_text())
    assert figures["streams"] == 4 and figures["predicted"] and not figures["costs"]["measured"]
    assert figures["limit"] > 100 and figures["runs"][0]["streams"] == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--slots", "4"], "--slots does not go with --predict"),
        (["--calls", "4"], "--calls does not go with --predict"),
        (["--model", "tiny"], "--model tiny: with --predict one of 0.6B, 1.7B"),
    ],
)
def test_what_does_not_go_with_it_is_refused(wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", "--predict", "h100", *wrong]) == 2
    assert said in capsys.readouterr().err
