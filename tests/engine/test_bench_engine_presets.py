"""The table of GPUs in the documentation is what the engine would do."""

from __future__ import annotations

from benchmarks.engine.limit import CHIPS
from benchmarks.engine.presets import MEMORY_GIB, table
from lab.worker.peers import ROOT


def test_the_page_shows_what_each_gpu_takes() -> None:
    assert MEMORY_GIB.keys() == CHIPS.keys()
    assert "\n".join(table()) in (ROOT / "docs" / "measurements" / "performance.md").read_text(encoding="utf-8")
