"""A region: engine servers, the workers that share them, and the dispatcher that gives the workers their calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from benchmarks.scale.clock import Clock
from benchmarks.scale.costs import Costs
from benchmarks.scale.engine_server import EngineServer
from benchmarks.scale.talk import Pattern
from benchmarks.scale.tally import Tally
from benchmarks.scale.worker import Call, Worker

PING_S = 10.0
"""How often the dispatcher asks each worker by OPTIONS, as deploy/kamailio has it."""
NO_ANSWER_S = 2.0
"""After so long it asks the next worker."""
RESOLVE_S = 10.0
"""How often a worker looks which engine servers there are."""
SERVER_TIMEOUT_S = 5.0
"""`asr.server_timeout_s`: a machine without power closes no connection."""


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """As KEDA does it, by the number of calls."""

    calls_per_server: float
    least: int
    poll_s: float = 30.0
    start_s: float = 120.0
    """Until a new engine server is ready: a machine, an image, the weights."""


@dataclass(frozen=True, slots=True)
class Size:
    workers: int
    servers: int
    max_calls: int
    """Of each worker; beyond that it refuses them."""
    network_s: float = 0.0005
    """One way between a worker and an engine server."""
    autoscaling: Autoscaling | None = None


class Region:
    """See the module."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        tally: Tally,
        size: Size,
        costs: Callable[[], Costs],
        patterns: list[Pattern],
        pause_s: tuple[float, float],
        rng: random.Random,
    ) -> None:
        self.alive = True
        self.number, self._clock, self._tally, self._size, self._costs = number, clock, tally, size, costs
        self._rng, self._next = rng, 0
        self._starting = 0
        self.servers: list[EngineServer] = []
        self.workers = [
            Worker(f"r{number}w{index}", clock, tally, patterns, max_calls=size.max_calls, pause_s=pause_s)
            for index in range(size.workers)
        ]
        self._active = list(self.workers)
        """Those that the dispatcher thinks take calls."""
        for _ in range(size.servers):
            self.add_server(found_s=0.0)
        clock.every(PING_S, self._ping, first_s=rng.uniform(0, PING_S))
        if size.autoscaling is not None:
            clock.every(size.autoscaling.poll_s, self._scale)

    @property
    def calls(self) -> int:
        return sum(len(worker.calls) for worker in self.workers)

    # -- engine servers ---------------------------------------------------------------------------------------------

    def add_server(self, *, found_s: float) -> None:
        """`found_s`: each worker finds it within so long."""
        if not self.alive:
            return
        server = EngineServer(
            self._clock, self._costs(), network_s=self._size.network_s, tell_s=self._rng.uniform(0, 1)
        )
        self.servers.append(server)
        for worker in self.workers:
            self._clock.after(self._rng.uniform(0, found_s), worker.connect, server)

    def lose_servers(self, count: int, *, noticed_s: float = SERVER_TIMEOUT_S) -> None:
        """A machine with so many of them has no power any more."""
        lost = self.servers[:count]
        del self.servers[:count]
        for server in lost:
            server.alive = False
            for worker in self.workers:
                # A worker looks at each connection every second or so.
                self._clock.after(noticed_s + self._rng.uniform(0, 1), worker.disconnect, server)

    def _scale(self) -> None:
        scaling = self._size.autoscaling
        assert scaling is not None
        wanted = max(scaling.least, ceil(self.calls / scaling.calls_per_server))
        while self.alive and len(self.servers) + self._starting < wanted:
            self._starting += 1
            self._clock.after(scaling.start_s, self._started)

    def _started(self) -> None:
        self._starting -= 1
        self.add_server(found_s=RESOLVE_S)

    # -- calls ------------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        """OPTIONS tell the truth: a worker that is full says 503."""
        if self.alive:
            self._active = [worker for worker in self.workers if worker.alive and not worker.full]

    def dispatch(self, name: str, *, talks_s: float, first_s: float, refused: Callable[[], None]) -> None:
        """A call has come; `refused`: no worker takes it."""
        tried, waited_s = 0, 0.0
        while self.alive and tried < len(self._active):
            worker = self._active[self._next % len(self._active)]
            self._next += 1
            tried += 1
            if not worker.alive:
                waited_s += NO_ANSWER_S
            elif not worker.full:
                rng = random.Random(f"{name}/{self._rng.random()}")
                Call(name, worker, rng, ends_s=self._clock.now + talks_s, first_s=waited_s + first_s)
                return
        self._clock.after(waited_s, refused)

    def lose_worker(self) -> None:
        worker = self.workers[0]
        self._tally.lost_calls += len(worker.calls)
        worker.end()

    def lose(self) -> int:
        """All of it is gone. -> calls that it had."""
        self.alive, lost = False, self.calls
        for server in self.servers:
            server.alive = False
        for worker in self.workers:
            worker.end()
        self._tally.lost_calls += lost
        return lost
