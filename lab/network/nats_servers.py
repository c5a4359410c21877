"""NATS servers as real processes, alone or as a cluster with JetStream."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.network.ports import ports
from lab.patience import until


@dataclass
class NatsServer:
    process: subprocess.Popen[bytes]
    command: list[str]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)
        until(self.listens)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextlib.contextmanager
def nats(folder: Path, count: int = 1, options: Sequence[str] = ()) -> Iterator[list[NatsServer]]:
    """So many servers, which form a cluster if there are several. `options`: further ones of the command line."""
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert program, "apt install nats-server"
    clients, routes = ports(count), ports(count)
    servers = []
    for number, (client, route) in enumerate(zip(clients, routes, strict=True)):
        place = folder / f"nats-{number}"
        place.mkdir(parents=True)
        command = [program, "-a", "127.0.0.1", "-p", str(client), "-js", "-sd", str(place / "data"), "-n", f"n{number}"]
        command += options
        if count > 1:
            others = ",".join(f"nats://127.0.0.1:{each}" for each in routes)
            command += ["--cluster_name", "tests", "--cluster", f"nats://127.0.0.1:{route}", "--routes", others]
        log = place / "nats.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        servers.append(NatsServer(process, command, client, log))
    try:
        for server in servers:
            until(server.listens)
        yield servers
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()
