"""`tests/engine/test_qwen_gpu.py`, itemised. In a rehearsal `tests/engine/test_qwen_execution.py`, which says what a
CPU can say."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

from tools.gpu.options import options
from tools.gpu.parts import ROOT

GPU, CPU = "tests/engine/test_qwen_gpu.py", "tests/engine/test_qwen_execution.py"
EACH_S = 40
"""A test that waits for ever shall not keep the others from being noted."""
REHEARSED = "test_sizes or (sdpa and (test_any_mix or test_the_host_waits))"


def items(report: Path) -> list[dict[str, Any]]:
    """Of a JUnit report of pytest's: name, outcome, seconds, and the first line of what went wrong."""
    found = []
    for case in xml.parse(report).getroot().iter("testcase"):
        wrong = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if wrong is None else {"failure": "failed"}.get(wrong.tag, wrong.tag)
        lines = (wrong.get("message") or "").splitlines() if wrong is not None else []
        found.append(
            {
                "name": case.get("name", ""), "outcome": outcome, "seconds": round(float(case.get("time", 0)), 2),
                "message": lines[0][:300] if lines else "",
            }
        )  # fmt: skip
    return found


def main() -> int:
    given = options()
    file, some = (CPU, ["-k", REHEARSED]) if given.rehearse else (GPU, [])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # What newer and older libraries warn of is no failure here.
        quiet = [
            "-v",
            f"--timeout={EACH_S}",
            "-p",
            "no:cacheprovider",
            "-o",
            "filterwarnings=default",
            f"--junitxml={report}",
        ]
        done = subprocess.run([sys.executable, "-m", "pytest", file, *quiet, *some], cwd=ROOT)
        given.figures["file"] = file
        given.figures["items"] = items(report) if report.is_file() else []
    given.keep()
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
