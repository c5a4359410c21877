"""The page of `make gpu`, written again from the figures of a whole rehearsal (`make gpu GPU=--rehearse`)."""

from __future__ import annotations

import json

from lab.house import ROOT
from tools.gpu.page import page, summary
from tools.gpu.parts import PARTS

DATA = ROOT / "tests" / "data" / "gpu"


def test_the_page_has_all_figures_of_a_run() -> None:
    whole = json.loads((DATA / "rehearsal.json").read_text(encoding="utf-8"))
    rows = whole["parts"]
    assert [row["name"] for row in rows] == [part.name for part in PARTS], "a new part needs a new rehearsal"
    assert summary(rows, rehearsal=True) == whole["summary"]
    assert page(whole) == (DATA / "rehearsal.md").read_text(encoding="utf-8")
