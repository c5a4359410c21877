"""`mediaworker bench engine --host`: everything is asked and answered, and only the arithmetic is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engine.host import Options, measure
from benchmarks.engine.run import MODEL
from mediaworker.cli.main import main


def test_every_request_is_answered_and_the_device_takes_its_time() -> None:
    found = measure(Options(streams=20, batch=8, slots=12, seconds=1.0), MODEL)
    # Two partials a second of each, and the finals of those who end.
    assert 35 <= found["answers"] <= 60
    assert found["steps"] * 0.001 < 1.0 and found["host_us_per_answer"] > 0
    assert found["host_cpu_s_per_s"] == pytest.approx(found["answers"] * found["host_us_per_answer"] / 1e6, rel=0.01)


def test_the_command_prints_a_row_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "host.json"
    arguments = ["--calls", "10,20", "--batch", "8", "--slots", "8", "--seconds", "1", "--json", str(file)]
    assert main(["bench", "engine", "--host", *arguments]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[1].split() == ["streams", "batch", "slots", "answers", "steps", "µs/answer", "CPU", "s/s"]
    assert [line.split()[:3] for line in table[2:4]] == [["10", "8", "8"], ["20", "8", "8"]]
    assert json.loads(file.read_text())["host_us_per_answer"] > 0


@pytest.mark.parametrize("wrong", [["--clock", "cpu"], ["--join", "2"], ["--device", "cpu"]])
def test_options_of_other_kinds_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", "--host", *wrong]) == 2
    assert f"{wrong[0]} does not go with --host" in capsys.readouterr().err
