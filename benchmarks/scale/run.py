"""Runs scenarios, and says what they have shown."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.engine import run as engine_run
from benchmarks.engine.arrivals import per
from benchmarks.scale.scenarios import Scenario
from benchmarks.scale.talk import Pattern, patterns
from benchmarks.scale.tally import Tally, most, quantile
from benchmarks.scale.world import World

SEED = 1
PARTIAL_MS = 500
LATE_S = 0.3
"""A second whose finals have a p99 beyond this is not normal."""


def speech(seed: int = SEED) -> list[Pattern]:
    """Of recorded prompts, if they are installed, else of the digits of the repository. Raises BenchError."""
    return patterns(engine_run.clips(engine_run.prompts()), partial_ms=PARTIAL_MS, seed=seed)


def measure(scenario: Scenario, spoken: list[Pattern], *, seed: int = SEED) -> dict[str, Any]:
    begun_s = time.process_time()
    world = World(scenario.plan, spoken, seed=seed)
    return figures(scenario, world.run()) | {"cpu_s": round(time.process_time() - begun_s, 1)}


def figures(scenario: Scenario, tally: Tally) -> dict[str, Any]:
    plan, begin_s = scenario.plan, scenario.begin_s
    # The last second's finals are still to come.
    end_s = plan.seconds - 1
    finals, partials = tally.final_waits_s.between(begin_s, end_s), tally.partial_waits_s.between(begin_s, end_s)
    asked, answered = (each.total(begin_s, end_s) for each in (tally.partials_asked, tally.partials_answered))
    samples = [sample for sample in tally.samples if sample.at_s >= begin_s]
    return {
        "scenario": scenario.name,
        "costs": "measured" if scenario.measured else "estimated",
        "calls": plan.calls,
        "regions": plan.regions,
        "simulated_regions": plan.simulated,
        "workers": plan.size.workers * plan.regions,
        "engine_servers": max(sample.servers for sample in samples) * plan.regions // max(1, plan.simulated),
        "seconds": plan.seconds - begin_s,
        "finals": len(finals),
        **{f"final_p{round(100 * part)}_ms": round(1000 * quantile(finals, part), 1) for part in (0.5, 0.99)},
        "final_max_ms": round(1000 * most(finals), 1),
        **{f"partial_p{round(100 * part)}_ms": round(1000 * quantile(partials, part), 1) for part in (0.5, 0.99)},
        "partials_shed": max(0.0, per(asked - answered, asked) or 0.0),
        "sent_again": tally.sent_again,
        "backlog_peak": max(sample.waiting for sample in samples),
        "normal_after_s": _normal_after(tally, scenario),
        "uneven_median": round(quantile(sorted(sample.uneven for sample in samples), 0.5), 3),
        "uneven_peak": round(most(sample.uneven for sample in samples), 3),
        "moves_per_leg_minute": per(
            60 * tally.moves.total(begin_s, end_s) / (end_s - begin_s),
            2 * sum(sample.calls for sample in samples) / len(samples),
        ),
        "lost_calls": tally.lost_calls,
        "lost_utterances": tally.lost_utterances,
        "refused": tally.refused.total(0, plan.seconds),
        "other_region": tally.retries,
        "busy": round(sum(sample.busy for sample in samples) / len(samples), 3),
    }


def _normal_after(tally: Tally, scenario: Scenario) -> int | None:
    """Seconds from the incident, or from the beginning, until no second has a p99 of its finals beyond the limit."""
    since_s = scenario.incident_s if scenario.incident_s is not None else scenario.begin_s
    late = [
        second
        for second, wait_s in tally.final_waits_s.quantiles(0.99).items()
        if since_s - 1 <= second and wait_s > LATE_S
    ]
    return round(late[-1] + 1 - since_s) if late else 0


def table(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    head = (
        "scenario", "calls", "workers", "engine servers", "final p50 / p99 / max ms", "partial p50 / p99 ms",
        "partials shed", "sent again", "backlog", "normal after", "legs max/mean", "moves per leg and minute",
        "lost calls", "refused",
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        waits = " / ".join(f"{row[f'final_{each}_ms']:.0f}" for each in ("p50", "p99", "max"))
        lines.append(
            (
                row["scenario"],
                f"{row['calls']:,}",
                f"{row['workers']:,}",
                f"{row['engine_servers']:,}",
                waits,
                f"{row['partial_p50_ms']:.0f} / {row['partial_p99_ms']:.0f}",
                f"{100 * row['partials_shed']:.1f} %",
                f"{row['sent_again']:,}",
                f"{row['backlog_peak']:,}",
                f"{row['normal_after_s']} s",
                f"{row['uneven_median']:.2f}, at most {row['uneven_peak']:.2f}",
                f"{row['moves_per_leg_minute'] or 0:.3f}",
                f"{row['lost_calls']:,}",
                f"{row['refused']:,}",
            )
        )
    return lines
