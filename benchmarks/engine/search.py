"""How many streams hold an objective: doubling, then halving what is between. Pure: `measure` is somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CLEAR = 1.5
"""So far from the objective, on either side, one run is enough."""
FINE = 0.04
"""Two numbers as near to each other as that are not told apart."""


@dataclass(frozen=True, slots=True)
class Found:
    streams: int
    """The most that held; 0 when not even one did."""
    bound: bool
    """It held at the bound: there may be more."""
    limited: bool
    """The time was over before the number was known: `streams` held, and there may be more."""
    tried: tuple[tuple[int, float], ...]
    """(streams, how much of the objective was used), in the order of the runs."""


def search(
    measure: Callable[[int], float], *, bound: int, start: int = 1, over: Callable[[], bool] = lambda: False
) -> Found:
    """`measure`: how much of the objective this many streams use; up to 1 they hold. It may be noisy: near 1 a number
    is measured up to three times, and the middle one counts. `over`: asked before each number after the first one;
    true ends the search with what has held until then."""
    assert 1 <= start <= bound
    tried: list[tuple[int, float]] = []

    def used(streams: int) -> float:
        use = measure(streams)
        tried.append((streams, use))
        return use

    def holds(streams: int) -> bool:
        use = used(streams)
        if not 1 / CLEAR < use < CLEAR:
            return use <= 1
        votes = [use <= 1, used(streams) <= 1]
        return votes[0] if votes[0] == votes[1] else used(streams) <= 1

    good, bad = 0, start
    while holds(bad):
        good = bad
        if good == bound:
            return Found(good, True, False, tuple(tried))
        if over():
            return Found(good, False, True, tuple(tried))
        bad = min(2 * good, bound)
    while bad - good > max(1, int(FINE * good)):
        if over():
            return Found(good, False, True, tuple(tried))
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return Found(good, False, False, tuple(tried))
