"""A real Kamailio with the configuration of docs/how-to/pbx, in the system of its own, on the host's network."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.asterisk.pbx import INSIDE, inside
from lab.network.ports import ports
from lab.patience import until
from lab.worker.peers import ROOT

CONFIGURATION = ROOT / "deploy" / "kamailio"
CALLER = "127.0.0.1"
"""Who may call through it."""
FILES = ("kamailio.cfg", "dispatcher.list")


def own_address() -> str:
    """One that is not loopback, since workers let everybody on loopback in. Nothing is sent."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        address = str(probe.getsockname()[0])
    assert not address.startswith("127."), "this machine has no address but loopback"
    return address


@dataclass
class Kamailio:
    """`workers`: SIP ports of this machine, in the order of the list."""

    system: Path
    folder: Path
    workers: tuple[int, ...]
    transport: str = "tcp"
    address: str = field(default_factory=own_address)
    sip_port: int = field(default_factory=lambda: ports(1)[0])
    tls_port: int = field(default_factory=lambda: ports(1)[0])
    process: subprocess.Popen[bytes] | None = None

    def examples(self) -> dict[str, str]:
        """What stands in the documentation → what is here instead."""
        first, second = (self.workers * 2)[:2]
        return {
            "192.0.2.10:5060": f"{self.address}:{self.sip_port}",
            "192.0.2.10:5061": f"{self.address}:{self.tls_port}",
            "198.51.100.5": CALLER,
            "198.51.100.6": self.address,  # by TCP and TLS a softphone comes from there
            "/etc/kamailio": INSIDE,
            "192.0.2.21:5060": f"{self.address}:{first}",
            "192.0.2.22:5060": f"{self.address}:{second}",
            "transport=tcp": f"transport={self.transport}",
        }

    def configure(self) -> None:
        for name in FILES:
            text = (CONFIGURATION / name).read_text()
            for example, value in self.examples().items():
                text = text.replace(example, value)
            lines = text.splitlines(keepends=True)
            (self.folder / name).write_text("".join(dict.fromkeys(lines)) if name.endswith(".list") else text)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
        made = ["openssl", "req", "-x509", *key, "-out", "cert.pem", "-subj", "/CN=proxy", "-days", "2"]
        subprocess.run(made, cwd=self.folder, check=True, capture_output=True)

    def start(self) -> None:
        command = ["kamailio", "-DD", "-E", "-m", "32", "-M", "8", "-Y", INSIDE, "-f", f"{INSIDE}/kamailio.cfg"]
        with (self.folder / "console.log").open("ab") as output:
            line = inside(self.system, self.folder, *command)
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(lambda: self._listens(), 30, "Kamailio listens")

    def _listens(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()[-4000:]
        return "uptime" in self.ask("core.uptime")

    def ask(self, *command: str) -> str:
        """What `kamcmd` answers; "" while there is nobody to ask."""
        line = inside(self.system, self.folder, "kamcmd", "-s", f"unix:{INSIDE}/kamailio_ctl", *command)
        return subprocess.run(line, capture_output=True, text=True, timeout=30).stdout

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def log(self) -> str:
        return (self.folder / "console.log").read_text(errors="replace")


class OutboundProxy(Kamailio):
    """By which a worker registers at `registrar`, HOST:PORT, and which the registrar's calls come by (Path)."""

    registrar = ""

    def configure(self) -> None:
        text = (Path(__file__).parent / "outbound_proxy.cfg").read_text().replace("REGISTRAR", self.registrar)
        (self.folder / "kamailio.cfg").write_text(text.replace("ADDRESS", f"{self.address}:{self.sip_port}"))


@contextlib.contextmanager
def outbound_proxy(system: Path, folder: Path, registrar: str) -> Iterator[OutboundProxy]:
    folder.mkdir()
    proxy = OutboundProxy(system, folder, ())
    proxy.registrar = registrar
    proxy.configure()
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()


@contextlib.contextmanager
def kamailio(system: Path, folder: Path, *workers: int, transport: str = "tcp") -> Iterator[Kamailio]:
    folder.mkdir()
    proxy = Kamailio(system, folder, workers, transport)
    proxy.configure()
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.stop()
