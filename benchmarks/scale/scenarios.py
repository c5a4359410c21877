"""The scenarios of docs/measurements/simulation.md: how many calls, on what, and what goes wrong when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.scale.costs import Costs, Gpu, Moonshine
from benchmarks.scale.region import Autoscaling, Size
from benchmarks.scale.world import Plan, World

CALLS_PER_WORKER, MOST_PER_WORKER = 250, 320
"""What a core holds (docs/measurements/performance.md), and the most that it takes."""
CALLS_PER_SERVER = {"gpu": 800, "moonshine": 10}
"""Seven tenths of what one is found to hold (see docs/measurements/scale.md)."""
PER_MACHINE = 4
"""Engine servers of a GPU machine."""
WARM_S = 15.0
"""Until then legs still find their servers."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    plan: Plan
    begin_s: float = WARM_S
    """What was asked for from then on counts."""
    incident_s: float | None = None
    measured: bool = False
    """On measured costs, and not on an estimate of a GPU."""


def scenario(name: str, *, calls: int, engine: str, seconds: float, simulated: int = 0, servers: int = 0) -> Scenario:
    """`simulated`: regions; 0: all. `servers`: engine servers of each region; 0: as many as the calls need, and one
    machine more. Raises KeyError: there is no such scenario."""
    found = SCENARIOS[name](calls, engine, seconds, simulated)
    if not servers:
        return found
    return replace(found, plan=replace(found.plan, size=replace(found.plan.size, servers=servers)))


def _plan(calls: int, engine: str, seconds: float, simulated: int, regions: int) -> Plan:
    share = -(-calls // regions)
    # One machine more than the calls need: what is lost must fit into the rest.
    servers = -(-share // CALLS_PER_SERVER[engine]) + PER_MACHINE
    workers = max(2, -(-share // CALLS_PER_WORKER))
    costs: Callable[[], Costs] = Gpu if engine == "gpu" else Moonshine
    return Plan(calls, regions, simulated or regions, Size(workers, servers, MOST_PER_WORKER), costs, seconds)


def _regions(calls: int) -> int:
    return 5 if calls >= 50_000 else 1


def _steady(calls: int, engine: str, seconds: float, simulated: int) -> Scenario:
    plan = _plan(calls, engine, WARM_S + seconds, simulated, _regions(calls))
    return Scenario("steady", "nothing goes wrong", plan, measured=engine != "gpu")


def _machine_lost(calls: int, engine: str, seconds: float, simulated: int) -> Scenario:
    plan = _plan(calls, engine, WARM_S + seconds, simulated, _regions(calls))
    back_s = WARM_S + seconds / 2

    def lose(world: World) -> None:
        world.regions[0].lose_servers(PER_MACHINE)

    def come_back(world: World) -> None:
        for _ in range(PER_MACHINE):
            world.regions[0].add_server(found_s=10.0)

    incidents = ((WARM_S + 2, lose), (back_s, come_back))
    about = f"a machine with {PER_MACHINE} engine servers has no power, and is back after {back_s - WARM_S - 2:g} s"
    return Scenario("machine-lost", about, replace(plan, incidents=incidents), incident_s=WARM_S + 2)


def _worker_lost(calls: int, engine: str, seconds: float, simulated: int) -> Scenario:
    plan = _plan(calls, engine, WARM_S + seconds, simulated, _regions(calls))
    incidents = ((WARM_S + 2, lambda world: world.regions[0].lose_worker()),)
    return Scenario("worker-lost", "a worker is killed", replace(plan, incidents=incidents), incident_s=WARM_S + 2)


def _region_lost(calls: int, engine: str, seconds: float, simulated: int) -> Scenario:
    plan = _plan(calls, engine, WARM_S + seconds, simulated and max(2, simulated), 5)
    incidents = ((WARM_S + 2, World.lose_region),)
    about = "one region of five is gone, and its callers dial again"
    return Scenario("region-lost", about, replace(plan, incidents=incidents), incident_s=WARM_S + 2)


def _monday(calls: int, engine: str, seconds: float, simulated: int) -> Scenario:
    """A tenth of the servers that the peak needs, the rest when they are wanted."""
    regions = _regions(calls)
    plan = _plan(calls, engine, seconds, simulated, regions)
    least = max(2, plan.size.servers // 10)
    scaling = Autoscaling(calls_per_server=CALLS_PER_SERVER[engine], least=least)
    size = replace(plan.size, servers=least, autoscaling=scaling)
    about = f"from nothing to all calls in {seconds * 5 / 6:g} s, engine servers as KEDA adds them"
    return Scenario("monday", about, replace(plan, size=size, ramp_s=seconds * 5 / 6), begin_s=0.0)


SCENARIOS: dict[str, Callable[[int, str, float, int], Scenario]] = {
    "steady": _steady,
    "machine-lost": _machine_lost,
    "worker-lost": _worker_lost,
    "region-lost": _region_lost,
    "monday": _monday,
}
