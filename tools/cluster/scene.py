"""The whole cluster with its callers and subscribers, from the first start to the end."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nats

from lab.network.authority import Authority
from tools.cluster.callers import Callers, Script
from tools.cluster.jobs import Jobs
from tools.cluster.listeners import Listener, caught_up
from tools.cluster.network import Machine, way_in
from tools.cluster.parts import (
    FIRST,
    KEY,
    PASSWORD,
    PROXY,
    PROXY_ADDRESS,
    ROOT,
    EngineServer,
    HAProxy,
    Kamailio,
    Nats,
    Part,
    Worker,
)

STREAM = "MEDIAWORKER_EVENTS"
PACKAGES = ("config", "audio", "sip", "asr", "mediaworker")
END_S = 90.0


@dataclass
class Scene:
    folder: Path
    seed: int
    callers_count: int
    nats: list[Nats] = field(default_factory=list)
    engines: list[EngineServer] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    proxies: list[Part] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)

    def show(self, text: str) -> None:
        print(text, flush=True)

    # -- the cluster -------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Every machine with its settings; nothing runs yet."""
        self.authority = Authority(self.folder)
        machines = {
            kind: [Machine.make(f"{kind}-{number + 1}", FIRST[kind] + number) for number in range(count)]
            for kind, count in (("nats", 3), ("engine", 2), ("worker", 3))
        }
        proxy = Machine.make("proxy", PROXY)
        for index in range(3):
            self.nats.append(Nats.on(machines["nats"], index, self._place(f"nats-{index + 1}"), self.authority))
        for machine in machines["engine"]:
            self.engines.append(EngineServer.on(machine, self._place(machine.name), self.authority))
        for machine in machines["worker"]:
            place = self._place(machine.name)
            self.workers.append(Worker.on(machine, place, self.authority, machines["nats"], machines["engine"]))
        self.proxies = [
            Kamailio.on(proxy, self._place("kamailio"), self.authority, machines["worker"]),
            HAProxy.on(proxy, self._place("haproxy"), self.authority, machines["worker"]),
        ]

    @property
    def parts(self) -> list[Part]:
        return [*self.nats, *self.engines, *self.workers, *self.proxies]

    async def start(self) -> None:
        for group in (self.nats, self.engines, self.workers, self.proxies):
            for part in group:
                part.start()
            for part in group:
                await self.up(part)
        for worker in self.workers:
            await self._joined(worker)

    def describe(self) -> None:
        lines = ["Machines, each with a network of its own, at one switch:", ""]
        what = {
            "nats": "NATS with JetStream, 4222",
            "engine": "mediaworker engine, 9095",
            "worker": "mediaworker serve, 8080 8081 5060",
            "proxy": "Kamailio 5060, HAProxy 443 8443",
        }
        for part in (*self.nats, *self.engines, *self.workers, self.proxies[0]):
            lines.append(f"  {part.name:<9} {part.machine.address:<11} {what[part.name.split('-')[0]]}")
        ca = self.authority.cert
        lines += [
            "",
            f"Settings and logs are in {self.folder}, a folder for each part. From another terminal:",
            "",
            f"  {way_in()} \\",
            f"    env SSL_CERT_FILE={ca} {ROOT}/.venv/bin/mediaworker watch https://{PROXY_ADDRESS} --key {KEY}",
            f"  {way_in()} curl --cacert {ca} -H 'Authorization: Bearer {KEY}' https://{PROXY_ADDRESS}/v1/calls",
            f"  {way_in()} curl http://{self.workers[0].machine.address}:8080/readyz",
        ]
        self.show("\n".join(lines))

    async def up(self, part: Part) -> None:
        await asyncio.to_thread(part.wait_until_up)

    def stop(self) -> None:
        for part in reversed(self.parts):
            if part.process is not None and part.process.poll() is None:
                part.stop()

    async def stream_leader(self) -> str:
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        pair = self.authority.issue("outside")
        context.load_cert_chain(pair.cert, pair.key)
        urls = [f"tls://{each.machine.address}:4222" for each in self.nats]
        client = await nats.connect(urls, tls=context, user="mediaworker", password=PASSWORD)
        try:
            info = await client.jetstream().stream_info(STREAM)
        finally:
            await client.close()
        assert info.cluster is not None and info.cluster.leader
        return info.cluster.leader

    def next_version(self) -> tuple[str, dict[str, str]]:
        """A package of this tree, with the next version, and what makes a worker run it."""
        source, target = self._place("source"), self._place("next-version")
        text = (ROOT / "pyproject.toml").read_text()
        found = re.search(r'^version = "(\d+\.\d+)\.(\d+)"$', text, re.MULTILINE)
        assert found, "the version in pyproject.toml"
        version = f"{found[1]}.{int(found[2]) + 1}"
        (source / "pyproject.toml").write_text(text.replace(found[0], f'version = "{version}"'))
        for name in ("README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        for name in PACKAGES:
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--disable-pip-version-check", "--target", target, source], check=True)
        return version, {"PYTHONPATH": str(target)}

    async def _joined(self, worker: Worker) -> None:
        async with asyncio.timeout(30):
            while "cluster joined" not in worker.log.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def _place(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir()
        return place

    # -- the world outside -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Subscribers first, so that they hear of every call."""
        tls = ssl.create_default_context(cafile=str(self.authority.cert))
        script = await asyncio.to_thread(Script.make)
        self.jobs = Jobs(script.codes, self._place("jobs"), tls)
        self.callers = Callers(script, self._place("callers"), tls, self.seed)
        self.listeners = [Listener(f"subscriber {number}") for number in (1, 2, 3)]
        self._listening = [asyncio.create_task(each.run(tls)) for each in self.listeners]
        async with asyncio.timeout(30):
            while not all(each.connections for each in self.listeners):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        half = self.callers_count // 2
        self.callers.start(sip=half, twilio=self.callers_count - half)
        self.show("\nCalls begin, and each worker's first recognition with them.")
        await asyncio.sleep(script.seconds)

    async def end(self) -> None:
        """Let the last calls and files come to their end, and every subscriber hear of it."""
        await self.callers.stop()
        await self.jobs.finish()
        await caught_up(self.listeners, END_S)
        for task in self._listening:
            task.cancel()
        ended = await asyncio.gather(*self._listening, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    def with_tracebacks(self) -> list[str]:
        """What the workers and engine servers have written that no log may have."""
        return [
            part.name for part in (*self.workers, *self.engines) if "Traceback" in part.log.read_text(errors="replace")
        ]


def without_proxies() -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
