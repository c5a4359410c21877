"""Files with the engine to themselves: how soon the first text comes, how many an hour, and what they take of whom."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.files.meter import Meter
from benchmarks.files.world import World

FIRST_TEXTS = 3
"""Files one after the other, whose median counts."""


async def measure(world: World, paths: Sequence[Path]) -> dict[str, Any]:
    """Its engine has not been started. Raises BenchError."""
    cold_s = await _first_text_s(world, paths[0], "cold")
    pid = await world.ready()
    warm_s = [await _first_text_s(world, paths[at % len(paths)], f"warm/{at}") for at in range(FIRST_TEXTS)]
    parallel = min(world.settings.jobs.parallel, len(paths))
    stats, meter = world.service.stats, Meter(pid)
    stretches, before_s = stats.chunks, stats.audio_s
    async with meter.watching(world.readers):
        begun_s = time.monotonic()
        await _together(world, paths, parallel)
        wall_s = time.monotonic() - begun_s
    audio_s = stats.audio_s - before_s
    world.check()
    cpu = {name: round(3600 * seconds / audio_s, 2) for name, seconds in asdict(meter.cpu).items()}
    peak = {name: round(mb, 1) for name, mb in asdict(meter.peak).items()}
    return {
        "files": len(paths),
        "at_once": parallel,
        "rows": world.settings.files.parallel_segments,
        "stretches": stats.chunks - stretches,
        "audio_s": round(audio_s, 2),
        "wall_s": round(wall_s, 3),
        "files_per_hour": round(3600 * len(paths) / wall_s, 1),
        "rtfx": round(audio_s / wall_s, 2),
        "first_text_ms": round(1000 * statistics.median(warm_s), 1),
        "first_text_no_engine_ms": round(1000 * cold_s, 1),
        "cpu_s_per_audio_h": cpu | {"all": round(sum(cpu.values()), 2)},
        "peak_mb": peak,
    }


async def _first_text_s(world: World, path: Path, stream: str) -> float:
    begun_s = time.monotonic()
    async with world.file(path, stream) as work, aclosing(work.segments()) as segments:
        await anext(segments)
        return time.monotonic() - begun_s


async def _together(world: World, paths: Sequence[Path], parallel: int) -> None:
    """All of them, so many at once."""
    waiting = iter(paths)

    async def work() -> None:
        for path in waiting:
            async with world.file(path, f"file/{path.stem}") as work, aclosing(work.segments()) as segments:
                async for _ in segments:
                    pass

    async with asyncio.TaskGroup() as group:
        for _ in range(parallel):
            group.create_task(work())
