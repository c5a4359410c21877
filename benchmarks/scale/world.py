"""Regions, and the callers who dial into them. What happens is a function of the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.scale.clock import Clock
from benchmarks.scale.costs import Costs
from benchmarks.scale.region import Region, Size
from benchmarks.scale.talk import Pattern
from benchmarks.scale.tally import Sample, Tally, most

SHORTEST_S = 15.0
REDIAL_S = (5.0, 30.0)
"""Somebody whose call was cut off dials again after so long."""
NEXT_REGION_S = 1.0
"""A carrier that is refused by a region asks the next one."""
SETTLE_S = 5.0
"""Calls that are there at the beginning begin to speak within so long."""
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """`calls`: at once, in all regions together, if `ramp_s` is 0; else they come up to it within that time."""

    calls: int
    regions: int
    simulated: int
    """So many regions are simulated; the others only take their share of the calls."""
    size: Size
    costs: Callable[[], Costs]
    seconds: float
    ramp_s: float = 0.0
    call_s: float = 180.0
    """The mean length of a call."""
    pause_s: tuple[float, float] = (0.2, 1.5)
    """Between two utterances of a call, after the endpoint of the first."""
    incidents: tuple[tuple[float, Callable[[World], None]], ...] = field(default=())


class World:
    def __init__(self, plan: Plan, patterns: list[Pattern], *, seed: int) -> None:
        self.plan, self.clock, self.tally = plan, Clock(), Tally()
        self._rng = random.Random(seed)
        self.regions = [
            Region(
                number, self.clock, self.tally, plan.size, plan.costs, patterns, plan.pause_s,
                random.Random(f"{seed}/{number}"),
            )
            for number in range(plan.simulated)
        ]  # fmt: skip
        self.lost_regions = 0
        self._count = 0
        self._busy_s: dict[int, float] = {}
        self._dialled = True
        """Callers still come."""
        share = plan.simulated / plan.regions
        if plan.ramp_s == 0:
            for _ in range(round(plan.calls * share)):
                self._dial(self._rng.randrange(plan.simulated), first_s=self._rng.uniform(0, SETTLE_S))
        for at_s, incident in plan.incidents:
            self.clock.at(at_s, incident, self)
        self.clock.after(self._rng.expovariate(1.0), self._arrive)
        self.clock.every(SAMPLE_S, self._sample)

    def run(self) -> Tally:
        self.clock.run(self.plan.seconds)
        return self.tally

    def arrivals_end(self) -> None:
        """Nobody dials from now on."""
        self._dialled = False

    # -- callers ----------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """A caller; of those who call regions that are not simulated, only whoever reaches a simulated one counts."""
        plan = self.plan
        share = plan.simulated / plan.regions
        self._dial(self._rng.randrange(plan.simulated))
        if plan.ramp_s and self.clock.now < plan.ramp_s:
            target = plan.calls * self.clock.now / plan.ramp_s
            rate = plan.calls / plan.ramp_s + target / plan.call_s
        else:
            rate = plan.calls / plan.call_s
        self.clock.after(self._rng.expovariate(rate * share), self._arrive)

    def _dial(self, region: int, *, first_s: float = 0.5, tried: frozenset[int] = frozenset()) -> None:
        """`region`: those from `plan.simulated` on are not simulated, and take every call."""
        if region >= self.plan.simulated or not self._dialled:
            return
        self._count += 1
        plan = self.plan
        talks_s = SHORTEST_S + self._rng.expovariate(1 / (plan.call_s - SHORTEST_S))
        self.regions[region].dispatch(
            f"c{self._count}", talks_s=talks_s, first_s=first_s, refused=lambda: self._refused(tried | {region})
        )

    def _refused(self, tried: frozenset[int]) -> None:
        others = [number for number in range(self.plan.regions) if number not in tried]
        if not others:
            self.tally.refused.add(self.clock.now)
            return
        self.tally.retries += 1
        self.clock.after(NEXT_REGION_S, lambda: self._dial(self._rng.choice(others), tried=tried))

    def lose_region(self) -> None:
        """The first one. Who was cut off dials again, and is sent to another region by whoever routes the number."""
        lost = self.regions[0].lose()
        self.lost_regions += 1
        for _ in range(lost):
            self.clock.after(self._rng.uniform(*REDIAL_S), lambda: self._dial(0))

    # -- what is seen -----------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        alive = [region for region in self.regions if region.alive]
        servers = [server for region in alive for server in region.servers]
        busy = 0.0
        for server in servers:
            busy += server.busy_s - self._busy_s.get(id(server), 0.0)
            self._busy_s[id(server)] = server.busy_s
        self.tally.samples.append(
            Sample(
                self.clock.now,
                sum(region.calls for region in alive),
                sum(len(server.scheduler) for server in servers),
                most(_uneven(region) for region in alive),
                len(servers),
                busy / SAMPLE_S / max(1, len(servers)),
            )
        )


def _uneven(region: Region) -> float:
    legs = [server.legs for server in region.servers]
    return max(legs) * len(legs) / max(1, sum(legs)) if legs else 0.0
