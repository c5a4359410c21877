"""Power cuts at random under live calls and jobs, and what must hold afterwards. Used by test_power_cuts, and at length
by `make soak`.

A worker takes calls and jobs without a pause. Again and again its power is cut: it is killed, and its folder is made
what had been synced (`power_cut.Disk`). A job that was answered 201 must end as if nothing had been. Of the events the
last ones may be gone, but what is left must be whole calls' stories, and no cursor may stand for another event than
before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from audio.codecs.g711 import ulaw_encode
from lab.chaos.jobs import ENVIRON, recording
from lab.chaos.kills import PAUSE
from lab.chaos.power_cut import Disk
from lab.events.story import check_story
from lab.media.speech import speech
from lab.worker.peers import Worker, alive, launch
from mediaworker.cli.stream import StreamError, StreamTarget, stream
from mediaworker.ingress.twilio.sender import StreamWriter, new_sid, schedule

JOB_PAUSE_S = 0.7
LOST_S = 3.0
"""A store is synced twice a second, where the machine gives it its turn."""
JOBS_OPEN = 40
"""Submitted and not ended, at most."""


@dataclass
class Report:
    cuts: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """By `reason` of their end."""
    jobs: int = 0
    """Answered 201, and completed."""
    unanswered: int = 0
    """Jobs that are there though the power went before their 201."""
    finals: int = 0
    seen: int = 0
    lost: int = 0
    """Events that a subscriber saw and that a cut took off the disk."""
    lost_finals: int = 0
    oldest_s: float = 0.0
    """Of the lost ones, before its cut."""
    back_s: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        back = sorted(self.back_s)
        return [
            f"power cuts                 {self.cuts}",
            f"jobs answered 201          {self.jobs}, lost 0, each completed with the text of an undisturbed one",
            f"jobs taken up unanswered   {self.unanswered}",
            f"calls in the store         {self.calls.total()}: "
            + ", ".join(f"{n} {reason}" for reason, n in self.calls.most_common()),
            f"finals in the store        {self.finals}, one for each speech.started, doubled 0",
            f"durable events seen        {self.seen}; a cut took {self.lost} of them, {self.lost_finals} finals; the "
            f"oldest was {self.oldest_s:.1f} s old",
            "cursors given twice        0",
            f"worker back after          {back[len(back) // 2]:.2f} s (max {back[-1]:.2f})" if back else "",
        ]


class PowerChaos:
    """One worker, its callers, its jobs, and somebody at the switch."""

    def __init__(self, folder: Path, *, seed: int, **environ: str) -> None:
        self.random, self.report, self.folder = random.Random(seed), Report(), folder
        # On a file system that gives no inode number twice, where there is one.
        memory = Path("/dev/shm")
        self._root = Path(tempfile.mkdtemp(prefix="power-", dir=memory if memory.is_dir() else folder))
        self.disk = Disk(self._root / "data")
        environ = ENVIRON | {"DATA_DIR": str(self.disk.path), "FILES__MIN_FREE_MB": "1"} | environ
        environ |= {"JOBS__MAX_QUEUED_PER_KEY": "1000"}
        self.worker: Worker = launch(folder, self.disk.environ, **environ)
        self.worker.data_dir = self.disk.path
        self.acknowledged: list[str] = []
        self.seen: dict[str, dict[str, Any]] = {}
        """By cursor."""
        self.faults: list[str] = []
        self._recording = folder / "word.wav"
        recording(self._recording, 1, 5)
        self._codes = ulaw_encode(np.concatenate([speech("vm-goodbye"), PAUSE]))
        self._busy = True
        self._cut_at: list[float] = []

    async def run(self, cuts: int, progress: Callable[[str], None] = lambda line: None) -> Report:
        """Raises AssertionError."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._alive()
            begun = [self._follow(), self._submit(), self._call(), self._call()]
            tasks = [asyncio.create_task(one) for one in begun]
            while self.report.cuts < cuts:
                await asyncio.sleep(self.random.uniform(0.2, 2.5))
                await self._cut()
                progress(f"{self.report.cuts} cuts, {len(self.acknowledged)} jobs")
                for task in tasks:
                    assert not task.done(), task
            self._busy = False
            await asyncio.gather(*tasks[1:])
            jobs = await self._jobs_ended(60 + 3 * len(self.acknowledged))
            await self._caught_up()
        finally:
            self._busy = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            code = await asyncio.to_thread(self.worker.stop)
            # To where it can be looked at, and not left in memory.
            await asyncio.to_thread(shutil.move, self._root, self.folder / "disk")
            self.disk.path = self.folder / "disk" / "data"
        log = self.worker.log.read_text(errors="replace")
        assert code == 0 and "Traceback" not in log and "set aside" not in log, log[-6000:]
        self._check(jobs)
        return self.report

    async def _cut(self) -> None:
        started = time.monotonic()
        self.worker.process.kill()
        self._cut_at.append(time.time())
        await asyncio.to_thread(self.worker.process.wait)
        self.disk.cut()
        self.report.cuts += 1
        self.worker.start_again()
        await self._alive()
        self.report.back_s.append(time.monotonic() - started)

    async def _alive(self) -> None:
        deadline = time.monotonic() + 60
        while not await asyncio.to_thread(alive, self.worker):
            assert time.monotonic() < deadline, "the worker is back"
            await asyncio.sleep(0.05)

    # -- who is there -------------------------------------------------------------------------------------------------

    async def _call(self) -> None:
        while self._busy:
            writer = StreamWriter(new_sid("MZ"), new_sid("CA"), new_sid("AC"))
            with contextlib.suppress(StreamError):
                messages = schedule(writer, {"inbound": self._codes}, {})
                await stream(StreamTarget(self.worker.twilio, "", {}, False), {}, writer, messages)
            await asyncio.sleep(0.1)

    async def _submit(self) -> None:
        body = self._recording.read_bytes()
        async with httpx.AsyncClient(base_url=self.worker.url, timeout=10) as client:
            while self._busy:
                with contextlib.suppress(httpx.TransportError):
                    open_ = [job for job in await self._jobs(client) if job["status"] in ("queued", "running")]
                    if len(open_) < JOBS_OPEN:
                        answer = await client.post("/v1/jobs", files={"file": ("word.wav", body)})
                        assert answer.status_code == 201, answer.text
                        self.acknowledged.append(answer.json()["id"])
                await asyncio.sleep(self.random.uniform(0, 2 * JOB_PAUSE_S))

    async def _jobs(self, client: httpx.AsyncClient) -> list[dict[str, Any]]:
        found, after = list[dict[str, Any]](), ""
        while True:
            page = (await client.get(f"/v1/jobs?limit=500{after}")).json()
            found += page["items"]
            if not page["next"]:
                return found
            after = f"&after={page['next']}"

    async def _follow(self) -> None:
        after = ""
        while True:
            try:
                url = f"ws://127.0.0.1:{self.worker.http_port}/v1/events?call=*{after}"
                async with connect(url, max_size=None, ping_interval=None, proxy=None) as socket:
                    async for text in socket:
                        event = json.loads(text)
                        if event["type"] == "hello":
                            if not after:
                                after = f"&after={event['cursor'].split(':')[0]}:0"
                                break
                        elif event["type"] != "transcript.partial" and event.get("durable", event["type"] != "metrics"):
                            event.pop("stored", None)  # a disk that is late has it the second time
                            known = self.seen.setdefault(event["cursor"], event)
                            if known != event:
                                self.faults.append(f"{known} and {event} have one cursor")
                            after = f"&after={event['cursor']}"
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code == 4009:
                    after = ""  # a cut took what it stood for: everything from the beginning
            except (OSError, InvalidHandshake, TimeoutError):
                pass
            await asyncio.sleep(0.1)

    # -- afterwards ---------------------------------------------------------------------------------------------------

    async def _jobs_ended(self, timeout_s: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout_s
        async with httpx.AsyncClient(base_url=self.worker.url, timeout=30) as client:
            while True:
                jobs = await self._jobs(client)
                if all(job["status"] not in ("queued", "running") for job in jobs):
                    break
                assert time.monotonic() < deadline, [job for job in jobs if job["status"] in ("queued", "running")][:3]
                await asyncio.sleep(0.5)
            texts = {(await client.get(f"/v1/jobs/{job['id']}/result?format=txt")).text for job in jobs}
        assert len(texts) <= 1, texts
        return jobs

    async def _caught_up(self) -> None:
        deadline = time.monotonic() + 30
        while (await asyncio.to_thread(self._stored))[-1]["cursor"] not in self.seen:
            assert time.monotonic() < deadline, "the subscriber has seen everything"
            await asyncio.sleep(0.1)

    def _stored(self) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(self.disk.path / "events.sqlite3")) as store:
            return [json.loads(row) for (row,) in store.execute("SELECT json FROM events ORDER BY id")]

    def _check(self, jobs: list[dict[str, Any]]) -> None:
        report, stored = self.report, self._stored()
        ids = {job["id"] for job in jobs}
        assert set(self.acknowledged) <= ids, f"lost: {sorted(set(self.acknowledged) - ids)}"
        assert all(job["status"] == "completed" for job in jobs), jobs
        report.jobs, report.unanswered = len(self.acknowledged), len(ids) - len(self.acknowledged)
        assert not list((self.disk.path / "jobs").iterdir()), "the uploads are erased"
        assert not self.faults, self.faults[:3]
        for event in stored:
            assert self.seen.get(event["cursor"], event) == event, "what was seen under a cursor stays under it"
        gone = [event for cursor, event in self.seen.items() if cursor not in {event["cursor"] for event in stored}]
        report.seen, report.lost = len(self.seen), len(gone)
        report.lost_finals = sum(event["type"] == "transcript.final" for event in gone)
        for event in gone:
            at = datetime.fromisoformat(event["time"]).timestamp()
            report.oldest_s = max(report.oldest_s, min(cut - at for cut in self._cut_at if cut >= at))
        assert report.oldest_s < LOST_S
        calls: dict[str, list[dict[str, Any]]] = {}
        for event in stored:
            if event["call_id"] is not None:
                calls.setdefault(event["call_id"], []).append(event)
        for events in calls.values():
            report.finals += len(check_story(events))
            report.calls[events[-1]["reason"]] += 1
