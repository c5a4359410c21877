"""`python -m tools.fuzz [--inputs N] [--seed S] [--target NAME]…`: mutated inputs for every target, and what they
found.

`--guided` has atheris look for inputs that reach new code, one process per target; what it finds joins the seeds in
`tools/fuzz/corpus`, and the next run begins there. An input that breaks something is kept in `tests/data/fuzz`, as a
regression test.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import logging
import re
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import structlog

from tools.fuzz.mutate import MAX_BYTES, Mutator

ROOT = Path(__file__).parents[2]
FOUND, CORPUS = ROOT / "tests/data/fuzz", ROOT / "tools/fuzz/corpus"
KEPT = 10
"""Inputs of a target that are kept in one run: when everything breaks it, they all say the same."""
SLOW_S = 2.0
"""No input of 4 kB may hold up the loop for so long."""
_LEAK_INPUTS, _LEAK_KB = 20_000, 32_768
"""With fewer inputs a leak is smaller than what memory does anyway."""


def run(name: str, count: int, seed: int) -> tuple[int, float]:
    """Crashes and seconds."""
    with _quiet():
        return _run(name, count, seed)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What a target logs of its inputs is not news."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _run(name: str, count: int, seed: int) -> tuple[int, float]:
    from tools.fuzz.targets import TARGETS

    target = TARGETS[name]
    take, crashes = target.make(), 0
    mutator = Mutator([*target.seeds(), *corpus(name)], target.words, seed)
    begun, settled_kb = time.perf_counter(), 0
    for number in range(count):
        if number == min(count // 4, 20_000):  # by then every cache is full
            settled_kb = _resident_kb()
        data = mutator.next()
        at = time.process_time()
        try:
            take(data)
            assert time.process_time() - at < SLOW_S, "an input that takes too long"
        except Exception:
            crashes += 1
            if crashes <= KEPT:
                keep(name, data)
            if crashes <= 3:
                traceback.print_exc()
            take = target.make()
    if count >= _LEAK_INPUTS and (grown_kb := _resident_kb() - settled_kb) > _LEAK_KB:
        sys.stderr.write(f"{name}: {grown_kb} kB more than after the first inputs\n")
        crashes += 1
    return crashes, time.perf_counter() - begun


def _resident_kb() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes()[:MAX_BYTES] for path in sorted((CORPUS / name).glob("*"))]


def keep(name: str, data: bytes) -> Path:
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path


def guided(name: str, count: int) -> int:
    """Runs under atheris; never returns."""
    import atheris

    with atheris.instrument_imports(include=["audio", "sip", "mediaworker", "config"], enable_loader_override=False):
        from tools.fuzz.targets import TARGETS
    target = TARGETS[name]
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for data in target.seeds():
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    take = target.make()
    prefix = FOUND / f"{name}-"
    atheris.Setup(
        [sys.argv[0], f"-runs={count}", f"-max_len={MAX_BYTES}", f"-artifact_prefix={prefix}", "-print_final_stats=1",
         "-timeout=10", str(folder)],
        lambda data: take(bytes(data)),
    )  # fmt: skip
    atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="over all targets (default 20000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--guided", action="store_true", help="coverage-guided, by atheris")
    parser.add_argument("--guided-child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.guided_child:
        return guided(args.guided_child, args.inputs)
    from tools.fuzz.targets import TARGETS

    names = args.target or list(TARGETS)
    shares = sum(TARGETS[name].share for name in names)
    total = failed = 0
    spent = 0.0
    for name in names:
        count = max(1, args.inputs * TARGETS[name].share // shares)
        if args.guided:
            command = [sys.executable, "-m", "tools.fuzz", "--guided-child", name, "--inputs", str(count)]
            begun = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
            seconds, crashes = time.perf_counter() - begun, int(done.returncode != 0)
            if crashes:
                sys.stderr.write(done.stderr[-4000:])
            reached = re.findall(r"cov: (\d+)", done.stderr)
            note = f"  {reached[-1] if reached else '?'} edges, {len(list((CORPUS / name).glob('*')))} in the corpus"
        else:
            crashes, seconds = run(name, count, args.seed)
            note = ""
        print(_line(name, count, seconds, crashes) + note, flush=True)
        total, failed, spent = total + count, failed + crashes, spent + seconds
    print(_line("all", total, spent, failed))
    return 1 if failed else 0


def _line(name: str, count: int, seconds: float, crashes: int) -> str:
    return f"{name:12} {count:8} inputs {seconds:7.1f} s {count / seconds:9.0f}/s  {crashes} crashes"


if __name__ == "__main__":
    sys.exit(main())
