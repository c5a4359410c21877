"""Hold: who is, since when, and for how long nobody could be heard."""

from __future__ import annotations

from mediaworker.calls.hold import HoldState

BOTH = {"a", "b"}


def test_hold_counts_from_when_the_last_leg_is_held_until_one_is_heard() -> None:
    hold = HoldState()
    assert hold.hold({"a"}) and not hold.hold({"a"})
    hold.update(BOTH, 1.0)
    assert hold.total_s(5.0) == 0.0
    assert hold.hold(BOTH)
    hold.update(BOTH, 5.0)
    hold.update(BOTH, 6.0)
    assert hold.total_s(7.5) == 2.5
    assert hold.resume({"b"}) and not hold.resume({"b"})
    hold.update(BOTH, 8.0)
    assert hold.total_s(100.0) == 3.0
    hold.update({"a"}, 9.0)
    assert hold.total_s(10.0) == 4.0, "the other has gone"
    hold.stop(11.0)
    hold.stop(20.0)
    assert hold.total_s(100.0) == 5.0


def test_a_leg_that_joins_is_heard() -> None:
    hold = HoldState()
    hold.hold(BOTH)
    hold.update(BOTH, 0.0)
    hold.update(BOTH | {"c"}, 2.0)
    assert hold.total_s(9.0) == 2.0


def test_a_leg_whose_stream_is_gone_is_held_and_may_be_held_with_it_again() -> None:
    hold = HoldState()
    hold.leave("a")
    assert hold.has_left("a") and not hold.has_left("b")
    assert hold.hold({"a"}), "its stream is there again, on hold"
    assert not hold.has_left("a") and not hold.hold({"a"})
    hold.leave("a")
    assert hold.resume({"a"}) and not hold.has_left("a")
    hold.update({"a"}, 1.0)
    assert hold.total_s(9.0) == 0.0


def test_without_legs_nobody_is_held() -> None:
    hold = HoldState()
    hold.update(set(), 1.0)
    assert hold.total_s(9.0) == 0.0 and not hold.resume({"a"})
