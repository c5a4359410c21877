"""The cases from public reports, as `make field` runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lab.house import ROOT
from lab.patience import seconds


def test_every_case_ends_as_it_has_to(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.json"
    command = [sys.executable, "-m", "tools.field", "--json", str(outcomes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds(600))
    assert outcomes.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    found = json.loads(outcomes.read_text())
    assert [each for each in found if each["wrong"]] == [] and done.returncode == 0
    areas = [each["area"] for each in found]
    assert areas.count("files") > 150 and areas.count("calls") > 20 and areas.count("clients") > 10
