"""What runs on the machines: NATS servers, engine servers, workers, and the two proxies; with the settings of each."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.network.authority import Authority
from tools.cluster.network import OUTSIDE, Machine, family, send

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TINY = ROOT / "models" / "qwen3-asr-tiny"
COMMAND = [sys.executable, "-m", "mediaworker.cli.main"]
KEY, TOKEN, PASSWORD = "everything-1234", "twilio-token", "nats-password"
"""Of this cluster alone, which nobody outside of it can reach."""
START_S = 120.0
DRAIN_S = 60
"""Calls last less."""
FIRST = {"nats": 11, "engine": 21, "worker": 31}
PROXY = 10
PROXY_ADDRESS = f"10.77.0.{PROXY}"


@dataclass
class Part:
    """A program on its machine, over its lives."""

    machine: Machine
    folder: Path
    command: Sequence[str | Path]
    answers: Callable[[Part], bool]
    """Whether it is up."""
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def start(self) -> None:
        self.process = self.machine.start(self.command, self.folder, self.log, self.environ)

    def wait_until_up(self, within_s: float = START_S) -> float:
        """-> how many seconds that took."""
        began = time.monotonic()
        while not self.answers(self):
            assert self._running.poll() is None, f"{self.name} ended: {self.tail()}"
            assert time.monotonic() - began < within_s, f"{self.name} does not answer: {self.tail()}"
            time.sleep(0.05)
        return time.monotonic() - began

    def kill(self) -> None:
        send([self._running.pid], signal.SIGKILL)
        self._running.wait()

    def stop(self, within_s: float = DRAIN_S + 30) -> None:
        """As an operator does: it drains first."""
        send([self._running.pid], signal.SIGTERM)
        self._running.wait(within_s)

    def freeze(self) -> None:
        """All its processes, as a machine that stalls."""
        send(family(self._running.pid), signal.SIGSTOP)

    def thaw(self) -> None:
        send(family(self._running.pid), signal.SIGCONT)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "it has written nothing"

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, self.name
        return self.process


class Nats(Part):
    @classmethod
    def on(cls, machines: Sequence[Machine], index: int, folder: Path, authority: Authority) -> Nats:
        machine = machines[index]
        pair = authority.issue(machine.name, f"IP:{machine.address}")
        routes = ", ".join(f'"nats://cluster:{PASSWORD}@{each.address}:6222"' for each in machines)
        tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{authority.cert}", verify: true }}'
        (folder / "nats.conf").write_text(f"""\
server_name: {machine.name}
listen: "{machine.address}:4222"
http: "{machine.address}:8222"
jetstream {{ store_dir: "{folder / "data"}" }}
authorization {{ user: mediaworker, password: "{PASSWORD}" }}
{tls}
cluster {{
  name: mediaworker
  listen: "{machine.address}:6222"
  authorization {{ user: cluster, password: "{PASSWORD}" }}
  {tls}
  routes: [{routes}]
}}
""")
        program = _program("nats-server")
        command: list[str | Path] = [program, "-c", folder / "nats.conf"]
        return cls(machine, folder, command, lambda part: bool(_get(part, "/healthz", port=8222)))


class EngineServer(Part):
    @classmethod
    def on(cls, machine: Machine, folder: Path, authority: Authority) -> EngineServer:
        (folder / "mediaworker.toml").write_text(f"""\
data_dir = "{folder / "data"}"
shutdown_s = {DRAIN_S}

[asr]
model = "{TINY}"
threads = 1
partial_ms = 1000
listen = "tcp://{machine.address}:9095"

{_keys()}
{_identity(machine, authority, "serverAuth")}
""")
        return cls(machine, folder, [*COMMAND, "engine", "--config", folder / "mediaworker.toml"], _is_ready)


class Worker(Part):
    @classmethod
    def on(
        cls, machine: Machine, folder: Path, authority: Authority, nats: Sequence[Machine], engines: Sequence[Machine]
    ) -> Worker:
        servers = ", ".join(f'"tcp://{each.address}:9095"' for each in engines)
        urls = ", ".join(f'"tls://{each.address}:4222"' for each in nats)
        (folder / "mediaworker.toml").write_text(f"""\
data_dir = "{folder / "data"}"
shutdown_s = {DRAIN_S}

[asr]
servers = [{servers}]

[sip]
allow = ["{PROXY_ADDRESS}"]

[twilio]
auth_token = "{TOKEN}"
public_url = "https://{PROXY_ADDRESS}"
stream_url = "wss://{PROXY_ADDRESS}:8443/twilio/stream"

[log]
level = "debug"

{_keys()}
{_identity(machine, authority, "clientAuth")}
nats = [{urls}]
nats_user = "mediaworker"
nats_password = "{PASSWORD}"
""")
        return cls(machine, folder, [*COMMAND, "serve", "--config", folder / "mediaworker.toml"], _is_ready)

    def metric(self, name: str) -> float:
        """The sum over all label sets."""
        lines = _get(self, "/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if re.split("[{ ]", line, maxsplit=1)[0] == name)


class Kamailio(Part):
    @classmethod
    def on(cls, machine: Machine, folder: Path, authority: Authority, workers: Sequence[Machine]) -> Kamailio:
        """The configuration of deploy/, with these addresses."""
        pair = authority.issue("kamailio", f"IP:{machine.address}")
        shutil.copy(pair.cert, folder / "cert.pem")
        shutil.copy(pair.key, folder / "key.pem")
        text = (DEPLOY / "kamailio/kamailio.cfg").read_text()
        (folder / "kamailio.cfg").write_text(
            _replaced(
                text,
                {"192.0.2.10": machine.address, "198.51.100.5": OUTSIDE, "/etc/kamailio": str(folder)},
            )
        )
        lines = [f"1 sip:{each.address}:5060;transport=tcp" for each in workers]
        (folder / "dispatcher.list").write_text("\n".join(["# set, where", *lines, ""]))
        system = unpacked_kamailio()
        (modules,) = system.glob("usr/lib/*/kamailio/modules")
        command: list[str | Path] = [system / "usr/sbin/kamailio", "-DD", "-E", "-m", "32", "-M", "8", "-Y", folder]
        command += ["-L", modules, "-f", folder / "kamailio.cfg"]
        environ = os.environ | {"LD_LIBRARY_PATH": str(modules.parent)}
        return cls(machine, folder, command, lambda part: _listens(machine.address, 5060), environ)


class HAProxy(Part):
    @classmethod
    def on(cls, machine: Machine, folder: Path, authority: Authority, workers: Sequence[Machine]) -> HAProxy:
        """The configuration of deploy/, with these addresses, and a third worker."""
        pair = authority.issue("haproxy", f"IP:{machine.address}")
        (folder / "cert.pem").write_text(pair.cert.read_text() + pair.key.read_text())
        lines: list[str] = []
        environ = dict(os.environ)
        for line in (DEPLOY / "haproxy/haproxy.cfg").read_text().splitlines():
            if "server worker1 " in line:
                lines += [line.replace("worker1", f"worker{n}").replace("WORKER1", f"WORKER{n}") for n in (1, 2, 3)]
            elif "server worker2 " not in line:
                lines.append(line)
        for number, each in enumerate(workers, start=1):
            environ |= {f"WORKER{number}": f"{each.address}:8080", f"WORKER{number}_MEDIA": f"{each.address}:8081"}
        (folder / "haproxy.cfg").write_text(_replaced("\n".join([*lines, ""]), {"/etc/haproxy": str(folder)}))
        command: list[str | Path] = [_program("haproxy"), "-W", "-f", folder / "haproxy.cfg"]
        return cls(machine, folder, command, lambda part: _listens(machine.address, 443), environ)


def unpacked_kamailio() -> Path:
    """Debian's, unpacked if that has not been done yet; this takes the network then."""
    script = ROOT / "tools" / "install_kamailio.sh"
    made = subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.splitlines()[-1])


def _keys() -> str:
    scopes = '["admin", "events", "batch", "stream"]'
    return f'[[auth.api_keys]]\nname = "everything"\nkey = "{KEY}"\nscopes = {scopes}\n'


def _identity(machine: Machine, authority: Authority, use: str) -> str:
    pair = authority.issue(machine.name, f"IP:{machine.address}", use=use)
    return f'[cluster]\ntls_cert = "{pair.cert}"\ntls_key = "{pair.key}"\ntls_ca = "{authority.cert}"'


def _replaced(text: str, examples: Mapping[str, str]) -> str:
    for example, value in examples.items():
        assert example in text, example
        text = text.replace(example, value)
    return text


def _is_ready(part: Part) -> bool:
    return '"ready"' in _get(part, "/readyz")


def _get(part: Part, path: str, port: int = 8080) -> str:
    """Empty while there is no good answer."""
    request = urllib.request.Request(
        f"http://{part.machine.address}:{port}{path}", headers={"Authorization": f"Bearer {KEY}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return str(answer.read().decode())
    except (urllib.error.HTTPError, OSError):
        return ""


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def _program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert found, f"apt install {name}"
    return found
