"""Simulates a network between a sender and the worker: it loses, delays, reorders, duplicates and injects packets. No
I/O.

The seed determines everything: the same packets over the same link always arrive in the same way. A packet is (sent at,
what) and an arrival is (arrives at, what, foreign), both in seconds of the same clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
HELD_BACK_S = 0.045
"""The extra delay of a reordered packet, which puts it after the next two packets at 20 ms each."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a link. Shares are from 0 to 1; the defaults are a perfect link."""

    loss: float = 0.0
    burst: float = 1.0
    """The mean length of a burst of losses in packets; 1: losses are independent of each other."""
    jitter_ms: float = 0.0
    """The largest random delay of a packet; delays are uniformly distributed."""
    reorder: float = 0.0
    """The share of packets that the next two packets overtake."""
    duplicate: float = 0.0
    """The share of packets that arrive twice."""
    drift_ppm: float = 0.0
    """The deviation of the sender's clock; positive: it is fast."""
    delay_ms: float = 0.0
    """The constant delay of every packet."""
    inject: float = 0.0
    """The number of a stranger's packets per packet sent."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the faults. Raises ValueError, which names the invalid one."""
        for name in ("loss", "reorder", "duplicate"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name):g}: expected a share from 0 to below 1")
        # The good state of the loss model must last at least one packet on average.
        if not 1 <= self.burst <= 1000 or self.loss > self.burst * (1 - self.loss):
            raise ValueError(f"burst = {self.burst:g}: expected 1 to 1000, and with a loss of {self.loss:g} more")
        for name, most in (("jitter_ms", 10_000), ("delay_ms", 60_000), ("inject", 1000)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} = {getattr(self, name):g}: expected 0 to {most}")
        if not -100_000 <= self.drift_ppm <= 100_000:
            raise ValueError(f"drift_ppm = {self.drift_ppm:g}: expected -100000 to 100000")


class LinkArrival(NamedTuple, Generic[T]):
    at_s: float
    what: T
    foreign: bool = False


class Link(Generic[T]):
    """One direction of one connection, with its faults."""

    def __init__(
        self, faults: Faults, *, ordered: bool = False, stranger: Callable[[T, Random], T] | None = None
    ) -> None:
        """`ordered`: jitter does not reorder packets, as with TCP; only `reorder` does. `stranger` makes the packet
        that is injected beside a real one."""
        self.faults = faults
        self._random, self._strangers = Random(faults.seed), Random(faults.seed + 1)
        self._ordered, self._stranger = ordered, stranger
        self._bad = False
        self._origin_s: float | None = None
        self._latest_s = 0.0
        self._injection = 0.0

    def carry(self, packets: Iterable[tuple[float, T]]) -> Iterator[LinkArrival[T]]:
        """Yield the arrivals in order. `packets` are in the order in which they were sent."""
        waiting: list[tuple[float, int, LinkArrival[T]]] = []
        number = count()
        for sent_s, what in packets:
            at_s = self._clocked(sent_s)
            while waiting and waiting[0][0] <= at_s:
                yield heapq.heappop(waiting)[2]
            for arrival in self._arrivals(at_s, what):
                heapq.heappush(waiting, (arrival.at_s, next(number), arrival))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _clocked(self, sent_s: float) -> float:
        if self._origin_s is None:
            self._origin_s = sent_s
        return self._origin_s + (sent_s - self._origin_s) / (1 + self.faults.drift_ppm / 1e6)

    def _arrivals(self, at_s: float, what: T) -> Iterator[LinkArrival[T]]:
        faults, random = self.faults, self._random
        if self._stranger is not None:
            self._injection += faults.inject
            while self._injection >= 1:
                self._injection -= 1
                yield LinkArrival(at_s + self._strangers.random() * 0.02, self._stranger(what, self._strangers), True)
        # Every packet uses the same number of random draws, so that one fault does not change the effect of another.
        state, jitter, reorder, double, again = (random.random() for _ in range(5))
        if self._loses(state):
            return
        at_s += (faults.delay_ms + jitter * faults.jitter_ms) / 1000
        held_back = reorder < faults.reorder
        if self._ordered:
            at_s = self._latest_s = max(self._latest_s, at_s)
        at_s += HELD_BACK_S if held_back else 0.0
        yield LinkArrival(at_s, what)
        if double < faults.duplicate:
            yield LinkArrival(at_s + again * (0.001 + faults.jitter_ms / 1000), what)

    def _loses(self, draw: float) -> bool:
        """Return whether a packet is lost, by the Gilbert-Elliott model: all packets are lost in the bad state, and
        none in the good state."""
        loss, burst = self.faults.loss, self.faults.burst
        if burst <= 1:
            return draw < loss
        self._bad = draw >= 1 / burst if self._bad else draw < loss / (burst * (1 - loss))
        return self._bad
