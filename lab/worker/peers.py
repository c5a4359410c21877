"""Real processes for the end-to-end tests: the worker, SIPp, and the project's own phone and Twilio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.house import ROOT
from lab.network.ports import ports
from lab.patience import seconds, until

TINY = ROOT / "models" / "qwen3-asr-tiny"
"""The engine of the tests: `auto` takes it."""
COMMAND = [sys.executable, "-m", "mediaworker.cli.main"]
LOGS: deque[Path] = deque(maxlen=8)
"""Of the workers and engine servers that were started last, for the report of a test that fails."""


@dataclass
class Worker:
    """A `mediaworker serve` of its own ports and data folder."""

    process: subprocess.Popen[bytes]
    http_port: int
    media_port: int
    sip_port: int
    data_dir: Path
    log: Path
    environ: dict[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = None
    """Whom it trusts, when the worker speaks HTTPS."""

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.http_port}"

    @property
    def twilio(self) -> str:
        return f"ws://127.0.0.1:{self.media_port}/twilio/stream"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=seconds(10), context=self.tls) as answer:
            body = answer.read().decode()
            return json.loads(body) if "json" in answer.headers["content-type"] else body

    def calls(self) -> list[dict[str, Any]]:
        return self.get("/v1/calls?limit=200")["items"]

    def every_call(self) -> Iterator[dict[str, Any]]:
        """Newest first, however many they are."""
        after = ""
        while after is not None:
            page = self.get(f"/v1/calls?limit=500{after and f'&after={after}'}")
            yield from page["items"]
            after = page["next"]

    def metric(self, name: str) -> float:
        """The sum over all label sets of a metric."""
        lines = self.get("/metrics").splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert found, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def hang_up(self, call_id: str) -> None:
        request = urllib.request.Request(f"{self.url}/v1/calls/{call_id}/hangup", method="POST")
        with urllib.request.urlopen(request, timeout=seconds(10), context=self.tls) as answer:
            assert answer.status == 202

    def wait_ended(self, calls: int, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Until that many calls are over; returns them oldest first."""
        return sorted(
            until(
                lambda: (c := self.calls()) and len(c) >= calls and all(i.get("ended_at") for i in c) and c, timeout_s
            ),
            key=lambda call: call["call_id"],
        )

    def events(self, call_id: str) -> list[dict[str, Any]]:
        """The durable events of a call that has ended, in order, from the store."""
        import sqlite3

        with contextlib.closing(sqlite3.connect(self.data_dir / "events.sqlite3")) as store:
            rows = store.execute("SELECT json FROM events WHERE call_id = ? ORDER BY seq", (call_id,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def start_again(self) -> None:
        """After its end: on the same ports and data. It is not waited for."""
        self.process = _spawn(self.environ, self.log)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds(60))


def launch(folder: Path, process_environ: Mapping[str, str] = {}, **environ: str) -> Worker:
    """Started, and not waited for. `environ` keys are `SECTION__KEY`; `process_environ` is taken as it is."""
    http, media, sip = ports(3)
    http = int(environ.get("HTTP__PORT", http))
    data, log = folder / "data", folder / "worker.log"
    env = os.environ | {
        "MEDIAWORKER_DATA_DIR": str(data),
        "MEDIAWORKER_HTTP__PORT": str(http),
        "MEDIAWORKER_MEDIA__PORT": str(media),
        "MEDIAWORKER_SIP__PORT": str(sip),
        "MEDIAWORKER_SHUTDOWN_S": "2",
        "MEDIAWORKER_ASR__MODEL": str(TINY),
        "OPENBLAS_NUM_THREADS": "1",
    }
    env |= {f"MEDIAWORKER_{key}": value for key, value in environ.items()} | dict(process_environ)
    return Worker(_spawn(env, log), http, media, sip, data, log, env)


def _spawn(environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    LOGS.append(log)
    with log.open("ab") as output:
        return subprocess.Popen([*COMMAND, "serve"], env=environ, cwd=log.parent, stdout=output, stderr=output)


@contextlib.contextmanager
def worker(
    folder: Path, process_environ: Mapping[str, str] = {}, *, tls: ssl.SSLContext | None = None, **environ: str
) -> Iterator[Worker]:
    """Started and ready; stopped at the end, with nothing to complain of in its log."""
    running = launch(folder, process_environ, **environ)
    running.tls = tls
    log = running.log
    try:
        until(lambda: alive(running), 60)
        yield running
    finally:
        code = running.stop()
        text = log.read_text(errors="replace")
        assert code == 0, f"the worker ended with {code}:\n{text[-4000:]}"
        assert "Traceback" not in text, text[-6000:]


def alive(worker: Worker) -> bool:
    assert worker.process.poll() is None, worker.log.read_text(errors="replace")[-4000:]
    with contextlib.suppress(OSError, urllib.error.URLError):
        worker.get("/healthz")
        return True
    return False


def command(*arguments: str, timeout_s: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a `mediaworker` command to its end. `environ` keys are `SECTION__KEY`."""
    environ = {"ASR__MODEL": str(TINY)} | environ
    env = os.environ | {f"MEDIAWORKER_{key}": value for key, value in environ.items()}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=seconds(timeout_s), cwd=ROOT, env=env
    )


def running_command(*arguments: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """`running_program` of a `mediaworker` command."""
    return running_program(*COMMAND, *arguments)


@contextlib.asynccontextmanager
async def running_program(*command: str | Path, cwd: Path | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program while it runs, with its output in pipes; killed at the end."""
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
