"""The power goes: acknowledged jobs are still there, and of the events a whole beginning is."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import httpx
import pytest

from lab.chaos.jobs import ENVIRON, finished, recording, submit
from lab.chaos.power import PowerChaos
from lab.chaos.power_cut import Disk
from lab.events.samples import final, running_hub, started
from lab.patience import until
from lab.worker.peers import alive, launch
from mediaworker.events.store import FILE
from mediaworker.events.subscription import ResumeError

CUTS = 3
SEED = 16


@pytest.mark.timeout(200)
async def test_power_cuts_under_live_calls_and_jobs(tmp_path: Path) -> None:
    report = await PowerChaos(tmp_path, seed=SEED).run(CUTS)
    print(*report.lines(), sep="\n")  # noqa: T201 - shown when it fails
    assert report.jobs and report.finals


def test_a_job_is_on_the_disk_when_its_201_is_here(tmp_path: Path) -> None:
    """The first of its worker, so that every folder and file is new; cut in the moment of the answer."""
    sound = tmp_path / "word.wav"
    recording(sound, 1, 1)
    disk = Disk(tmp_path / "data")
    named = ENVIRON | {"JOBS__ROOTS": f'["{tmp_path}"]', "FILES__MIN_FREE_MB": "1"}
    running = launch(tmp_path, disk.environ, **named)
    try:
        until(lambda: alive(running), 60)
        jobs = [submit(running, sound)]
        answer = httpx.post(f"{running.url}/v1/jobs", json={"path": str(sound)}, timeout=30)
        jobs.append(answer.json()["id"])
        running.process.kill()
        running.process.wait()
        disk.cut()
        running.start_again()
        until(lambda: alive(running), 60)
        assert [finished(running, job_id)["status"] for job_id in jobs] == ["completed"] * 2
    finally:
        started = time.monotonic()
        assert running.stop() == 0 and time.monotonic() - started < 30


async def test_a_row_that_a_power_cut_took_is_given_to_no_other_event(tmp_path: Path) -> None:
    """The clock of a machine without power may go back with it."""
    async with running_hub(tmp_path, clock=lambda: 1_800_000_000.0) as hub:
        hub.publish("c1", 0, started())
        await hub.flush()
        kept = hub.cursor.row
        for number in range(50):
            hub.publish("c1", number, final(f"u{number}"))
        await hub.flush()
        last = hub.cursor
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as store, store:
        store.execute("DELETE FROM events WHERE id > ?", (kept,))
        store.execute("UPDATE calls SET record = json_set(record, '$.seq', 1, '$.state', 'live', '$.ended_at', NULL)")
    async with running_hub(tmp_path, clock=lambda: 1_000_000_000.0) as hub:
        hub.publish("c2", 0, started())
        await hub.flush()
        rows = await hub.read(lambda database: database.page(kept, 2**62, -1))
        assert len(rows) == 3 and min(row for row, _ in rows) > last.row
        with pytest.raises(ResumeError):
            await anext(hub.subscribe(after=str(last)))
