"""The long versions of test_kills, test_job_kills, test_power_cuts, test_leaks and test_client in tests/, with
a table of what was seen. `make soak`.

Exits 1 when a promise is broken; the worker's folder is then kept, and named.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from lab.chaos.jobs import JobChaos  # noqa: E402
from lab.chaos.kills import Chaos  # noqa: E402
from lab.chaos.power import PowerChaos  # noqa: E402
from lab.chaos.waves import Holdings, Waves, check_stories  # noqa: E402
from lab.events.resuming import cut_and_restart  # noqa: E402
from lab.patience import until  # noqa: E402
from lab.worker.peers import worker  # noqa: E402

STEP = 1000
"""Calls between two measurements: enough that the slow kinds are through before the others."""
CUTS = 50
"""Of a subscriber's connection, between two restarts."""
MB = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills and calls by the thousand; minutes to hours.")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--job-kills", type=int, default=200, help="under a job with a file")
    parser.add_argument("--power-cuts", type=int, default=200, help="under calls and jobs")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--cuts", type=int, default=1000, help="of a subscriber's connection, with a restart every 50")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the kills; default: the time")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mediaworker-soak-"))
    try:
        if args.calls:
            (folder / "calls").mkdir()
            print(*asyncio.run(calls(folder / "calls", args.calls)), sep="\n", flush=True)
        if args.kills:
            (folder / "kills").mkdir()
            print(f"\nkills, seed {args.seed}")
            report = asyncio.run(Chaos(folder / "kills", seed=args.seed).run(args.kills, _tell))
            _tell("")
            print(*report.lines(), sep="\n", flush=True)
        if args.job_kills:
            (folder / "jobs").mkdir()
            print(f"\nkills under a job, seed {args.seed}", flush=True)
            job = JobChaos(folder / "jobs", seed=args.seed).run(args.job_kills, _tell)
            _tell("")
            print(*job.lines(), sep="\n", flush=True)
        if args.power_cuts:
            (folder / "power").mkdir()
            print(f"\npower cuts, seed {args.seed}", flush=True)
            power = asyncio.run(PowerChaos(folder / "power", seed=args.seed).run(args.power_cuts, _tell))
            _tell("")
            print(*power.lines(), sep="\n", flush=True)
        if args.cuts:
            restarts = max(1, args.cuts // CUTS)
            seen = asyncio.run(cut_and_restart(folder / "cuts", cuts=args.cuts, restarts=restarts))
            print(f"\n{args.cuts} cuts, {restarts} restarts under a subscriber: {seen} events seen, in order, once")
    except AssertionError as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"\nA promise was broken, in {where.name}, {where.line}: {error}\nThe worker's folder is {folder}")
        return 1
    return 0


async def calls(folder: Path, count: int) -> list[str]:
    """Waves of calls at one worker; the table."""
    rows = ["calls  s      RSS MB  engine MB  store MB  fds  threads  dialogs"]
    with worker(folder, **Waves.environ()) as running:
        waves = Waves(running, folder)
        before = await waves.first_call()
        started, done, measured = time.monotonic(), 0, [(1, before)]

        def row(held: Holdings) -> str:
            sizes = f"{held.rss / MB:<7.1f} {held.engine_rss / MB:<10.1f} {held.store / MB:<9.1f}"
            counts = f"{held.gauges['open_fds']:<4.0f} {held.threads:<8} {held.gauges['sip_dialogs']:.0f}"
            return f"{done:<6} {time.monotonic() - started:<6.0f} {sizes} {counts}"

        while done < count:
            await waves.run(min(STEP, count - done))
            done = waves.done.total()
            measured.append((done, Holdings.of(running)))
            rows.append(row(measured[-1][1]))
            _tell(rows[-1])
        rows.append(f"calls a second, from the first to the last: {done / (time.monotonic() - started):.1f}")
        after = await waves.settled(before, 120)
        rows.append(row(after) + "  once all is quiet")
        _tell("")
        # The first half fills caches and arenas to their size; what grows after that is a leak.
        (from_, half), (to, last) = measured[len(measured) // 2], measured[-1]
        per_call = (last.rss - half.rss) / max(1, to - from_)
        rows.append(f"memory per call in the second half: {per_call:,.0f} bytes")
        rows.append("counts that are not back at their start: none")
    # The end of a worker folds the log into the database: only then its size says something.
    size = (running.data_dir / "events.sqlite3").stat().st_size
    rows.append(f"store per call: {size / done:,.0f} bytes")
    reasons = check_stories(running)
    rows.append(f"calls in the store: {', '.join(f'{number} {reason}' for reason, number in reasons.most_common())}")
    rows.append("kinds: " + ", ".join(f"{number} {kind}" for kind, number in waves.done.most_common()))
    with worker(folder, **Waves.environ(), RETENTION__MAX_AGE_DAYS="0.00001") as again:
        path = again.data_dir / "events.sqlite3"
        await asyncio.to_thread(until, lambda: path.stat().st_size <= size / 10, 300, "room given back")
        rows.append(f"store, once they are erased: {path.stat().st_size / MB:.2f} MB of {size / MB:.1f}")
    return rows


def _tell(line: str) -> None:
    """Progress, for who watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
