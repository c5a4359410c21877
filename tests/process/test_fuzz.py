"""The fuzzer's targets, with the first inputs of each, and everything that has ever broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz.__main__ import FOUND, run
from tools.fuzz.targets import TARGETS

INPUTS = 2_000
"""`make fuzz` goes on for as long as it is asked to."""
SHARES = sum(target.share for target in TARGETS.values())


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks(name: str) -> None:
    crashes, _ = run(name, INPUTS * TARGETS[name].share // SHARES, seed=1)
    assert not crashes, f"kept in {FOUND}"


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.bin")), ids=lambda path: path.stem)
def test_what_broke_once_no_longer_does(path: Path) -> None:
    TARGETS[path.name.split("-")[0]].make()(path.read_bytes())
