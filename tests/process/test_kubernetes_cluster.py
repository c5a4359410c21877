"""The configurations of deploy/kubernetes with real processes in place of pods: three NATS servers, an engine server
and two workers know each other by the certificates of the script, and a worker that is ended drains."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import nats as nats_client
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from audio import Codec
from config import load
from lab.deploy.manifests import ROOT, copied, generated
from lab.engine.listener import LISTENER, LISTENER_PATH, words
from lab.engine.offline import packets, utterances
from lab.network.haproxy import answers, haproxy
from lab.network.ports import ports
from lab.patience import seconds, timeout, until
from lab.worker.cluster import joined
from lab.worker.engine_servers import engine_server
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES, config, send

PODS = 3
"""Of NATS."""
SAID = [" ".join(words(each.audio)) for each in utterances(Codec.PCMU, packets(CODES), recognise=False)]


@dataclass
class Cluster:
    workers: list[Worker]
    folder: Path
    """A folder for each Secret, as it is mounted."""
    trust: ssl.SSLContext
    key: str
    nats: list[int]

    def status(self, running: Worker, path: str) -> int:
        return httpx.get(f"https://localhost:{running.http_port}{path}", verify=self.trust).status_code

    def connect(self, port: int, path: str) -> connect:
        headers = {"Authorization": f"Bearer {self.key}"}
        return connect(f"wss://localhost:{port}{path}", additional_headers=headers, ssl=self.trust, max_size=None)


def mounted(place: Path, folder: Path) -> None:
    """The files of each Secret under its name; those of a workload see their own as /etc/mediaworker."""
    for (_, name), files in generated().items():
        target = folder / name.removesuffix("-tls") / ("tls" if name.endswith("-tls") else "")
        target.mkdir(parents=True, exist_ok=True)
        for key, file in files.items():
            text = (place / file).read_text()
            (target / key).write_text(text.replace("/etc/mediaworker", str(target)))


@contextmanager
def nats_servers(folder: Path, clients: list[int], routes: list[int]) -> Iterator[None]:
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert program, "apt install nats-server"
    processes = []
    text = (folder / "nats/nats.conf").read_text().replace("/etc/nats-tls", str(folder / "nats/tls"))
    text = text.replace("  handshake_first: true\n", "")  # which Debian's server does not know yet
    for number, (client, route, monitor) in enumerate(zip(clients, routes, ports(PODS), strict=True)):
        own = text.replace("port: 4222", f"port: {client}").replace("port: 6222", f"port: {route}")
        own = own.replace("port: 8222", f"port: {monitor}").replace("/tmp/nats.pid", str(folder / f"{number}.pid"))
        own = own.replace("store_dir: /data", f"store_dir: {folder / f'data-{number}'}")
        file = folder / f"nats-{number}.conf"
        file.write_text(own)
        with file.with_suffix(".log").open("wb") as log:
            arguments = [program, "-a", "127.0.0.1", "--config", str(file)]
            environ = {"POD_NAME": f"nats-{number}"}
            processes.append(subprocess.Popen(arguments, stdout=log, stderr=log, env=environ))
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    clients, routes, (engine,) = ports(PODS), ports(PODS), ports(1)
    names = {"engines.mediaworker.svc:9095": f"localhost:{engine}"}
    for number in range(PODS):
        names[f"nats-{number}.nats.mediaworker.svc:4222"] = f"localhost:{clients[number]}"
        names[f"nats-{number}.nats.mediaworker.svc:6222"] = f"localhost:{routes[number]}"
    names |= {f"{name}.mediaworker.svc": "localhost" for name in ("workers", "engines", "nats")}
    place = copied(folder, names)
    mounted(place, folder)
    trust = ssl.create_default_context(cafile=str(place / "secrets/authority.crt"))
    probe = ssl.create_default_context(cafile=str(place / "secrets/authority.crt"))
    probe.check_hostname = False
    with ExitStack() as stack:
        stack.enter_context(nats_servers(folder, clients, routes))
        options = LISTENER | {"CONFIG": str(folder / "engines/mediaworker.toml"), "CLUSTER__TOKEN": ""}
        stack.enter_context(engine_server(folder / "engine", LISTENER_PATH, port=engine, wait=False, **options))
        configured = folder / "workers/mediaworker.toml"
        shutdown_s = str(load(configured, {}).shutdown_s)
        running = []
        for name in "ab":
            (folder / name).mkdir()
            options = LISTENER | {"CONFIG": str(configured), "SHUTDOWN_S": shutdown_s}
            options["CLUSTER__NATS_TLS_FIRST"] = "false"
            running.append(stack.enter_context(worker(folder / name, LISTENER_PATH, tls=probe, **options)))
        found = Cluster(running, folder, trust, (place / "secrets/client.secret").read_text(), clients)
        for each in running:
            until(lambda each=each: joined(each) and found.status(each, "/readyz") == 200, 60)
        yield found


async def finals(socket: ClientConnection) -> list[str]:
    heard = [json.loads(each) async for each in socket]
    return [each["text"] for each in heard if each["type"] == "final"]


async def test_another_worker_tells_what_an_engine_server_has_read(cluster: Cluster) -> None:
    first, second = cluster.workers
    async with cluster.connect(second.http_port, "/v1/events") as subscriber:
        async with cluster.connect(first.media_port, "/ws/asr") as call:
            await call.send(json.dumps(config()))
            await send(call, CODES, speed=4, bytes_per_s=8000)
            await call.send(json.dumps({"type": "finalize"}))
            assert await finals(call) == SAID
        said: list[str] = []
        async with timeout(20):
            async for message in subscriber:
                event: dict[str, Any] = json.loads(message)
                if event["type"] == "transcript.final":
                    said.append(event["text"])
                if event["type"] == "call.ended":
                    break
    assert said == SAID


async def test_nats_lets_workers_in_and_engine_servers_not(cluster: Cluster) -> None:
    async def ask(name: str) -> str:
        tls = ssl.create_default_context(cafile=str(cluster.folder / name / "tls/ca.crt"))
        tls.load_cert_chain(cluster.folder / name / "tls/tls.crt", cluster.folder / name / "tls/tls.key")
        client = await nats_client.connect(
            f"tls://localhost:{cluster.nats[0]}", tls=tls, allow_reconnect=False, connect_timeout=round(seconds(5))
        )
        try:
            return str(client.connected_url.hostname)
        finally:
            await client.close()

    assert await ask("workers") == "localhost"
    with pytest.raises(OSError):  # its certificate is a server's alone
        await ask("engines")
    with pytest.raises(nats_client.errors.Error, match=r"(?i)authorization"):
        await ask("nats")


def test_haproxy_finds_them_with_the_line_of_the_documentation(cluster: Cluster, tmp_path: Path) -> None:
    (line,) = re.findall(r"(?m)^ *(default-server .*)$", (ROOT / "docs/how-to/kubernetes.md").read_text())
    line = line.replace("/etc/haproxy/authority.crt", str(cluster.folder / "workers/tls/ca.crt"))
    shipped = "default-server inter 2s fall 2 rise 2"
    assert line.startswith(shipped)
    for host, status in (("localhost", 200), ("engines.mediaworker.svc", 503)):
        folder = tmp_path / host
        folder.mkdir()
        replaced = {shipped: line.replace("workers.mediaworker.svc", host)}
        with haproxy(folder, cluster.workers, replaced, answer=status) as scene:
            assert answers(scene, "/readyz") == status


async def test_a_worker_that_is_ended_stays_for_its_call_and_no_longer(cluster: Cluster) -> None:
    """What a rollout, scale-in and `kubectl drain` do to a pod; its configuration would let calls go on for hours."""
    first, _ = cluster.workers
    async with cluster.connect(first.media_port, "/ws/asr") as call:
        await call.send(json.dumps(config()))
        await send(call, CODES[: len(CODES) // 2], speed=4, bytes_per_s=8000)
        first.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(until, lambda: cluster.status(first, "/readyz") == 503)
        assert cluster.status(first, "/healthz") == 200, "what Kubernetes would restart it for"
        with pytest.raises(InvalidStatus) as refused:
            await cluster.connect(first.media_port, "/ws/asr")
        assert refused.value.response.status_code == 503
        await send(call, CODES[len(CODES) // 2 :], speed=4, bytes_per_s=8000)
        await call.send(json.dumps({"type": "finalize"}))
        assert await finals(call) == SAID
    assert await asyncio.to_thread(first.process.wait, seconds(20)) == 0
