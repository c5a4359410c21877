"""`mediaworker bench files`: how fast files are, what they take of the machine, and what they do to calls.

Nothing is simulated of ours: recordings are WAV files that the worker's own code reads, cuts and recognises, in the
processes that a worker has. "media" is this process, without SIP, sockets and the VAD of calls. What the third kind of
live row simulates is said in `files_lock`; `files_calls` says what the calls do. This module imports nothing heavy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.engines import weights
from benchmarks.engine import run as engine
from benchmarks.engine.run import BenchError


@dataclass(frozen=True, slots=True)
class Options:
    files: int = 8
    minutes: float = 1.0
    """Of each."""
    calls: int = 4
    seconds: float = 60.0
    """In which calls begin to say something, of each live row."""
    rows: int = 8
    """As `files.parallel_segments`."""
    model: str = ""
    audio: Sequence[str] = ()
    baseline: bool = True


def measure(options: Options, say: Callable[[str], None]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figures of files alone, and a row for each schedule of calls beside them. Raises BenchError."""
    import uvloop

    from benchmarks.files import speech
    from benchmarks.files.world import settings
    from config.settings import Log
    from mediaworker.ops import logs

    clips = engine.clips(options.audio)
    model = weights.find(options.model or str(engine.MODEL))
    if model is None:
        missing = f"{engine.MODEL} is not there, only a checkout has it"
        where = weights.missing(options.model) if options.model else missing
        raise BenchError(f"{where}: --model FOLDER-OR-NAME says which model to measure")
    logs.configure(Log(level="error"))
    with tempfile.TemporaryDirectory() as folder:
        paths = speech.write(Path(folder), clips, files=options.files, seconds=60 * options.minutes)
        world = settings(model, Path(folder), rows=options.rows)
        try:
            return uvloop.run(_measured(options, world, clips, paths, say))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # it has ended the others of its group


async def _measured(
    options: Options, settings: Any, clips: Sequence[bytes], paths: Sequence[Path], say: Callable[[str], None]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    from benchmarks.files import alone as files_alone
    from benchmarks.files import live as files_live
    from benchmarks.files.world import World

    async with World(settings) as world:
        say(f"{options.files} files of {options.minutes:g} min …")
        alone = {"minutes": options.minutes, **await files_alone.measure(world, paths)}
        say(f"{options.calls} calls for {options.seconds:g} s, with and without files …")
        live = await files_live.measure(
            world, clips, paths, calls=options.calls, seconds=options.seconds, lock=options.baseline
        )
    return alone, live


_ALONE = ("files", "minutes", "at once", "rows", "stretches", "files/hour", "RTFx", "first text", "with no engine yet")
_SPENT = ("process", "CPU s per hour of audio", "peak memory")
_LIVE = (
    "calls beside", "calls", "finals", "final p50/p95/p99", "worst", "p99 ratio", "after the endpoint", "worst",
    "partial", "worst", "partials answered", "files RTFx", "engine's CPU", "lock held p50/max",
)  # fmt: skip


def tables(alone: dict[str, Any], live: Sequence[dict[str, Any]]) -> list[list[tuple[str, ...]]]:
    """Files alone, what each process takes for them, and calls: lines of cells, the first one heads them."""
    counts = (str(alone["files"]), f"{alone['minutes']:g}", *(str(alone[name]) for name in ("at_once", "rows")))
    speed = (str(alone["stretches"]), f"{alone['files_per_hour']:,.0f}", f"{alone['rtfx']:.1f}")
    firsts = (f"{alone['first_text_ms']:.0f} ms", f"{alone['first_text_no_engine_ms']:,.0f} ms")
    spent = [
        (name, f"{cpu_s:.1f}", f"{alone['peak_mb'][process]:.0f} MB" if process else "-")
        for (name, process), cpu_s in zip(_PROCESSES, alone["cpu_s_per_audio_h"].values(), strict=True)
    ]
    return [[_ALONE, (*counts, *speed, *firsts)], [_SPENT, *spent], [_LIVE, *map(_live, live)]]


_PROCESSES = (("media", "media"), ("readers (peak: of one)", "reader"), ("inference", "inference"), ("all", ""))


def _live(row: dict[str, Any]) -> tuple[str, ...]:
    waits: list[str] = []
    for what in ("final", "final_after_endpoint", "partial"):
        waits += (_ranks(row, what), _ms(row[f"{what}_max_ms"]))
    waits.insert(2, f"{row['final_p99_ratio']:.2f}")
    held_s, rtfx, answered = row["lock_held_p50_s"], row["files_rtfx"], row["partials_answered_share"]
    return (
        row["schedule"], str(row["calls"]), str(row["finals"]), *waits,
        "-" if answered is None else f"{100 * answered:.1f} %",
        "-" if rtfx is None else f"{rtfx:.1f}",
        f"{100 * row['inference_cpu_share']:.0f} %",
        "-" if held_s is None else f"{held_s:.2f}/{row['lock_held_max_s']:.2f} s",
    )  # fmt: skip


def _ranks(row: dict[str, Any], what: str) -> str:
    return "/".join(_ms(row[f"{what}_{rank}_ms"]).removesuffix(" ms") for rank in ("p50", "p95", "p99")) + " ms"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"
