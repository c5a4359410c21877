"""Kill -9 at random moments of a job: the same result as undisturbed, and nothing that was stored is done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.jobs import JobChaos

KILLS = 20
SEED = 3


@pytest.mark.timeout(300)
def test_twenty_kills_under_a_job(tmp_path: Path) -> None:
    report = JobChaos(tmp_path, seed=SEED).run(KILLS)
    print(*report.lines(), sep="\n")  # noqa: T201 - shown when it fails
