"""What every part is started with, and how it leaves its figures."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Options:
    rehearse: bool
    until_s: float
    """Of `time.monotonic()`: a part that has more to do leaves it out."""
    path: Path
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return "cpu" if self.rehearse else "cuda"

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until_s

    def keep(self) -> None:
        """Write what is there: a part that is ended for its time has not measured for nothing."""
        self.path.write_text(json.dumps(self.figures, indent=2) + "\n", encoding="utf-8")


def process_peak_mb() -> float:
    """The most memory of the host that this process has had. Not `ru_maxrss`, which a process inherits."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


RESERVE = 0.8
"""Of a part's time, after which it begins nothing new."""


def options() -> Options:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--seconds", type=float, default=60.0, help="the part is ended after so many")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with a tiny model")
    args = parser.parse_args()
    return Options(args.rehearse, time.monotonic() + RESERVE * args.seconds, args.json)
