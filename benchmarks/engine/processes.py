"""How many people one, two or more inference processes can follow: real processes, real time, the recognizer of a
worker."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvloop
from msgspec.structs import replace

from asr.client.recognizer import Recognizer
from asr.messages import Append, FinalRequest, Open, PartialRequest
from asr.utterance import EngineStatus, Hypothesis
from benchmarks.engine.plan import Arrival, arrivals
from benchmarks.engine.run import BenchError
from benchmarks.engine.talk import talk
from config.settings import Settings

SEED = 1
AIM_MS, AIM_PARTIALS = 500.0, 0.95
"""As many people are followed as have 99 in 100 finals in this time, and this share of their partials."""
START_S, ANSWERS_S = 120.0, 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Tally:
    asked_s: dict[str, float] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)
    partials: int = 0
    answered: int = 0
    errors: int = 0


def measure(
    settings: Settings,
    clips: Sequence[bytes],
    *,
    processes: Sequence[int],
    calls: Sequence[int],
    seconds: float,
    partial_ms: int,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """A row for each number of processes and of people. `settings`: of the engine, a thread for each process. Raises
    BenchError."""
    rows = []
    for count in processes:
        asr = replace(settings.asr, processes=count, threads=count, preload=True)
        for people in calls:
            progress(f"{people} people, {count} inference processes, {seconds:g} s …")
            coming = arrivals(talk(clips, people=people, seconds=seconds, seed=SEED), partial_ms=partial_ms)
            row = {"processes": count, "calls": people, "seconds": seconds, "partial_ms": partial_ms}
            rows.append(row | uvloop.run(_run(replace(settings, asr=asr), coming)))
    return rows


def followed(rows: Sequence[dict[str, Any]], processes: int) -> int:
    """The most people with whom so many processes met the aim; 0 for none."""
    met = [
        row["calls"]
        for row in rows
        if row["processes"] == processes and row["final_p99_ms"] <= AIM_MS and row["partials_answered"] >= AIM_PARTIALS
    ]
    return max(met, default=0)


async def _run(settings: Settings, coming: Sequence[Arrival]) -> dict[str, Any]:
    recognizer = Recognizer(settings, on_state=lambda state, why: None)
    await recognizer.start()
    try:
        try:
            async with asyncio.timeout(START_S):
                while any(server.state is not EngineStatus.READY for server in recognizer.servers):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise BenchError(f"the engine does not start: {recognizer.servers[0].reason}") from None
        tally, own_s, before_s = _Tally(), time.process_time(), [_cpu_s(pid) for pid in recognizer.pids]
        await _play(recognizer, coming, tally)
        own_s = time.process_time() - own_s
        used_s = [_cpu_s(pid) - before for pid, before in zip(recognizer.pids, before_s, strict=True)]
    finally:
        await recognizer.stop()
    waits_ms = sorted(1000 * wait for wait in tally.waits_s)
    return {
        "finals": len(waits_ms),
        "errors": tally.errors,
        "final_p50_ms": round(waits_ms[len(waits_ms) // 2], 1),
        "final_p99_ms": round(waits_ms[int(0.99 * (len(waits_ms) - 1))], 1),
        "partials": tally.partials,
        "partials_answered": round(tally.answered / max(1, tally.partials), 3),
        "cpu_s": [round(each, 2) for each in used_s],
        "recognizer_cpu_s": round(own_s, 2),
    }


async def _play(recognizer: Recognizer, coming: Sequence[Arrival], tally: _Tally) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    def heard(hypothesis: Hypothesis) -> None:
        tally.errors += hypothesis.error is not None
        if not hypothesis.final:
            tally.answered += 1
        else:
            tally.waits_s.append(loop.time() - start_s - tally.asked_s.pop(hypothesis.utterance_id))

    for arrival in coming:
        if (left_s := arrival.time_s - (loop.time() - start_s)) > 0:
            await asyncio.sleep(left_s)
        match arrival.message:
            case Open(utterance=utterance):
                leg = utterance.id.partition("/")[0]
                recognizer.open(dataclasses.replace(utterance, stream=leg), heard)
            case Append(utterance_id=name, audio=audio):
                recognizer.append(name, audio)
            case PartialRequest(utterance_id=name, revision=revision):
                tally.partials += 1
                recognizer.partial(name, revision)
            case FinalRequest(utterance_id=name, revision=revision):
                # From when it was to be asked for: a loop that comes late makes nobody's wait shorter.
                tally.asked_s[name] = arrival.time_s
                recognizer.final(name, revision, commit=True)
    async with asyncio.timeout(ANSWERS_S):
        while tally.asked_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    head = ("processes", "people", "finals", "p50", "p99", "partials answered", "CPU of each", "of the recognizer")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        lines.append(
            (
                str(row["processes"]),
                str(row["calls"]),
                str(row["finals"]),
                f"{row['final_p50_ms']:.0f} ms",
                f"{row['final_p99_ms']:.0f} ms",
                f"{100 * row['partials_answered']:.0f} %",
                ", ".join(f"{used:.1f} s" for used in row["cpu_s"]),
                f"{row['recognizer_cpu_s']:.1f} s",
            )
        )
    return lines
