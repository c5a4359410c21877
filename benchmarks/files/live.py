"""Calls beside files: the same calls three times, with nobody else, with files in the batch lane as jobs have them, and
with files under the lock of `files_lock`. One engine process serves all of it."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

from asr.client.recognizer import Recognizer
from benchmarks.engine.plan import arrivals, plan
from benchmarks.engine.run import BenchError
from benchmarks.files.calls import Calls
from benchmarks.files.lock import Locked, LockedFiles
from benchmarks.files.meter import Meter
from benchmarks.files.world import World

SEED = 1
NO_FILES, LANES, LOCK = "no files", "files in the batch lane", "files under a lock"


class Feed(Protocol):
    """Files without an end."""

    audio_s: float
    """Done so far."""
    busy: asyncio.Event
    """The engine has something to do for them."""
    holds_s: list[float]
    """How long each had the engine alone."""

    async def run(self) -> None: ...


class LaneFiles:
    """So many at once as `jobs.parallel` has it, in the batch lane."""

    def __init__(self, world: World, paths: Sequence[Path]) -> None:
        self._world, self._paths = world, paths
        self.audio_s = 0.0
        self.busy = asyncio.Event()
        self.holds_s: list[float] = []

    async def run(self) -> None:
        """Until it is cancelled. Raises BenchError."""
        numbers = count()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._world.settings.jobs.parallel):
                group.create_task(self._work(numbers))

    async def _work(self, numbers: count[int]) -> None:
        for number in numbers:
            position_s = 0.0

            def reach(seconds: float) -> None:
                nonlocal position_s
                self.audio_s += max(0.0, seconds - position_s)
                position_s = max(position_s, seconds)

            path = self._paths[number % len(self._paths)]
            stream = f"lane/{number}"
            async with self._world.file(path, stream) as work, contextlib.aclosing(work.segments()) as segments:
                async for segment in segments:
                    self.busy.set()
                    reach(segment.end_ms / 1000)
            assert work.facts.ended is not None
            reach(work.facts.ended.duration_s)


async def measure(
    world: World, clips: Sequence[bytes], paths: Sequence[Path], *, calls: int, seconds: float, lock: bool
) -> list[dict[str, Any]]:
    """A row for each schedule; `lock`: that of the lock as well. Raises BenchError."""
    locked = Locked(world.recognizer)
    loads: list[tuple[str, Recognizer, Feed | None]] = [
        (NO_FILES, world.recognizer, None),
        (LANES, world.recognizer, LaneFiles(world, paths)),
    ]
    if lock:
        loads.append((LOCK, cast(Recognizer, locked), LockedFiles(world, locked.lock, paths)))
    rows = []
    for schedule, recognizer, feed in loads:
        rows.append(await _row(world, clips, recognizer, feed, calls=calls, seconds=seconds) | {"schedule": schedule})
        rows[-1]["final_p99_ratio"] = round(rows[-1]["final_p99_ms"] / rows[0]["final_p99_ms"], 2)
    return rows


async def _row(
    world: World,
    clips: Sequence[bytes],
    recognizer: Recognizer,
    feed: Feed | None,
    *,
    calls: int,
    seconds: float,
) -> dict[str, Any]:
    coming = arrivals(plan(clips, calls=calls, seconds=seconds, seed=SEED), partial_ms=world.settings.asr.partial_ms)
    live = Calls(recognizer, coming, min_silence_ms=world.settings.endpointing.assist.min_silence_ms)
    meter, loop = Meter(await world.ready()), asyncio.get_running_loop()
    async with _feeding(feed), meter.watching(world.readers):
        begun_s, before_s = loop.time(), feed.audio_s if feed else 0.0
        if feed:
            feed.holds_s.clear()
        await live.run()
        wall_s, audio_s = loop.time() - begun_s, feed.audio_s - before_s if feed else 0.0
    if live.errors:
        raise BenchError(f"a final of a call failed: {live.errors[0]}")
    world.check()
    holds_s = feed.holds_s if feed else []
    return {
        "calls": calls,
        "wall_s": round(wall_s, 2),
        **live.figures(),
        "files_rtfx": round(audio_s / wall_s, 2) if feed else None,
        "lock_held_p50_s": round(statistics.median(holds_s), 3) if holds_s else None,
        "lock_held_max_s": round(max(holds_s), 3) if holds_s else None,
        "inference_cpu_share": round(meter.cpu.inference / wall_s, 3),
    }


@contextlib.asynccontextmanager
async def _feeding(feed: Feed | None) -> AsyncIterator[None]:
    """From when the engine has something of files to do until the calls are over."""
    if feed is None:
        yield
        return
    task = asyncio.create_task(feed.run())
    busy = asyncio.create_task(feed.busy.wait())
    try:
        await asyncio.wait((task, busy), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            yield
    finally:
        busy.cancel()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
