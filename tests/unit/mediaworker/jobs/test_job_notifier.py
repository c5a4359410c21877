"""Which jobs' webhooks are owed, and how each goes on after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from config import ConfigError, Settings
from config.load import parse
from mediaworker.cluster.connection import NatsConnection
from mediaworker.cluster.jobs import ClusterJobStore
from mediaworker.files.options import Options
from mediaworker.jobs.notifier import JobNotifier
from mediaworker.jobs.record import Job, Source, Webhook
from mediaworker.jobs.store import JobStore

NOW_S = 1_800_000_000.0
URL = "https://x.example/told"


def job(name: str) -> Job:
    """One that has ended, and whose end nobody has been told."""
    ended = Job(name, "ann", Source("a.wav", 4), Options(), created_s=NOW_S - 90, state="completed", ended_s=NOW_S - 60)
    return replace(ended, webhook=Webhook(URL))


@pytest.fixture
def notifier_of(tmp_path: Path) -> Callable[..., JobNotifier]:
    def notifier_of(*jobs: Job) -> JobNotifier:
        """At a worker that has these jobs open."""
        store = JobStore(Settings(data_dir=str(tmp_path)), clock=lambda: NOW_S)
        store.open = {each.id: each for each in jobs}
        return JobNotifier(store, Settings())

    return notifier_of


async def test_the_ends_that_are_owed_are_told_once(notifier_of: Callable[..., JobNotifier]) -> None:
    running = replace(job("running"), state="running", ended_s=None)
    notifier = notifier_of(job("ended"), running, replace(job("untold"), webhook=None))
    notifier.collect()
    notifier.collect()
    (message,) = notifier.outbox.lanes.ready(NOW_S, 9)
    assert (message.id, message.lane, message.url, message.since_s) == ("ended", "ended", URL, NOW_S - 60)
    said = json.loads(message.body())
    assert (said["type"], said["data"]["id"]) == ("job.completed", "ended")
    notifier.outbox.lanes.done(message, NOW_S)
    assert not list(notifier.outbox.lanes.ready(NOW_S, 9)), "nothing stands behind it"
    await notifier.outbox.close()


async def test_a_webhook_goes_on_after_a_restart_where_it_was(notifier_of: Callable[..., JobNotifier]) -> None:
    """Its earlier tries count for the wait after the next one, which does not come before its time."""
    tried = replace(job("tried"), webhook=Webhook(URL, "waiting", 3, NOW_S + 120))
    notifier = notifier_of(tried, job("new"))
    notifier.collect()
    lanes = notifier.outbox.lanes
    assert [(each.id, each.tries) for each in lanes.ready(NOW_S, 9)] == [("new", 0)]
    assert lanes.next_due_s() == NOW_S + 120
    assert [(each.id, each.tries) for each in lanes.ready(NOW_S + 120, 9)] == [("tried", 3)]
    await notifier.outbox.close()


async def test_in_a_cluster_each_worker_tells_the_ends_that_it_has_written(tmp_path: Path) -> None:
    async def on_ready() -> None: ...

    connection = NatsConnection(Settings().cluster, worker="one", on_ready=on_ready)
    store = ClusterJobStore(connection, Settings(data_dir=str(tmp_path)), clock=lambda: NOW_S)
    store.open = {"own": job("own"), "another's": replace(job("another's"), worker="two")}
    notifier = JobNotifier(store, Settings())
    notifier.collect()
    assert [message.id for message in notifier.outbox.lanes.ready(NOW_S, 9)] == ["own"]
    await notifier.outbox.close()


@pytest.mark.parametrize(("left_s", "state"), [(10, "waiting"), (0, "failed")])
async def test_a_webhook_is_given_up_after_its_hours(
    notifier_of: Callable[..., JobNotifier], left_s: float, state: str
) -> None:
    """They are counted from the end of the job; its first try is repeated in 5 s."""
    ended_s = NOW_S + left_s - 3600 * Settings().jobs.retry_hours
    private = Webhook("http://127.0.0.1/told")  # which is refused without a connection
    notifier = notifier_of(replace(job("old"), ended_s=ended_s, webhook=private))
    notifier.collect()
    (message,) = notifier.outbox.lanes.ready(NOW_S, 9)
    assert (await notifier.outbox.attempt(message)).state == state
    await notifier.outbox.close()


def test_a_secret_that_cannot_sign_is_an_error_at_the_start(tmp_path: Path) -> None:
    store = JobStore(Settings(data_dir=str(tmp_path)), clock=lambda: NOW_S)
    with pytest.raises(ConfigError, match=r"jobs\.webhook_secret"):
        JobNotifier(store, parse({"jobs": {"webhook_secret": "too-short"}}))
