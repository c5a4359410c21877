"""A real rtpengine: it changes the profile of an SDP, and relays the audio. Told what to do by its `ng` protocol."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.asterisk.pbx import ADDRESS, inside
from lab.network.ports import ports
from lab.patience import until

Value = str | list["Value"] | dict[str, "Value"]


@dataclass
class Rtpengine:
    system: Path
    folder: Path
    port: int = field(default_factory=lambda: ports(1)[0])
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--table=-1", f"--interface={ADDRESS}", f"--listen-ng={ADDRESS}:{self.port}", "--foreground"]
        options += ["--log-stderr", "--port-min=32000", "--port-max=32400", "--num-threads=1"]
        with (self.folder / "rtpengine.log").open("ab") as output:
            line = inside(self.system, self.folder, "rtpengine", "--config-file=none", *options)
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(self._listens, 20, "rtpengine listens")

    def _listens(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()[-4000:]
        with contextlib.suppress(OSError):
            return "pong" in self._ask({"command": "ping"})
        return False

    def log(self) -> str:
        return (self.folder / "rtpengine.log").read_text(errors="replace")

    def sdp(self, command: str, body: str, call: str, **more: Value) -> str:
        """The SDP for the other side. `command`: offer or answer."""
        tags: dict[str, Value] = {"from-tag": "a"} | ({"to-tag": "b"} if command == "answer" else {})
        answer = self._ask({"command": command, "call-id": call, "sdp": body, **tags, **more})
        assert "6:result2:ok" in answer, answer
        length, _, rest = answer.partition("3:sdp")[2].partition(":")
        return rest[: int(length)]

    def _ask(self, command: dict[str, Value]) -> str:
        with socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.settimeout(2)
            asking.connect((ADDRESS, self.port))
            asking.send(f"{secrets.token_hex(4)} {_bencode(command)}".encode())
            return asking.recv(65536).decode()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def _bencode(value: Value) -> str:
    if isinstance(value, str):
        return f"{len(value)}:{value}"
    if isinstance(value, list):
        return f"l{''.join(map(_bencode, value))}e"
    return f"d{''.join(_bencode(key) + _bencode(each) for key, each in value.items())}e"


@contextlib.contextmanager
def running(system: Path, folder: Path) -> Iterator[Rtpengine]:
    started = Rtpengine(system, folder)
    try:
        started.start()
        yield started
    finally:
        started.stop()
