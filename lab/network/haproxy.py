"""HAProxy in front of two workers, with the configuration of deploy/."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from lab.deploy.metrics import DEPLOY
from lab.network.authority import Authority
from lab.network.nats_servers import nats
from lab.network.ports import ports
from lab.patience import until
from lab.worker.cluster import members
from lab.worker.peers import Worker
from lab.worker.ws_calls import CODES, config, send

KEY = "proxy-key-1234"
HEADERS = {"Authorization": f"Bearer {KEY}"}
API_KEYS = f'[{{name="all", key="{KEY}", scopes=["admin", "stream", "events", "batch"]}}]'


@dataclass
class Scene:
    workers: list[Worker]
    https: int
    media: int
    trust: ssl.SSLContext

    def url(self, path: str) -> str:
        return f"wss://localhost:{self.https}{path}"

    async def say(self, *, speed: float = 4) -> list[dict[str, Any]]:
        """A call through the proxy. -> what was said of it."""
        url = f"wss://localhost:{self.media}/ws/asr"
        async with connect(url, additional_headers=HEADERS, ssl=self.trust, max_size=None) as socket:
            await socket.send(json.dumps(config()))
            await send(socket, CODES, speed=speed, bytes_per_s=8000)
            await socket.send(json.dumps({"type": "finalize"}))
            heard = [json.loads(each) async for each in socket]
        assert socket.close_code == 1000
        return heard

    def calls(self, running: Worker) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{running.url}/v1/calls", headers=HEADERS).json()["items"]
        return found

    def opened(self, running: Worker) -> float:
        text = httpx.get(f"{running.url}/metrics", headers=HEADERS).text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("mediaworker_calls_opened"))


@contextmanager
def haproxy(
    folder: Path, running: list[Worker], replaced: Mapping[str, str] = {}, answer: int = 200
) -> Iterator[Scene]:
    """As it is in deploy/, but for ports, the certificate and what is `replaced`; the environment names the workers.

    `answer`: the status that `/healthz` has from then on.
    """
    authority = Authority(folder)
    pair = authority.issue("proxy", "DNS:localhost")
    (folder / "cert.pem").write_text(pair.cert.read_text() + pair.key.read_text())
    https, media = ports(2)
    text = (DEPLOY / "haproxy/haproxy.cfg").read_text()
    examples = {
        ":443 ssl": f"127.0.0.1:{https} ssl",
        ":8443 ssl": f"127.0.0.1:{media} ssl",
        "/etc/haproxy": str(folder),
        **replaced,
    }
    places = {}
    for number, each in enumerate(running, start=1):
        places[f"WORKER{number}"] = f"127.0.0.1:{each.http_port}"
        places[f"WORKER{number}_MEDIA"] = f"127.0.0.1:{each.media_port}"
    for example, value in examples.items():
        assert example in text
        text = text.replace(example, value)
    (folder / "haproxy.cfg").write_text(text)
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
    assert program, "apt install haproxy"
    with (folder / "haproxy.log").open("wb") as log:
        arguments = [program, "-W", "-f", str(folder / "haproxy.cfg")]
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env=places)
    try:
        trust = ssl.create_default_context(cafile=str(authority.cert))
        scene = Scene(running, https, media, trust)
        until(lambda: answers(scene) == answer, 20, "both are there")
        yield scene
    finally:
        process.terminate()
        process.wait()


def answers(scene: Scene, path: str = "/healthz") -> int:
    try:
        return httpx.get(f"https://localhost:{scene.https}{path}", verify=scene.trust, headers=HEADERS).status_code
    except httpx.HTTPError:
        return 0


@contextmanager
def proxied_cluster(folder: Path) -> Iterator[Scene]:
    """HAProxy before two workers of a cluster, with an engine that costs nothing."""
    with nats(folder / "nats") as (server,):
        with members(folder, "ab", server, AUTH__API_KEYS=API_KEYS, SHUTDOWN_S="20") as pair:
            with haproxy(folder, pair) as scene:
                yield scene
