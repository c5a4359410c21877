"""Kills at random under a job, and what must hold afterwards. Used by test_job_kills and, at length, by `make soak`.

One worker does the job undisturbed. Another does the same while a seeded hand kills it, its inference process, the
process that reads the file, or all of them, at work and while they start. Both must have made the same of the file.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soxr

from lab.media.material import RATE_HZ, encode
from lab.media.speech import speech
from lab.patience import until
from lab.worker.peers import Worker, alive, launch, worker

ENVIRON = {
    "ASR__ENGINE": "moonshine",  # starts in half a second
    "SIP__ENABLED": "false",
    "FILES__PARALLEL_SEGMENTS": "2",
    "LOG__LEVEL": "debug",  # says `segment` for each that has been stored
}
AHEAD = 2
"""Stretches in work, `FILES__PARALLEL_SEGMENTS`: so many may be stored after the death of whoever has made them."""
PER_KILL = 5
"""Stretches to a kill: more than the engine recognises while the hand of `PAUSE_S` waits."""
PAUSE_S = 0.25
"""Before a kill, at most."""
GAP_S = 0.7
SPOKEN_HZ = 8000
PROMPTS = (
    "activated", "all-circuits-busy-now", "call-waiting", "conf-hasjoin", "conf-lockednow", "from-unknown-caller",
    "one-moment-please", "please-try-again", "speed-dial", "vm-deleted", "vm-incorrect", "vm-password",
)  # fmt: skip
"""Of one phrase each."""
ORPHAN_S = 5.0
PATIENCE_S = 60.0
INFERENCE, READER = "asr.inference.process", "mediaworker.files.decoder"
WHAT = {"worker": 25, "inference": 30, "reader": 30, "all": 15}
SEGMENT = re.compile(r"\] segment +job=\S+ number=(\d+)")


@dataclass
class Report:
    stretches: int = 0
    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By what was killed and when."""
    lives: int = 1
    """Of the worker."""
    unlogged: int = 0
    """Stretches that had been stored when their worker was killed, and had not been logged."""
    undisturbed_s: float = 0.0
    disturbed_s: float = 0.0

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{number} {what} {when}" for (what, when), number in sorted(self.kills.items()))
        return [
            f"kills                      {self.kills.total()}: {kinds}",
            f"stretches                  {self.stretches}, text and times as undisturbed",
            f"lives of the worker        {self.lives}",
            f"stored, but not logged     {self.unlogged}",
            f"seconds                    {self.disturbed_s:.0f} (undisturbed: {self.undisturbed_s:.0f})",
        ]


def recording(path: Path, stretches: int, seed: int, codec: str = "pcm_s16le", rate: int = RATE_HZ) -> None:
    """A prompt in each stretch, some 2.2 s with the pause behind it."""
    rng = np.random.default_rng(seed)
    pieces = [rng.normal(0, 80, SPOKEN_HZ)]
    for _ in range(stretches):
        pieces += [speech(str(rng.choice(PROMPTS))), rng.normal(0, 80, round(GAP_S * SPOKEN_HZ))]
    samples = np.concatenate(pieces).astype(np.int16)
    encode(path, soxr.resample(samples, SPOKEN_HZ, RATE_HZ), codec, rate)


def submit(running: Worker, path: Path, **fields: str) -> str:
    """The id of a job with the file."""
    with path.open("rb") as file:
        answer = httpx.post(f"{running.url}/v1/jobs", files={"file": (path.name, file)}, data=fields, timeout=30)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def finished(running: Worker, job_id: str, timeout_s: float = 300) -> dict[str, Any]:
    """The job, once it has ended."""

    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = running.get(f"/v1/jobs/{job_id}")
        return job if job["status"] not in ("queued", "running") else None

    found: dict[str, Any] = until(look, timeout_s, "the job ends")
    return found


def rows(data_dir: Path, job_id: str) -> dict[int, str]:
    """Number → stored segment; readable while the worker runs, and when it is dead."""
    with contextlib.closing(sqlite3.connect(data_dir / "jobs.sqlite3")) as store:
        return dict(store.execute("SELECT number, segment FROM segments WHERE job_id = ?", (job_id,)))


@dataclass(frozen=True)
class Made:
    """What has become of the recording."""

    job: dict[str, Any]
    result: Any
    rows: dict[int, str]

    @classmethod
    def of(cls, running: Worker, job_id: str) -> Made:
        return cls(finished(running, job_id), running.get(f"/v1/jobs/{job_id}/result"), rows(running.data_dir, job_id))


class JobChaos:
    """One job, killed and killed again."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.random = random.Random(seed)
        self.report = Report()
        self.folder, self.seed = folder, seed
        self.recording = folder / "words.wav"
        self.job_id = ""
        self._stored_at: dict[str, int] = {}
        """By what was killed, how many were stored when it was last."""
        self._lives: list[tuple[int, set[int]]] = [(0, set())]
        """Of each life of the worker, where its log begins and what was stored by then."""

    def run(self, kills: int, progress: Callable[[str], None] = lambda line: None) -> Report:
        """Raises AssertionError."""
        report = self.report
        report.stretches = PER_KILL * kills
        recording(self.recording, report.stretches, self.seed)
        for name in ("calm", "wild"):
            (self.folder / name).mkdir()
        with ThreadPoolExecutor(1) as other:
            calm = other.submit(self._undisturbed)
            self.worker = launch(self.folder / "wild", **ENVIRON)
            try:
                made = self._disturbed(kills, progress)
            finally:
                code = self.worker.stop()
            self._check(made, calm.result())
        log = self.worker.log.read_text(errors="replace")
        assert code == 0 and "Traceback" not in log, log[-6000:]
        self._check_log(log, set(made.rows))
        return report

    def _undisturbed(self) -> Made:
        started = time.monotonic()
        with worker(self.folder / "calm", **ENVIRON) as running:
            made = Made.of(running, submit(running, self.recording))
        self.report.undisturbed_s = time.monotonic() - started
        return made

    def _disturbed(self, kills: int, progress: Callable[[str], None]) -> Made:
        started = time.monotonic()
        until(lambda: alive(self.worker), PATIENCE_S)
        self.job_id = submit(self.worker, self.recording)
        while (done := self.report.kills.total()) < kills:
            progress(f"{done} kills, {len(self.stored())} stretches")
            # Over the whole of the job, and some are left for the end: not every prompt is a stretch of its own.
            due = int(0.9 * self.report.stretches) * done // (kills + 1)
            until(lambda due=due: len(self.stored()) >= due, PATIENCE_S, "the job goes on")
            time.sleep(self.random.uniform(0, PAUSE_S))
            self._strike()
        made = Made.of(self.worker, self.job_id)
        self.report.disturbed_s = time.monotonic() - started
        return made

    def stored(self) -> set[int]:
        return set(rows(self.worker.data_dir, self.job_id))

    # -- kills ------------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        """One kill, or two: the second while what was killed starts again."""
        what = self.random.choices(list(WHAT), list(WHAT.values()))[0]
        again = self.random.random() < 0.25
        if what in ("worker", "all"):
            self._end_worker(what, "at work")
            if again:
                self.worker.start_again()
                time.sleep(self.random.uniform(0, 1.5))
                self._end_worker("worker", "starting")
            self.worker.start_again()
            until(lambda: alive(self.worker), PATIENCE_S, "the worker is back")
        elif not self._may(what) or (pid := self._child(what)) is None:
            self._strike()  # somebody else
        else:
            self._kill(what, "at work", pid)
            if again and what == "inference":
                until(lambda: self._child(what) not in (None, pid), PATIENCE_S, "another inference process")
                time.sleep(self.random.uniform(0, 0.8))
                self._kill(what, "starting", self._child(what))

    def _may(self, what: str) -> bool:
        """Not before something has come of it since the last time: what dies again and again without that counts as
        broken, by design, and is not meant here."""
        before = self._stored_at.get(what)
        return before is None or len(self.stored()) > before + AHEAD

    def _kill(self, what: str, when: str, *pids: int | None) -> None:
        self.report.kills[what, when] += 1
        if what in ("inference", "reader"):
            self._stored_at[what] = len(self.stored())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

    def _end_worker(self, what: str, when: str) -> None:
        """It is gone, and by themselves all that it has started."""
        children = [pid for pid, _ in self._children()]
        pids = [self.worker.process.pid, *(children if what == "all" else ())]
        self.random.shuffle(pids)
        self._kill(what, when, *pids)
        self.worker.process.wait()
        deadline = time.monotonic() + ORPHAN_S
        while any(map(_runs, children)):
            assert time.monotonic() < deadline, "a process outlives its worker"
            time.sleep(0.02)
        self.report.lives += 1
        self._lives.append((self.worker.log.stat().st_size, self.stored()))
        self._stored_at.clear()

    def _child(self, what: str) -> int | None:
        module = INFERENCE if what == "inference" else READER
        return next((pid for pid, command in self._children() if module in command), None)

    def _children(self) -> Iterator[tuple[int, str]]:
        tasks = Path(f"/proc/{self.worker.process.pid}/task")
        with contextlib.suppress(OSError):
            for thread in tasks.iterdir():
                for pid in (thread / "children").read_text().split():
                    with contextlib.suppress(OSError):
                        yield int(pid), Path(f"/proc/{pid}/cmdline").read_text()

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check(self, made: Made, calm: Made) -> None:
        report = self.report
        assert (made.job["status"], made.job.get("error")) == ("completed", None)
        assert "warnings" not in made.job, made.job
        assert made.job["progress"] == calm.job["progress"]
        assert len(calm.rows) >= report.stretches * 0.9, "the recording has as many stretches as it should"
        assert calm.result["text"] and made.result == calm.result
        assert made.rows == calm.rows
        assert not list((self.worker.data_dir / "jobs").iterdir()), "the upload is erased"
        report.stretches = len(made.rows)

    def _check_log(self, log: str, numbers: set[int]) -> None:
        """What is logged has been stored in this life, once, and is still there after it. A kill that comes between
        costs the line."""
        data = log.encode()
        lives = [*self._lives, (len(data), numbers)]
        for (begin, before), (end, after) in pairwise(lives):
            came = [int(number) for number in SEGMENT.findall(data[begin:end].decode())]
            assert len(came) == len(set(came)), f"{sorted(came)} in one life"
            assert not before & set(came), f"{sorted(before & set(came))} were stored already"
            assert set(came) <= after, f"{sorted(set(came) - after)} are not there any more"
            unlogged = after - before - set(came)
            assert len(unlogged) <= (AHEAD if after is not numbers else 0), f"{sorted(unlogged)} are not in the log"
            self.report.unlogged += len(unlogged)


def _runs(pid: int) -> bool:
    """A process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
