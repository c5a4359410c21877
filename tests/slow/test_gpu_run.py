"""`make gpu`: a rehearsal of the quick parts, what a part leaves that fails or takes too long, and the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.house import ROOT
from tools.gpu import page, runner
from tools.gpu.parts import PARTS, Context, Part
from tools.gpu.tests import items

ROW = {"name", "title", "settles", "status", "seconds", "limit_s", "error", "figures", "output"}


def test_a_rehearsal_writes_figures_and_a_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.gpu", "--rehearse", "--parts", "environment,together", "--minutes", "1"]
    done = subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert figures["rehearsal"] is True and [part["name"] for part in figures["parts"]] == ["environment", "together"]
    assert all(set(part) == ROW and part["status"] == "passed" for part in figures["parts"])
    rows = figures["parts"][1]["figures"]["rows"]
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16"} and {row["calls"] for row in rows} == {1, 4}
    assert all(row["equal"] == row["answers"] > 0 and row["differ"] == [] for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.log", "gpu.md"]
    written = (tmp_path / "gpu.md").read_text()
    assert page.REHEARSAL in written
    headings = re.findall(r"^##? .*$", written, re.M)
    assert len(headings) == 4 and all("rehearsal" in heading for heading in headings), "each figure stands under one"


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.gpu", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "GPU=--rehearse" in done.stderr and list(tmp_path.iterdir()) == []


# -- parts that do not pass --------------------------------------------------------------------------------------------


def _part(name: str, code: str, limit_s: float = 10.0) -> Part:
    def command(context: Context, seconds: float) -> list[str]:
        return [sys.executable, "-c", code, str(context.figures(name))]

    return Part(name, name.capitalize(), f"Whether {name} is noted.", limit_s, command)


WRITES = "import sys; open(sys.argv[1], 'w').write('{\"seen\": 7}')\n"
LEAVES = (
    WRITES
    + """
import subprocess, time
child = subprocess.Popen(['sleep', '600'])
open(sys.argv[1] + '.pid', 'w').write(str(child.pid))
time.sleep(600)
"""
)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_part_that_fails_or_takes_too_long_is_noted_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEAST_S", 0.5)
    parts = [
        _part("fails", WRITES + "raise SystemExit('the GPU | said no')", 1),
        _part("hangs", LEAVES, 1),
        _part("goes", WRITES, 1),
    ]
    kept: list[list[str]] = []
    rows = runner.run_all(
        parts, Context(tmp_path, True), seconds=4,
        keep=lambda rows: kept.append([row["status"] for row in rows]),
    )  # fmt: skip
    assert kept == [["failed"], ["failed", "out of time"], ["failed", "out of time", "passed"]], "written after each"
    assert all(set(row) == ROW and row["figures"] == {"seen": 7} for row in rows), "what was measured is kept"
    assert rows[0]["output"] == ["the GPU | said no"] and rows[0]["error"] == "exit status 1"
    assert rows[1]["seconds"] < 4 and not _alive(int((tmp_path / "hangs.json.pid").read_text()))
    whole = {"rehearsal": False, "begun": "2026-01-01T00:00:00+00:00", "seconds": 4.0, "parts": rows}
    shown = page.page(whole | {"summary": page.summary(rows, rehearsal=False)})
    assert "**Failed** after" in shown and "the GPU | said no" in shown and "**Out of time** after" in shown
    assert "rehearsal" not in shown and shown.count("| seen | 7 |") == 3


def test_a_part_for_which_no_time_is_left_is_not_begun(tmp_path: Path) -> None:
    rows = runner.run_all([_part("late", WRITES)], Context(tmp_path, True), seconds=1, keep=lambda rows: None)
    assert [row["status"] for row in rows] == ["not begun"] and not (tmp_path / "late.json").exists()


def test_what_a_part_leaves_of_its_time_goes_to_the_next(tmp_path: Path) -> None:
    parts = [_part("first", WRITES, 30), _part("second", WRITES, 30)]
    rows = runner.run_all(parts, Context(tmp_path, True), seconds=60, keep=lambda rows: None)
    assert rows[0]["limit_s"] == pytest.approx(30, abs=0.5) and rows[1]["limit_s"] > 50


def test_all_parts_fit_into_ten_minutes() -> None:
    assert sum(part.limit_s for part in PARTS) <= 590
    assert len({part.name for part in PARTS}) == len(PARTS)


# -- what is read and written ------------------------------------------------------------------------------------------


def test_tests_are_itemised_from_the_report_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\n"
        "@pytest.mark.skip('no <GPU>')\ndef test_c(): pass\n@pytest.fixture\ndef broken(): raise OSError('gone')\n"
        "def test_d(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "no:cacheprovider", "test_it.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    found = items(report)
    assert [(each["name"], each["outcome"]) for each in found] == [
        ("test_a", "passed"), ("test_b", "failed"), ("test_c", "skipped"), ("test_d", "error"),
    ]  # fmt: skip
    assert [each["message"] for each in found] == [
        "", "assert 1 == 2", "no <GPU>", "failed on setup with \"OSError: gone\"",
    ]  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(figures=st.dictionaries(st.sampled_from(["rows", "items", "file", "runs", "found", "packages"]), JSON))
def test_no_figures_keep_the_page_from_being_written(figures: dict[str, Any]) -> None:
    """A part that was ended may have written anything of its figures."""
    rows = [
        {"name": part.name, "title": part.title, "settles": part.settles, "status": "out of time", "seconds": 1.0,
         "limit_s": 2.0, "error": "ended", "figures": figures, "output": ["```", "x"]}
        for part in PARTS
    ]  # fmt: skip
    whole = {"rehearsal": True, "begun": "", "seconds": 1.0, "summary": page.summary(rows, rehearsal=True)}
    shown = page.page(whole | {"parts": rows})
    assert shown.count("\n## ") >= len(PARTS) and shown.count("```") == 2 * len(PARTS)


# -- a machine without a network ---------------------------------------------------------------------------------------


def test_nothing_else_is_needed_than_the_list_and_what_torch_and_transformers_bring() -> None:
    code = """
import sys
import torch
from transformers import AutoTokenizer, Qwen3ASRForConditionalGeneration
known = set(sys.modules)
import benchmarks.command, benchmarks.engine.random_weights, mediaworker.cli.bench
import asr.engines.qwen.build, tools.gpu.together, tools.gpu.steps
print(*{name.split(".")[0] for name in set(sys.modules) - known} - set(sys.stdlib_module_names))"""
    new = set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split())
    lines = (ROOT / "requirements" / "gpu.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    ours = {"config", "audio", "asr", "mediaworker", "benchmarks", "tools", "transformers", "greenlet", "torch"}
    assert new - ours <= {name.replace("-", "_") for name in pins}
    locked = (ROOT / "requirements" / "dev.lock").read_text()
    assert [pin for pin in pins.items() if "{}=={} ".format(*pin) not in locked] == [], "as the tests have them"


def test_without_wheels_the_command_says_where_they_come_from(tmp_path: Path) -> None:
    lacking = tmp_path / "python"
    lacking.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')  # without any installed package
    lacking.chmod(0o755)
    checkout = tmp_path / "checkout"
    (checkout / "tools").mkdir(parents=True)
    (checkout / "tools" / "gpu.sh").write_text((ROOT / "tools" / "gpu.sh").read_text())
    environment = os.environ | {"PYTHON": str(lacking), "WHEELS": "none"}
    start_s = time.monotonic()
    done = subprocess.run(
        ["bash", "tools/gpu.sh"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "tools/gpu_wheels.sh" in done.stderr and time.monotonic() - start_s < 60
