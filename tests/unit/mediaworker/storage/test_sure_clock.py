"""When a clock is believed that says what is old."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mediaworker.storage.sure_clock import HELD_S, STEP_S, SureClock

NOW_S = 1_800_000_000.0
DAY_S = 86400.0


class Machine:
    def __init__(self) -> None:
        self.clock_s, self.steady_s = NOW_S, 5.0
        self.sure = SureClock(lambda: self.clock_s, lambda: self.steady_s)

    def run(self, seconds: float) -> None:
        self.clock_s += seconds
        self.steady_s += seconds


@pytest.mark.parametrize(
    ("latest_s", "believed"),
    [
        (None, True),  # nothing was stored that a wrong clock could call old
        (NOW_S, True),
        (NOW_S - HELD_S + 1, True),
        (NOW_S + HELD_S - 1, True),
        (NOW_S - 31 * DAY_S, False),
        (NOW_S + 31 * DAY_S, False),
        (0.0, False),
    ],
)
def test_a_start_believes_a_clock_that_agrees_with_what_was_stored_last(latest_s: float | None, believed: bool) -> None:
    machine = Machine()
    machine.sure.agree(latest_s)
    assert machine.sure.is_sure() == believed
    machine.run(HELD_S - 1)
    assert machine.sure.is_sure() == believed
    machine.run(1)
    assert machine.sure.is_sure()


@given(
    st.lists(
        st.tuples(st.floats(0.1, 2 * HELD_S), st.one_of(st.just(0.0), st.floats(-400 * DAY_S, 400 * DAY_S))),
        max_size=20,
    ),
    st.booleans(),
)
def test_nothing_is_sure_within_an_hour_of_a_step(steps: list[tuple[float, float]], agreed: bool) -> None:
    machine = Machine()
    machine.sure.agree(NOW_S if agreed else 0.0)
    since_s, stepped = machine.steady_s, not agreed
    for run_s, step_s in steps:
        machine.run(run_s)
        machine.clock_s += step_s
        if abs(step_s) > STEP_S + 1:
            since_s, stepped = machine.steady_s, True
        if machine.sure.is_sure() and abs(step_s) > STEP_S + 1:
            raise AssertionError("a step was not noticed")
        if stepped and machine.steady_s - since_s < HELD_S - 1:
            assert not machine.sure.is_sure()


def test_a_clock_that_is_slewed_stays_sure() -> None:
    machine = Machine()
    machine.sure.agree(NOW_S)
    for _ in range(100):
        machine.run(60)
        machine.clock_s += STEP_S / 2
        assert machine.sure.is_sure()
