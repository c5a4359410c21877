"""The real path: a worker, callers in processes of their own, and the worker's events as a client has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.words.calls import Condition, Line
from lab.network.ports import ports
from lab.worker.peers import COMMAND
from mediaworker.client import Client, schema

START_S = 60.0
ANSWER_S = 60.0
"""From the end of the audio to the last event."""
STAGGER_S = 0.25
"""Between two callers: each takes most of a core to start."""


class LiveFailed(Exception):
    """The worker or a caller did not do its part; the message is one line."""


@dataclass
class Worker:
    process: subprocess.Popen[bytes]
    http: str
    media_port: int
    sip_port: int

    def metric(self, name: str) -> float:
        """The sum over all its labels."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.partition(" ")[0].partition("{")[0] == f"mediaworker_{name}"]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def cpu_s(self) -> tuple[float, float]:
        """CPU time so far: of the inference process, and of the worker with it."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        inference = sum(_cpu_s(int(child)) for child in children)
        return inference, inference + _cpu_s(pid)


@dataclass
class Final:
    start_ms: int
    end_ms: int
    text: str
    language: str
    latency_ms: int
    lost_ms: int
    reason: str
    error: str | None


@dataclass
class Call:
    """What came of one call."""

    started: datetime | None = None
    finals: list[Final] = field(default_factory=list)
    first_partial_ms: list[float] = field(default_factory=list)
    """Of each utterance: from the start of speech to the first text."""
    partials: list[list[str]] = field(default_factory=list)
    """The texts of each utterance, in the order in which they were shown."""
    late: int = 0
    """Packets that came after they had been given up."""
    over: bool = False


@dataclass
class Run:
    calls: dict[int, Call]
    inference_s: float
    worker_s: float
    """CPU time."""
    shed_partials: int


@contextlib.contextmanager
def worker(folder: Path, settings: Mapping[str, str]) -> Iterator[Worker]:
    """Started, its engine loaded. `settings` keys are `SECTION__KEY`. Raises LiveFailed."""
    http, media, sip = ports(3)
    given = {
        "DATA_DIR": str(folder / "data"), "LOG__LEVEL": "warning", "SHUTDOWN_S": "2", "ASR__PRELOAD": "true",
        "PRIVACY__CARDS": "false", "HTTP__PORT": str(http), "MEDIA__PORT": str(media), "SIP__PORT": str(sip),
    }  # fmt: skip
    environ = os.environ | {f"MEDIAWORKER_{key}": value for key, value in (given | dict(settings)).items()}
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*COMMAND, "serve"], env=environ, cwd=folder, stdout=output, stderr=output)
    running = Worker(process, f"http://127.0.0.1:{http}", media, sip)
    try:
        deadline = time.monotonic() + START_S
        while not _ready(running):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LiveFailed(f"the worker did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _ready(running: Worker) -> bool:
    try:
        urllib.request.urlopen(f"{running.http}/readyz", timeout=5).close()
    except (OSError, urllib.error.URLError):
        return False
    return True


async def play(
    running: Worker, line: Line, condition: Condition, files: Mapping[int, Path], at_s: Mapping[int, float]
) -> Run:
    """The files, one a call, all at once and in real time. Raises LiveFailed.

    `at_s`: when each call begins, so that they do not all begin in the same moment.
    """
    calls: dict[int, Call] = defaultdict(Call)
    async with Client(running.http) as client:
        listening = asyncio.create_task(_listen(client, calls, len(files)))
        shed = running.metric("load_shed_partials_total") + running.metric("asr_shed_partials_total")
        before = running.cpu_s()
        callers = [
            asyncio.create_task(_caller(running, line, condition, number, file, at_s[number]))
            for number, file in files.items()
        ]
        try:
            await asyncio.gather(*callers)
            async with asyncio.timeout(ANSWER_S):
                await listening
        except TimeoutError:
            raise LiveFailed("not every call has ended a minute after its audio") from None
        finally:
            for task in (listening, *callers):
                task.cancel()
            await asyncio.gather(listening, *callers, return_exceptions=True)
        after = running.cpu_s()
        shed = running.metric("load_shed_partials_total") + running.metric("asr_shed_partials_total") - shed
    return Run(dict(calls), after[0] - before[0], after[1] - before[1], int(shed))


async def _caller(running: Worker, line: Line, condition: Condition, number: int, file: Path, at_s: float) -> None:
    await asyncio.sleep(at_s)
    if line.twilio:
        arguments = [f"ws://127.0.0.1:{running.media_port}/twilio/stream"]
    else:
        arguments = [f"sip:w{number}@127.0.0.1:{running.sip_port}", "--codec", line.codec.name]
        arguments += ["--payload-type", str(line.codec.payload_type), "--loss", str(condition.loss)]
        arguments += ["--seed", str(number)]
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "replay", str(file), "--to", *arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode:
        raise LiveFailed(f"a caller failed: {errors.decode(errors='replace').strip()[-500:]}")


async def _listen(client: Client, calls: dict[int, Call], count: int) -> None:
    """Until so many calls are over."""
    numbers: dict[str, int] = {}
    shown: dict[str, list[str]] = {}
    events = client.events().__aiter__()
    async with contextlib.aclosing(events):
        async for event in events:
            body = event.body
            if isinstance(body, schema.CallStarted):
                numbers[event.call_id or ""] = number_of(body)
                calls[numbers[event.call_id or ""]].started = datetime.fromisoformat(event.time)
            if event.call_id not in numbers:
                continue
            call = calls[numbers[event.call_id]]
            if isinstance(body, schema.TranscriptPartial):
                if body.utterance_id not in shown and call.started is not None:
                    since_s = (datetime.fromisoformat(event.time) - call.started).total_seconds()
                    call.first_partial_ms.append(1000 * since_s - body.start_ms)
                shown.setdefault(body.utterance_id, []).append(body.text)
            elif isinstance(body, schema.TranscriptFinal):
                call.partials.append(shown.pop(body.utterance_id, []))
                call.finals.append(
                    Final(
                        body.start_ms, body.end_ms, body.text, body.language, body.latency_ms, body.lost_ms,
                        body.reason, body.error,
                    )
                )  # fmt: skip
            elif isinstance(body, schema.CallEnded):
                call.over, call.late = True, sum(leg.late for leg in body.legs)
                if sum(each.over for each in calls.values()) == count:
                    return


def call_sid(number: int) -> str:
    return f"CA{number:032x}"


def number_of(started: schema.CallStarted) -> int:
    """Which call it is, by what its caller says."""
    if started.source == "twilio":
        return int(started.external_id[2:], 16)
    return int(started.to.removeprefix("sip:").partition("@")[0].removeprefix("w"))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
