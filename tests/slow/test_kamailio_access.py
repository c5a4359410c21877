"""Whom a real Kamailio with the configuration of deploy/ relays, by single requests that anybody could write.

Strangers try what only a request in a dialog may do: a To-tag, and a Route through the proxy to any host it reaches.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.network.ports import ports
from lab.patience import seconds, until
from lab.sip.kamailio import CONFIGURATION, own_address
from tools.cluster.parts import unpacked_kamailio

CALLER, STRANGER, WORKER, INSIDE = "127.0.0.1", "127.0.0.2", "127.0.0.21", "127.0.0.50"
IN_DIALOG = ("BYE", "INVITE", "UPDATE", "INFO", "REFER", "MESSAGE", "NOTIFY", "OPTIONS", "PRACK")


class Scene:
    def __init__(self, proxy: tuple[str, int], inside: socket.socket, worker: int) -> None:
        self.proxy, self.inside, self.worker = proxy, inside, worker
        self._numbers = itertools.count(1)

    def ask(self, source: str, method: str, *routes: str, tag: str = ";tag=x", port: int = 0) -> str:
        """The first line of the answer; to a request that is relayed there is none."""
        number = next(self._numbers)
        with socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.bind((source, port))
            host, own = asking.getsockname()
            lines = [
                f"{method} sip:x@{INSIDE}:{self.inside.getsockname()[1]} SIP/2.0",
                f"Via: SIP/2.0/UDP {host}:{own};branch=z9hG4bK{os.getpid()}x{number};rport",
                "Max-Forwards: 9",
                "From: <sip:a@example.com>;tag=f",
                f"To: <sip:b@example.com>{tag}",
                f"Call-ID: {number}@example.com",
                f"CSeq: 1 {method}",
                f"Contact: <sip:a@{host}:{own}>",
                *(f"Route: <{route};lr>" for route in routes),
                "Content-Length: 0",
            ]
            asking.settimeout(seconds(1))
            asking.sendto("\r\n".join([*lines, "", ""]).encode(), self.proxy)
            try:
                return asking.recv(4096).split(b"\r\n")[0].decode()
            except TimeoutError:
                return ""

    def relayed(self) -> set[str]:
        """Methods of the requests that have come to a host behind the proxy since the last look."""
        found = set()
        self.inside.setblocking(False)
        try:
            while True:
                found.add(self.inside.recv(4096).split(b" ")[0].decode())
        except BlockingIOError:
            return found

    @property
    def own_route(self) -> str:
        return "sip:%s:%d" % self.proxy  # noqa: UP031 - a pair


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, system, address = tmp_path_factory.mktemp("kamailio"), unpacked_kamailio(), own_address()
    sip, tls, worker = ports(3)
    text = (CONFIGURATION / "kamailio.cfg").read_text()
    for example, value in {
        "192.0.2.10:5060": f"{address}:{sip}", "192.0.2.10:5061": f"{address}:{tls}",
        "198.51.100.5": CALLER, "/etc/kamailio": str(folder),
    }.items():  # fmt: skip
        text = text.replace(example, value)
    (folder / "kamailio.cfg").write_text(text)
    (folder / "dispatcher.list").write_text(f"1 sip:{WORKER}:{worker};transport=udp\n")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=proxy", "-days", "2"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    (modules,) = system.glob("usr/lib/*/kamailio/modules")
    command = [system / "usr/sbin/kamailio", "-DD", "-E", "-m", "32", "-M", "8", "-Y", folder, "-L", modules]
    environ = os.environ | {"LD_LIBRARY_PATH": str(modules.parent)}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        running = subprocess.Popen([*command, "-f", folder / "kamailio.cfg"], stdout=log, stderr=log, env=environ)
        stack.callback(running.wait)
        stack.callback(running.terminate)
        inside = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        inside.bind((INSIDE, 0))
        found = Scene((address, sip), inside, worker)
        until(lambda: listens(found, running, folder))
        yield found


def listens(scene: Scene, running: subprocess.Popen[bytes], folder: Path) -> bool:
    assert running.poll() is None, (folder / "log").read_text()[-3000:]
    return bool(scene.ask(CALLER, "OPTIONS", tag=""))


@pytest.mark.parametrize("method", [*IN_DIALOG, "CANCEL"])
def test_strangers_are_relayed_nowhere(scene: Scene, method: str) -> None:
    for routes in ((), (scene.own_route,), (scene.own_route, f"sip:{INSIDE}:{scene.inside.getsockname()[1]}")):
        for tag in ("", ";tag=x"):
            assert scene.ask(STRANGER, method, *routes, tag=tag) == "SIP/2.0 403 Forbidden"
    assert scene.relayed() == set()


def test_a_stranger_gets_no_answer_to_an_ack(scene: Scene) -> None:
    assert scene.ask(STRANGER, "ACK", scene.own_route) == "" and scene.relayed() == set()


def test_those_who_may_are_relayed_in_their_dialogs(scene: Scene) -> None:
    for source, port in ((CALLER, 0), (WORKER, scene.worker), (WORKER, 0)):
        scene.ask(source, "BYE", scene.own_route, port=port)
        until(lambda: scene.relayed() == {"BYE"}, 20, f"the BYE of {source}")


def test_a_worker_begins_nothing(scene: Scene) -> None:
    for method in ("INVITE", "MESSAGE", "OPTIONS"):
        assert scene.ask(WORKER, method, tag="") == "SIP/2.0 403 Forbidden"
    assert scene.relayed() == set()
