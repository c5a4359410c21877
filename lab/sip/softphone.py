"""A real softphone, baresip: it plays a file instead of a microphone, and is told what to do over a TCP port."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import wave
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.asterisk.pbx import ADDRESS, DIGITS, INSIDE, inside
from lab.network.ports import ports
from lab.patience import until
from mediaworker.cli.play import load_pcm

CODECS = {
    "PCMU": ("pcmu/8000/1", 8000),
    "PCMA": ("pcma/8000/1", 8000),
    "G722": ("g722/16000/1", 16000),
    "opus": ("opus/48000/2", 48000),
}
"""As baresip's accounts name them, and the rate of the file, which is not looked at when it is played."""
MODULES = ("aufile", "aubridge", "g711", "g722", "opus", "srtp", "dtls_srtp")
APPLICATIONS = ("account", "menu", "ctrl_tcp")
"""Started when the codecs are there: an account takes those that it finds."""

RTP_PORTS = range(29000, 31000)
BEFORE_S = 1.5
"""Silence before it speaks: some of those that it is to be heard by are called when it has answered."""


@dataclass
class Softphone:
    """One account of its own. `account` is what follows the address in baresip's `accounts` file."""

    system: Path
    folder: Path
    address: str
    account: str
    codec: str
    sip_port: int = field(default_factory=lambda: _sip_port())
    control_port: int = field(default_factory=lambda: ports(1)[0])
    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None
    _received: bytes = b""

    def start(self, samples: NDArray[np.int16], rate_hz: int) -> None:
        self.folder.mkdir(exist_ok=True)
        with wave.open(str(self.folder / "said.wav"), "wb") as file:
            file.setnchannels(2 if self.codec == "opus" else 1)
            file.setsampwidth(2)
            file.setframerate(rate_hz)
            file.writeframes(np.repeat(samples, file.getnchannels()).tobytes())
        lines = [
            f"sip_listen {ADDRESS}:{self.sip_port}",
            f"ctrl_tcp_listen {ADDRESS}:{self.control_port}",
            "module_path /usr/lib/baresip/modules",
            *(f"module {name}.so" for name in MODULES),
            *(f"module_app {name}.so" for name in APPLICATIONS),
            f"net_interface {ADDRESS}",
            f"audio_source aufile,{INSIDE}/said.wav",
            # Half of a bridge, which leads nowhere; a file as a player does not survive a hold.
            "audio_player aubridge,nowhere",
            "audio_alert aubridge,nowhere",
            f"rtp_ports {RTP_PORTS.start}-{RTP_PORTS.stop - 1}",
            "call_max_calls 4",
            "statmode_default off",
        ]
        (self.folder / "config").write_text("\n".join(lines) + "\n")
        (self.folder / "accounts").write_text(f"<{self.address}>;audio_codecs={CODECS[self.codec][0]};{self.account}\n")
        (self.folder / "contacts").touch()
        with (self.folder / "console.log").open("ab") as output:
            command = inside(self.system, self.folder, "baresip", "-f", INSIDE, "-s")
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        self.control = until(self._connected, 20, "baresip listens")

    def _connected(self) -> socket.socket | None:
        assert self.process is not None and self.process.poll() is None, self.log()[-4000:]
        with contextlib.suppress(OSError):
            return socket.create_connection((ADDRESS, self.control_port), timeout=10)
        return None

    def resume(self) -> None:
        """baresip 1.1 resumes, and says that the argument is wrong."""
        self._ask("resume")
        assert "on hold" not in self.do("listcalls")

    def do(self, command: str, params: str = "") -> str:
        """A command of baresip's menu; what it prints."""
        answer = self._ask(command, params)
        assert answer["ok"], answer
        return str(answer.get("data", ""))

    def _ask(self, command: str, params: str = "") -> dict[str, Any]:
        """Events that come before the answer are passed over."""
        assert self.control is not None
        words = {"command": command, "token": "t"} | ({"params": params} if params else {})
        message = json.dumps(words).encode()
        self.control.sendall(b"%d:%s," % (len(message), message))
        while True:
            answer = self._read()
            if answer.get("response"):
                return answer

    def _read(self) -> dict[str, Any]:
        """The next netstring."""
        assert self.control is not None
        while True:
            length, colon, rest = self._received.partition(b":")
            if colon and len(rest) > int(length):
                text, self._received = rest[: int(length)], rest[int(length) + 1 :]
                return dict(json.loads(text))
            data = self.control.recv(65536)
            assert data, self.log()[-4000:]
            self._received += data

    def log(self) -> str:
        return (self.folder / "console.log").read_text(errors="replace")

    def stop(self) -> None:
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
            try:
                self.process.communicate(timeout=5)
            except (
                subprocess.TimeoutExpired
            ):  # it takes back what is still being called or registered, for half a minute
                self.process.kill()
                self.process.communicate()


def _sip_port() -> int:
    """A free one, above which is another, which nobody else is given: baresip takes that for TLS."""
    port, above = ports(2)
    while above != port + 1:
        port, above = above, ports(1)[0]
    return port


@contextlib.contextmanager
def phone(
    system: Path,
    folder: Path,
    address: str,
    *,
    account: str = "regint=0",
    codec: str = "PCMU",
    says: str = "customer",
    before_s: float = BEFORE_S,
    again_s: float = 0.0,
) -> Iterator[Softphone]:
    """Says what is in tests/data/digits after a while, and again after `again_s`; it is silent after that."""
    started = Softphone(system, folder, address, account, codec)
    _, rate_hz = CODECS[codec]
    words = load_pcm(DIGITS / f"{says}.ulaw", rate_hz)
    silence = np.zeros(60 * rate_hz, np.int16)
    again = [silence[: int(again_s * rate_hz)], words] if again_s else []
    try:
        started.start(np.concatenate([silence[: int(before_s * rate_hz)], words, *again, silence]), rate_hz)
        yield started
    finally:
        started.stop()
