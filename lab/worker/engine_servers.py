"""`mediaworker engine` as real processes, and settings of workers that use them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.sections.section import Secret
from config.settings import Asr, Cluster, Settings
from lab.network.ports import ports
from lab.patience import seconds, until
from lab.worker.peers import COMMAND, LOGS

TOKEN = "known-to-both-sides"


@dataclass
class Server:
    """One engine server with its own ports."""

    process: subprocess.Popen[bytes]
    port: int
    http_port: int
    log: Path
    environ: dict[str, str] = field(repr=False)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """The body, whatever the status is."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=seconds(10)) as answer:
                body = answer.read().decode()
        except urllib.error.HTTPError as error:
            body = error.read().decode()
        return json.loads(body) if body.startswith("{") else body

    def metric(self, name: str) -> float:
        """The sum over all label sets of a metric."""
        lines = self.get("/metrics").splitlines()
        found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert found, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """The server and its inference processes, which notice that it is gone."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """After its end, on the same ports. It is not waited for."""
        self.process = _spawn(self.environ, self.log)

    def wait_until_up(self) -> None:
        until(self._answers, 60)

    def children(self) -> list[int]:
        """Process ids of its inference processes."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds(60))

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
        with contextlib.suppress(OSError):
            self.get("/healthz")
            return True
        return False


@contextlib.contextmanager
def engine_server(
    folder: Path, process_environ: Mapping[str, str] = {}, *, port: int = 0, wait: bool = True, **environ: str
) -> Iterator[Server]:
    """Started; stopped at the end, with nothing to complain of in its log. `environ` keys are `SECTION__KEY`."""
    listen, http = ports(2)
    listen = port or listen
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {
        "MEDIAWORKER_ASR__ENGINE": "moonshine",
        "MEDIAWORKER_ASR__THREADS": "1",
        "MEDIAWORKER_ASR__LISTEN": f"tcp://127.0.0.1:{listen}",
        "MEDIAWORKER_CLUSTER__TOKEN": TOKEN,
        "MEDIAWORKER_DATA_DIR": str(folder / "data"),
        "MEDIAWORKER_HTTP__PORT": str(http),
        "MEDIAWORKER_SHUTDOWN_S": "20",
        "OPENBLAS_NUM_THREADS": "1",
    }
    env |= {f"MEDIAWORKER_{key}": value for key, value in environ.items()} | dict(process_environ)
    log = folder / "engine.log"
    server = Server(_spawn(env, log), listen, http, log, env)
    try:
        if wait:
            server.wait_until_up()
        yield server
    finally:
        code = server.stop()
        text = log.read_text(errors="replace")
        assert code in (0, -signal.SIGKILL), f"the engine server ended with {code}:\n{text[-4000:]}"
        assert "Traceback" not in text, text[-6000:]


def shared(*servers: Server | str, timeout_s: float = 5.0, cluster: Cluster | None = None, **asr: Any) -> Settings:
    """Of a worker that uses these servers."""
    addresses = tuple(each if isinstance(each, str) else each.address for each in servers)
    return Settings(
        asr=Asr(servers=addresses, server_timeout_s=timeout_s, **asr),
        cluster=cluster or Cluster(token=Secret(TOKEN)),
    )


def _spawn(environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    LOGS.append(log)
    with log.open("ab") as output:
        return subprocess.Popen([*COMMAND, "engine"], env=environ, cwd=log.parent, stdout=output, stderr=output)
