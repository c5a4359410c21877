"""`make cluster`, in short: the parts of a whole cluster are struck in turn, and no final is lost or told twice."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from lab.worker.peers import ROOT

TIMEOUT_S = 480


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_nothing_is_lost_whatever_part_is_struck() -> None:
    command = [sys.executable, "-m", "tools.cluster", "--quick", "--callers", "24", "--seed", "21"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-3000:]
    counts = {
        name: int(count)
        for name, count in re.findall(r"^(lost|doubled|wrong|different|faults) +(\d+)", run.stdout, re.M)
    }
    assert counts == dict.fromkeys(("lost", "doubled", "wrong", "different", "faults"), 0)
    found = re.search(r"calls (\d+), finals (\d+), of which (\d+) were compared", run.stdout)
    assert found, run.stdout[-3000:]
    calls, finals, compared = map(int, found.groups())
    assert calls > 50 and compared > finals / 2, "there was something to lose"
    assert " worker_lost after " in run.stdout, "a worker's calls were ended by another one"
