"""`make cluster`: see the package."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tools.cluster.acts import QUICK, ROLLING, WHOLE
from tools.cluster.network import enter_own_network
from tools.cluster.parts import unpacked_kamailio
from tools.cluster.report import judge, table
from tools.cluster.scene import Scene, without_proxies


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="six acts in two minutes instead of all of them")
    parser.add_argument("--acts", type=int, nargs="+", metavar="N", help="only these, by their numbers in the whole")
    parser.add_argument("--stay", action="store_true", help="strike nothing: the cluster is yours until Ctrl-C")
    parser.add_argument("--callers", type=int, default=60, help="half by SIP, half as Twilio (default 60)")
    parser.add_argument("--keep", action="store_true", help="keep settings and logs")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    args = parser.parse_args()
    enter_own_network(unpacked_kamailio)
    without_proxies()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # of connections that end while parts are struck
    folder = Path(tempfile.mkdtemp(prefix="mediaworker-cluster-"))
    scene = Scene(folder, args.seed, args.callers)
    kept = False
    try:
        kept = asyncio.run(run(scene, args))
    except KeyboardInterrupt:
        kept = args.stay
    except AssertionError as error:
        scene.show(f"\n{error}")
    finally:
        scene.stop()
    if kept and not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    elif kept:
        scene.show(f"Settings and logs are in {folder}")
    else:
        for listener in scene.listeners:
            listener.save(folder)
        scene.show(f"\nA promise was broken, with seed {args.seed}. Logs, and what was heard, are in {folder}")
    return 0 if kept else 1


async def run(scene: Scene, args: argparse.Namespace) -> bool:
    """Whether every promise was kept."""
    scene.show("Starting three NATS servers, two engine servers, three workers, Kamailio and HAProxy.")
    scene.make()
    await scene.start()
    scene.describe()
    await scene.begin()
    if args.stay:
        await asyncio.Event().wait()
    acts = QUICK if args.quick else [*WHOLE, ROLLING]
    if args.acts:
        acts = [act for number, act in enumerate(acts, start=1) if number in args.acts]
    for number, act in enumerate(acts, start=1):
        await act.run(scene, number, len(acts))
    scene.show("\nThe last calls and files come to their end.")
    await scene.end()
    verdict = judge(scene.listeners, scene.callers.script, acts)
    scene.show("\n" + "\n".join(table(acts, scene.listeners, scene.callers)) + "\n")
    scene.show("\n".join(verdict.lines()))
    segments, repeated = scene.jobs.repeated(scene.workers)
    alike = all(result == scene.jobs.results[0] for result in scene.jobs.results)
    scene.show(
        f"files      {len(scene.jobs.ids)}, results {'all alike' if alike else 'that differ'}; "
        f"{repeated} of {segments} segments recognised again; {scene.jobs.refusals} uploads sent again"
    )
    troubled = scene.with_tracebacks()
    if troubled:
        scene.show(f"tracebacks in the logs of {', '.join(troubled)}")
    return verdict.kept and alike and not troubled


if __name__ == "__main__":
    sys.exit(main())
