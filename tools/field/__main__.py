"""Call flows, files and clients from public reports against a real worker, as a table: `make field`.

    python -m tools.field [--only calls,files,clients] [--json FILE]

A case is one entry in `calls.py`, `files.py` or `clients.py`. The exit code is 1 when one did not end as it has to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from pathlib import Path

from lab.worker.peers import worker
from tools.field import calls, clients, files
from tools.field.outcome import Outcome

AREAS = ("calls", "files", "clients")
KEY = "field-key"
KEYS = f'[{{name = "field", key = "{KEY}", scopes = ["events", "batch", "stream", "admin"]}}]'


def run(areas: list[str], folder: Path) -> list[Outcome]:
    found: list[Outcome] = []
    if "files" in areas:
        found += files.run(folder / "files")
    if "calls" in areas:
        with worker(folder) as running:
            found += asyncio.run(calls.run(running, folder))
    if "clients" in areas:
        with worker(folder, AUTH__API_KEYS=KEYS) as running:
            found += clients.run(running, KEY, folder)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="field", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(AREAS), help="of calls, files and clients, with commas between them")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file as well")
    given = parser.parse_args()
    areas = given.only.split(",")
    if unknown := set(areas) - set(AREAS):
        parser.error(f"there is no {', '.join(sorted(unknown))}: {', '.join(AREAS)}")
    with tempfile.TemporaryDirectory() as folder:
        found = run(areas, Path(folder))
    for each in found:
        print(f"{each.area:8s} {each.name:58s} {each.reference:34s} {'ok' if each.passed else each.wrong}")
    counts = Counter((each.area, each.passed) for each in found)
    told = ", ".join(f"{counts[area, True]} of {counts[area, True] + counts[area, False]} {area}" for area in areas)
    print(f"as they have to be: {told}")
    if given.json:
        given.json.write_text(json.dumps([each.row() for each in found], indent=2) + "\n", encoding="utf-8")
    return 0 if all(each.passed for each in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
