"""The mean lag of the media tick, and what follows from it."""

from __future__ import annotations

import pytest

from mediaworker.calls.overload import CALM, HORIZON, LoadGuard, LoadState


def lag(guard: LoadGuard, lag_s: float, ticks: int, share: float = 1.0) -> list[LoadState]:
    seen = []
    for _ in range(ticks):
        guard.lagged(lag_s, share)
        seen.append(guard.load)
    return seen


def test_a_hiccup_is_no_overload() -> None:
    guard = LoadGuard()
    guard.lagged(3.0)
    assert guard.mean_s == pytest.approx(3.0 / HORIZON) and guard.load is LoadState.NORMAL
    assert guard.takes_partial() and guard.shed_partials == 0


def test_first_partials_are_shed_and_then_calls_refused_and_back() -> None:
    guard = LoadGuard(shed_s=0.1, refuse_s=0.5)
    seen = lag(guard, 1.0, 400)
    assert seen == sorted(seen) and set(seen) == {LoadState.NORMAL, LoadState.SHEDDING, LoadState.FULL}
    assert guard.mean_s == pytest.approx(1.0, abs=0.01)
    assert not guard.takes_partial() and not guard.takes_partial() and guard.shed_partials == 2
    while guard.load is LoadState.FULL:
        assert guard.mean_s >= CALM * 0.5
        guard.lagged(0.0)
    assert guard.load is LoadState.SHEDDING and not guard.takes_partial()
    while guard.load is LoadState.SHEDDING:
        assert guard.mean_s >= CALM * 0.1
        guard.lagged(0.0)
    assert guard.load is LoadState.NORMAL and guard.mean_s < CALM * 0.1 and guard.takes_partial()


def test_a_limit_is_reached_when_it_is_met() -> None:
    guard = LoadGuard(shed_s=0.5 / HORIZON, refuse_s=1.0)
    guard.lagged(0.5)
    assert guard.load is LoadState.SHEDDING
    guard = LoadGuard(shed_s=0.5 / HORIZON, refuse_s=0.0)
    guard.lagged(0.5)
    assert guard.load is LoadState.FULL, "calls are refused no sooner than partials are shed, and then at once"


def test_a_share_of_a_tick_counts_as_such_and_calm_forgets() -> None:
    whole, half = LoadGuard(), LoadGuard()
    whole.lagged(0.64)
    half.lagged(0.64, 0.5)
    assert half.mean_s == pytest.approx(whole.mean_s / 2)
    lag(whole, 9.0, 200)
    assert whole.load is LoadState.FULL
    whole.calm()
    assert whole.load is LoadState.NORMAL and whole.mean_s == 0.0
