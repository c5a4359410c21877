"""The jobs of a cluster while NATS is away."""

from __future__ import annotations

from pathlib import Path

from config import Settings
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.jobs import ClusterJobStore
from mediaworker.files.options import Options
from mediaworker.jobs.record import Job, Source


async def test_a_job_that_cannot_be_left_to_others_waits_for_this_worker(tmp_path: Path) -> None:
    """It was running when the worker was ended, and by its record it still is."""

    async def on_ready() -> None: ...

    connection = NatsConnection(Settings().cluster, worker="one", on_ready=on_ready)
    store = ClusterJobStore(connection, Settings(data_dir=str(tmp_path)), clock=lambda: 1.0)
    store.open = {
        name: Job(name, "ann", Source("a.wav", 4), Options(), created_s=1.0, state="running", worker=worker)
        for name, worker in (("own", ""), ("another's", "two"))
    }
    for name in store.open:
        await store.release(name)
    assert {name: job.state for name, job in store.open.items()} == {"own": "queued", "another's": "running"}
    assert store.trouble is not None and "NATS" in store.trouble
