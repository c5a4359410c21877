"""The simulation (docs/measurements/simulation.md) loses nothing, follows its seed, and agrees with measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale import run
from benchmarks.scale.costs import Moonshine
from benchmarks.scale.region import Size
from benchmarks.scale.scenarios import SCENARIOS, scenario
from benchmarks.scale.talk import Pattern
from benchmarks.scale.world import Plan, World
from lab.worker.peers import command

MEASURED_PEOPLE = 12
"""Who may talk at once on a core with Moonshine, with 95 in 100 partials, or a newer one, within 349 ms:
docs/measurements/performance.md."""
TOLERANCE = 0.25


@pytest.fixture(scope="module")
def spoken() -> list[Pattern]:
    return run.speech()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_final_is_answered_once_and_the_seed_says_everything(name: str, spoken: list[Pattern]) -> None:
    """`OutstandingWork` asserts that nothing is answered twice: an utterance is over with its final."""
    seconds = 30.0 if name == "monday" else 15.0
    chosen = scenario(name, calls=120, engine="moonshine", seconds=seconds, simulated=0)
    # Nobody dials at the end, so that all calls end, and with them all utterances.
    chosen = replace(chosen, plan=replace(chosen.plan, call_s=20.0))
    worlds = [World(chosen.plan, spoken, seed=7) for _ in range(2)]
    tallies = []
    for world in worlds:
        tally = world.run()
        world.arrivals_end()
        world.clock.run(chosen.plan.seconds + 240)
        assert not any(region.calls for region in world.regions), "calls that have not ended"
        assert tally.final_waits_s.count() + tally.lost_ended == tally.finals_asked
        assert not any(
            worker.work.open_utterances for region in world.regions for worker in region.workers if worker.alive
        )
        tallies.append(run.figures(chosen, tally))
    assert tallies[0] == tallies[1]
    assert (tallies[0]["sent_again"] > 0) == (name == "machine-lost")
    assert (tallies[0]["lost_calls"] > 0) == (name in ("worker-lost", "region-lost"))


def test_the_model_of_moonshine_agrees_with_the_measured_people(spoken: list[Pattern]) -> None:
    def answered(people: int) -> float:
        size = Size(workers=1, servers=1, max_calls=100)
        plan = Plan(people, 1, 1, size, Moonshine, seconds=45.0, call_s=1e7, pause_s=(0.0, 0.0))
        tally = World(plan, spoken, seed=1).run()
        return tally.partials_answered.total(8, 40) / tally.partials_asked.total(8, 40)

    assert answered(round(MEASURED_PEOPLE * (1 - TOLERANCE))) >= 0.95
    assert answered(round(MEASURED_PEOPLE * (1 + TOLERANCE))) < 0.95


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ("--calls", "200", "--seconds", "20", "--json", str(file))
    done = command("bench", "scale", "machine-lost", *arguments)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(file.read_text())["runs"]
    assert row["costs"] == "estimated" and row["finals"] > 100 and row["lost_calls"] == 0
    assert row["final_p50_ms"] <= row["final_p99_ms"] <= row["final_max_ms"]
