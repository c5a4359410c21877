"""`python -m tools.gpu` (`docs/measurements/gpu.md`) exits 0 if every part passed, 1 if one failed, 2 without a GPU."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.gpu import page, runner
from tools.gpu.parts import PARTS, ROOT, Context

MINUTES = 9.2
NEEDS = ("torch", "transformers", "numpy", "msgspec", "structlog", "pytest", "hypothesis")
GPU = Path("/dev/nvidiactl")
LOGGED = 200_000
"""Characters of a part's output that `gpu.log` has."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description="All that only a GPU can show, as JSON and a page.")
    parser.add_argument("--rehearse", action="store_true", help="the same code on the CPU with a tiny model")
    parser.add_argument("--out", type=Path, help="folder of gpu.json and gpu.md (default: $OUT or build/gpu)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all parts together (default {MINUTES:g})")
    names = [part.name for part in PARTS]
    parser.add_argument("--parts", default=",".join(names), metavar="NAME[,NAME…]", help=f"of {', '.join(names)}")
    args = parser.parse_args()
    wanted = args.parts.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--parts: no part is called {unknown[0]!r}; there are {', '.join(names)}")
    if lacking := [name for name in NEEDS if find_spec(name) is None]:
        return _refuse(f"{', '.join(lacking)} cannot be imported; docs/measurements/gpu.md says where to get it")
    if not args.rehearse and not GPU.exists() and shutil.which("nvidia-smi") is None:
        return _refuse("there is no NVIDIA GPU here; `make gpu GPU=--rehearse` runs the same code on the CPU")
    folder = (args.out or Path(os.environ.get("OUT") or ROOT / "build" / "gpu")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    start_s = time.monotonic()

    def keep(rows: list[dict[str, Any]]) -> None:
        last = rows[-1]
        print(f"{last['title']}: {last['status']} after {last['seconds']:.0f} s", flush=True)
        seconds = time.monotonic() - start_s
        _write(folder, {"rehearsal": args.rehearse, "commit": commit, "begun": begun, "seconds": seconds}, rows)
        _log(folder, rows, context)

    parts = [part for part in PARTS if part.name in wanted]
    with tempfile.TemporaryDirectory(prefix="mediaworker-gpu-") as work:
        context = Context(Path(work), args.rehearse)
        rows = runner.run_all(parts, context, seconds=60 * args.minutes, keep=keep)
    print(*(folder / name for name in ("gpu.json", "gpu.md", "gpu.log")), sep="\n")
    return 0 if all(row["status"] == "passed" for row in rows) else 1


def _commit() -> str | None:
    """Of the checkout, or as tools/gpu_wheels.sh has noted it for a machine without git."""
    noted = Path(os.environ.get("WHEELS") or ROOT / "build" / "wheels") / "COMMIT"
    described = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return noted.read_text(encoding="utf-8").strip() if noted.is_file() else None


def _refuse(reason: str) -> int:
    print(f"gpu: {reason}", file=sys.stderr)
    return 2


def _log(folder: Path, rows: list[dict[str, Any]], context: Context) -> None:
    """The output of all parts so far, the end of each."""
    with (folder / "gpu.log").open("w", encoding="utf-8") as log:
        for row in rows:
            path = context.folder / f"{row['name']}.log"
            text = path.read_text(encoding="utf-8", errors="replace")[-LOGGED:] if path.exists() else ""
            log.write(f"==== {row['name']}: {row['status']}\n{text}\n")


def _write(folder: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """After each part: a run that is ended leaves what it had."""
    whole = head | {"seconds": round(head["seconds"], 1)}
    whole |= {"summary": page.summary(rows, rehearsal=head["rehearsal"]), "parts": rows}
    (folder / "gpu.json").write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(page.page(whole), encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
