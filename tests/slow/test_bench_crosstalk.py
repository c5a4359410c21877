"""The bench of crosstalk, for two minutes of calls."""

from __future__ import annotations

from benchmarks.crosstalk import measure


def test_crosstalk_is_withheld_and_nothing_else() -> None:
    found = measure(-15, "line", minutes=2, seed=1)
    assert found.counted["own"] > 20 and not found.counted["own withheld"]
    assert found.counted["crosstalk withheld"] > found.counted["crosstalk"] / 2 > 0 and found.cpu_s > 0
    alone = measure(None, "line", minutes=1, seed=2)
    assert alone.counted["own"] > 5 and not alone.counted["own withheld"] + alone.counted["crosstalk withheld"]
