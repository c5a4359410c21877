"""A job as its owner sees it."""

from __future__ import annotations

import msgspec
import pytest

from mediaworker.files.options import Options
from mediaworker.jobs.notifier import body
from mediaworker.jobs.record import Job, Source, State, Webhook, public

JOB = Job(id="j1", owner="ops", source=Source("a.wav", 1234), options=Options(), created_s=1_700_000_000.5)


def test_a_new_job() -> None:
    assert public(JOB) == {
        "id": "j1", "status": "queued", "file": {"name": "a.wav", "bytes": 1234},
        "options": msgspec.to_builtins(Options()), "created_at": "2023-11-14T22:13:20.500Z", "started_at": None,
        "ended_at": None, "progress": {"done_s": 0.0, "duration_s": None, "ratio": None, "segments": 0},
    }  # fmt: skip


def test_all_that_may_be_there() -> None:
    job = msgspec.structs.replace(
        JOB, source=Source("a.wav", 1, path="/srv/a.wav"), state="failed", started_s=1_700_000_001.0,
        ended_s=1_700_000_002.0, duration_s=3.00049, done_s=2.00049, chunks=4, failed_chunks=1, code="crashed",
        error="it died", webhook=Webhook("https://x.example", "waiting", 2),
    )  # fmt: skip
    found = public(job)
    assert found["file"] == {"name": "a.wav", "bytes": 1, "path": "/srv/a.wav"}
    assert found["started_at"] == "2023-11-14T22:13:21.000Z" and found["ended_at"] == "2023-11-14T22:13:22.000Z"
    assert found["progress"] == {"done_s": 2.0, "duration_s": 3.0, "ratio": 0.6667, "segments": 4}
    assert found["warnings"] == {"failed_segments": 1, "damaged_packets": 0, "clock_jumps": 0}
    assert found["error"] == {"code": "crashed", "message": "it died"}
    assert found["webhook"] == {"url": "https://x.example", "status": "waiting", "attempts": 2}
    for changed in ({"damaged_packets": 2, "clock_jumps": 0}, {"damaged_packets": 0, "clock_jumps": 3}):
        other = msgspec.structs.replace(JOB, damaged=changed["damaged_packets"], jumps=changed["clock_jumps"])
        assert public(other)["warnings"] == {"failed_segments": 0, **changed}
    assert msgspec.json.decode(body(job)) == {
        "type": "job.failed", "timestamp": "2023-11-14T22:13:22.000Z", "data": found,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "done_s", "duration_s", "ratio"),
    [
        ("running", 5.0, 4.0, 1.0),
        ("running", 1.0, None, None),
        ("completed", 1.0, 4.0, 1.0),
        ("running", 1.0, 0.0, None),
    ],
)
def test_progress(state: State, done_s: float, duration_s: float | None, ratio: float | None) -> None:
    job = msgspec.structs.replace(JOB, state=state, done_s=done_s, duration_s=duration_s)
    assert public(job)["progress"]["ratio"] == ratio


def test_which_states_are_active() -> None:
    states: tuple[State, ...] = ("queued", "running", "completed", "failed", "cancelled")
    assert [msgspec.structs.replace(JOB, state=state).active for state in states] == [True, True, False, False, False]


def test_what_a_record_does_not_say_is_as_it_was_in_the_beginning() -> None:
    """Defaults are left out on the disk: another one would change what is there."""
    assert msgspec.json.decode(msgspec.json.encode(JOB), type=Job) == JOB
    assert set(msgspec.json.decode(msgspec.json.encode(JOB))) == {"id", "owner", "source", "options", "created_s"}
    assert (JOB.channels, JOB.chunks, JOB.failed_chunks, JOB.damaged) == (1, 0, 0, 0)
    assert (JOB.done_s, JOB.not_before_s, JOB.waits_since_s, JOB.state) == (0.0, 0.0, 0.0, "queued")
    webhook = Webhook("https://x.example")
    assert (webhook.state, webhook.attempts, webhook.next_s, webhook.error) == ("waiting", 0, 0.0, "")
    assert (JOB.source.mtime_ns, JOB.source.path) == (0, "")
