"""One part after the other, each in a process of its own that is ended when its time is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.gpu.parts import ROOT, Context, Part

LINES = 25
"""Of a part's output, which are kept when it fails."""
ENDING_S = 3.0
"""Between asking a part to end and ending it."""
LEAST_S = 8.0
"""A part that has less time than that is not begun: importing torch takes as long."""


def end(process: subprocess.Popen[bytes]) -> None:
    """The process and those that it has started."""
    for which, wait_s in ((signal.SIGTERM, ENDING_S), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(process.pid, which)
        except ProcessLookupError:
            return
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue


def tail(path: Path) -> list[str]:
    """The last lines of a part's output, without those that only say how far it is."""
    lines = path.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    return [line[:400] for line in lines if line.strip()][-LINES:]


def figures(path: Path) -> dict[str, Any] | None:
    """What a part has written so far; None: nothing, or it was ended while it wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def run(part: Part, context: Context, seconds: float) -> dict[str, Any]:
    """The part's row in the JSON."""
    context.figures(part.name).unlink(missing_ok=True)
    log, start_s, returned = context.folder / f"{part.name}.log", time.monotonic(), None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *_path()]), "OMP_NUM_THREADS": "1"}
    # No network is there, and nothing may wait for one.
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command(context, seconds), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            returned = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(process)  # also what a part that is over has left behind
    status = "out of time" if returned is None else "passed" if returned == 0 else "failed"
    row = _row(part, status, figures(context.figures(part.name)))
    row |= {"seconds": round(time.monotonic() - start_s, 1), "limit_s": round(seconds, 1)}
    if status == "failed":
        row["error"] = f"exit status {returned}"
    elif status == "out of time":
        row["error"] = f"ended after {seconds:.0f} s"
    return row | ({"output": tail(log)} if status != "passed" else {})


def _path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def _row(part: Part, status: str, found: dict[str, Any] | None) -> dict[str, Any]:
    head = {"name": part.name, "title": part.title, "settles": part.settles, "status": status}
    return head | {"seconds": 0.0, "limit_s": part.limit_s, "error": None, "figures": found, "output": []}


def run_all(
    parts: Sequence[Part], context: Context, *, seconds: float, keep: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Rows of all parts. What a part leaves of its time goes to the next one; `keep` gets the rows so far."""
    until_s, rows = time.monotonic() + seconds, list[dict[str, Any]]()
    share = min(1.0, seconds / sum(part.limit_s for part in parts))
    for number, part in enumerate(parts):
        later_s = share * sum(each.limit_s for each in parts[number + 1 :])
        left_s = until_s - time.monotonic() - later_s
        if left_s < LEAST_S:
            rows.append(_row(part, "not begun", None) | {"error": "no time was left for it"})
        else:
            rows.append(run(part, context, left_s))
        keep(rows)
    return rows
