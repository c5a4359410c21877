"""A whole worker whose store files are damaged, deleted, or on a full disk: calls are taken, and it says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import urllib.error
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect

from audio.codecs.g711 import ulaw_encode
from lab.chaos.ext4 import Ext4
from lab.chaos.jobs import ENVIRON, finished, recording, submit
from lab.chaos.kills import PAUSE
from lab.engine.listener import LISTENER, LISTENER_PATH, Limit
from lab.media.speech import speech
from lab.patience import until
from lab.worker.peers import Worker, alive, launch, worker
from mediaworker.cli.stream import StreamTarget, stream
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

ONCE = ulaw_encode(np.concatenate([speech("vm-goodbye"), PAUSE]))
TWICE = ulaw_encode(np.concatenate([speech("vm-goodbye"), PAUSE, PAUSE, speech("auth-thankyou"), PAUSE]))
SETTINGS = ENVIRON | LISTENER | {"MEDIA__SILENCE_AFTER_S": "30", "FILES__MIN_FREE_MB": "1"}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "words.wav"
    recording(path, 3, 7)
    return path


def ready(running: Worker) -> dict[str, Any]:
    return dict(httpx.get(f"{running.url}/readyz").json())


async def call(running: Worker, codes: bytes = TWICE) -> str:
    """Two utterances with a pause in between; the CallSid."""
    writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
    await stream(StreamTarget(running.twilio, "", {}, False), {}, writer, schedule(writer, {"inbound": codes}, {}))
    return writer.call_sid


async def durable(running: Worker, after: str = "") -> AsyncIterator[dict[str, Any]]:
    url = f"ws://127.0.0.1:{running.http_port}/v1/events" + (f"?after={after}" if after else "")
    async with connect(url, max_size=None, proxy=None) as socket:
        async for text in socket:
            event = json.loads(text)
            if event["type"] != "transcript.partial" and event.get("durable", event["type"] != "metrics"):
                yield event


def spoil(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(b"\0" * 4096 + path.read_bytes()[4096:])


async def test_damaged_files_keep_no_worker_from_starting_and_jobs_go_on(tmp_path: Path, words: Path) -> None:
    running = launch(tmp_path, LISTENER_PATH, **SETTINGS)
    try:
        await asyncio.to_thread(until, lambda: alive(running), 60)
        expected = await asyncio.to_thread(made, running, await asyncio.to_thread(submit, running, words))
        again = await asyncio.to_thread(submit, running, words, prompt="zero one two")
        running.process.kill()
        running.process.wait()
        for name in ("events.sqlite3", "jobs.sqlite3"):
            spoil(running.data_dir / name)
        running.start_again()
        await asyncio.to_thread(until, lambda: alive(running), 60)
        # What was answered 201 goes on though the store has lost it; what had ended lies in the file set aside.
        found = await asyncio.to_thread(running.get, "/v1/jobs")
        assert [job["id"] for job in found["items"]] == [again]
        said = await asyncio.to_thread(ready, running)
        assert said["status"] == "ready"
        for name, metric in (("events.sqlite3", "event_store"), ("jobs.sqlite3", "job_store")):
            assert any(f"{name} was damaged" in warning for warning in said["warnings"]), said
            assert any(f"{name}.damaged-" in warning for warning in said["warnings"]), said
            assert running.metric(f"mediaworker_{metric}_renewals_total") == 1
            assert running.metric(f"mediaworker_{metric}_files_set_aside") == 1
        assert await asyncio.to_thread(made, running, again) == expected
        # The same while it runs, under a call and a job.
        calling = asyncio.create_task(call(running))
        events = durable(running)
        async for event in events:
            if event["type"] == "transcript.final":
                break
        # Last, so that it has not ended by then: one that has would lie in the file that is deleted.
        third = await asyncio.to_thread(submit, running, words)
        for path in running.data_dir.glob("*.sqlite3*"):
            if ".damaged-" not in path.name:
                path.unlink()
        async for event in events:
            assert event.get("stored", True) or event["type"] != "call.ended"
            if event["type"] == "call.ended":
                break
        await calling
        assert await asyncio.to_thread(made, running, third) == expected
        said = await asyncio.to_thread(ready, running)
        assert any("events.sqlite3 was deleted" in warning for warning in said["warnings"]), said
        assert running.metric("mediaworker_event_store_renewals_total") == 2
        assert running.metric("mediaworker_job_store_renewals_total") == 2
        transcript = await asyncio.to_thread(running.get, f"/v1/calls/{event['call_id']}/transcript")
        assert len(transcript["segments"]) == 2, "the words from before the file was deleted are in the new one"
    finally:
        code = running.stop()
    log = running.log.read_text(errors="replace")
    assert code == 0 and "Traceback" not in log, log[-6000:]


def made(running: Worker, job_id: str) -> Any:
    """What became of the file."""
    assert finished(running, job_id)["status"] == "completed"
    return running.get(f"/v1/jobs/{job_id}/result")["segments"]


async def test_calls_are_taken_without_jobs_until_their_store_can_be_opened(tmp_path: Path, words: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with contextlib.closing(sqlite3.connect(data / "jobs.sqlite3")) as store:
        store.execute("PRAGMA user_version = 99")
    with worker(tmp_path, LISTENER_PATH, **SETTINGS) as running:
        said = await asyncio.to_thread(ready, running)
        assert said["status"] == "ready" and "jobs.sqlite3" in said["warnings"][0] and "newer" in said["warnings"][0]
        assert running.metric("mediaworker_job_store_ok") == 0
        with words.open("rb") as file:
            files = {"file": ("a.wav", file)}
            refused = await asyncio.to_thread(httpx.post, f"{running.url}/v1/jobs", files=files)
        assert refused.status_code == 503 and "newer" in refused.json()["detail"] and refused.headers["retry-after"]
        with pytest.raises(urllib.error.HTTPError, match="503"):
            running.get("/v1/jobs")
        await call(running, ONCE)
        (ended,) = await asyncio.to_thread(running.wait_ended, 1)
        transcript = running.get(f"/v1/calls/{ended['call_id']}/transcript")
        assert [bool(segment["text"]) for segment in transcript["segments"]] == [True]
        (data / "jobs.sqlite3").unlink()
        await asyncio.to_thread(until, lambda: running.metric("mediaworker_job_store_ok") == 1, 10)
        assert await asyncio.to_thread(made, running, await asyncio.to_thread(submit, running, words))
        assert ready(running)["warnings"] == []


# -- no room -----------------------------------------------------------------------------------------------------------


async def test_what_a_full_disk_does_not_take_is_marked(small_disk: Path, tmp_path: Path) -> None:
    with worker(tmp_path, LISTENER_PATH, **SETTINGS, DATA_DIR=str(small_disk)) as running:
        running.data_dir = small_disk
        ballast = small_disk / "ballast"
        calling = asyncio.create_task(call(running))
        seen: list[dict[str, Any]] = []
        async for event in durable(running):
            seen.append(event)
            finals = [event for event in seen if event["type"] == "transcript.final"]
            if len(finals) == 1 and not ballast.exists():
                await asyncio.to_thread(fill, ballast)
            if event["type"] == "call.ended":
                break
        await calling
        first = next(number for number, event in enumerate(seen) if event.get("stored") is False)
        assert all(event.get("stored") is False for event in seen[first:]), "until there is room"
        assert all("stored" not in event for event in seen[:first])
        assert [final.get("stored", True) for final in finals] == [True, False] and finals[1]["text"]
        unready = await asyncio.to_thread(httpx.get, f"{running.url}/readyz")
        assert unready.status_code == 503 and "events are not being stored" in unready.json()["detail"]
        assert running.metric("mediaworker_event_store_unstored_total") >= len(seen) - first
        # Who resumes meanwhile gets the same, mark and all; and once there is room, what is stored, without the mark.
        assert await resumed(running, seen) == seen[first:]
        ballast.unlink()
        await asyncio.to_thread(until, lambda: httpx.get(f"{running.url}/readyz").status_code == 200, 10)
        stored = [{key: value for key, value in event.items() if key != "stored"} for event in seen]
        assert await resumed(running, seen) == stored[first:], "with the seq and the cursor that they had"
        calls = [event for event in stored if event["call_id"] is not None]
        assert running.events(calls[0]["call_id"])[-len(calls) :] == calls


async def test_a_disk_that_becomes_read_only_is_told_and_nothing_accepted_is_lost(
    failing_disk: Ext4, tmp_path: Path, words: Path
) -> None:
    limit, data = Limit(tmp_path / "finals"), failing_disk.folder / "data"
    limit.set(1)
    settings = SETTINGS | {"DATA_DIR": str(data), "JOBS__RETRY_HOURS": "0.001"}
    running = launch(tmp_path, limit.environ, **settings)
    running.data_dir = data
    try:
        await asyncio.to_thread(until, lambda: alive(running), 60)
        jobs = [await asyncio.to_thread(submit, running, words) for _ in range(2)]
        calling = asyncio.create_task(call(running))
        started = await anext(event async for event in durable(running) if event["type"] == "call.started")
        failing_disk.fail()
        limit.lift()
        for path, fields in (("/v1/jobs", {}), ("/v1/audio/transcriptions", {"model": "x"})):
            with words.open("rb") as file:
                files = {"file": ("a.wav", file)}
                refused = await asyncio.to_thread(httpx.post, running.url + path, files=files, data=fields)
            assert refused.status_code == 507 and "read-only" in refused.text
        await asyncio.to_thread(until, lambda: ready(running)["status"] == 503, 10)
        await asyncio.to_thread(until, lambda: ready(running)["warnings"], 10)
        said = ready(running)
        assert "read-only" in said["detail"] and "read-only" in said["warnings"][0]
        assert running.metric("mediaworker_job_store_ok") == running.metric("mediaworker_event_store_ok") == 0
        for job_id in jobs:
            failed = await asyncio.to_thread(finished, running, job_id)
            assert (failed["status"], failed["error"]["code"]) == ("failed", "gave_up")
            assert "read-only" in failed["error"]["message"]
        assert running.metric("mediaworker_jobs_queued") == 0 and running.metric("mediaworker_jobs_ended_total") == 2
        await calling
        assert running.stop() == 0
        assert "events are lost" in running.log.read_text()
        failing_disk.repair()
        running.start_again()
        await asyncio.to_thread(until, lambda: alive(running), 60)
        assert ready(running)["status"] == "ready"
        for job_id in jobs:  # nothing that was said of their end is on the disk
            assert await asyncio.to_thread(made, running, job_id)
        (ended,) = await asyncio.to_thread(running.wait_ended, 1)
        assert ended["call_id"] == started["call_id"]
        assert running.events(ended["call_id"])[-1]["reason"] == "worker_restart"
    finally:
        running.stop()
    assert "Traceback" not in running.log.read_text()


async def resumed(running: Worker, seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What comes after the last event that was stored at once, up to the end of the call."""
    first = next(number for number, event in enumerate(seen) if event.get("stored") is False)
    found = []
    async for event in durable(running, seen[first - 1]["cursor"]):
        if event["type"] != "hello":
            found.append(event)
        if event["type"] == "call.ended":
            break
    return found


def fill(path: Path) -> None:
    """To the last byte, while the worker writes as well."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while os.write(file.fileno(), bytes(4096)):
            pass
