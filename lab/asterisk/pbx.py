"""A real Asterisk with the configuration of this folder, in a system of its own, on the host's network."""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from audio.codecs.g711 import ulaw_encode
from lab.network.authority import Authority
from lab.network.ports import ports
from lab.patience import until
from lab.worker.peers import ROOT
from lab.worker.qwen import DIGITS

SCRIPTS = ROOT / "tools" / "interop"
CONFIGURATION = Path(__file__).parent / "configuration"
INSIDE = "/mnt"
"""Where the folder of a test is seen by what runs in the system."""
ADDRESS = "127.0.0.1"
PASSWORD = "correct horse"
KEY = "a-key-of-the-interop-test"
"""Of the API, for Asterisk's WebSocket."""
RTP_PORTS = 200


def system() -> Path:
    made = subprocess.run([str(SCRIPTS / "asterisk.sh")], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.splitlines()[-1])


def inside(system: Path, folder: Path, *command: str) -> list[str]:
    """The command line that runs `command` in the system, with `folder` at INSIDE."""
    return [str(SCRIPTS / "inside.sh"), str(system), str(folder), *command]


@dataclass
class Asterisk:
    system: Path
    folder: Path
    authority: Authority = field(init=False)
    """That has signed its certificate, and is believed by it."""
    sip_port: int = field(init=False)
    tls_port: int = field(init=False)
    verified_port: int = field(init=False)
    """TLS as well, for those with a certificate of its authority."""
    ari_port: int = field(init=False)
    trunk_port: int = field(init=False)
    """Where a worker listens that does not register; over TLS, at the next."""
    trunk_tls_port: int = field(init=False)
    audiosocket_port: int = field(init=False)
    """Where a worker listens for audio without SIP: this, and the following."""
    media_port: int = field(init=False)
    media_tls_port: int = field(init=False)
    worker_http_port: int = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.sip_port, self.tls_port, self.verified_port, self.ari_port, *others = ports(10)
        self.trunk_port, self.trunk_tls_port, self.audiosocket_port, *others = others
        self.media_port, self.media_tls_port, self.worker_http_port = others

    def configure(self) -> None:
        for name in ("etc", "var", "sounds", "music", "keys"):
            (self.folder / name).mkdir()
        self.authority = Authority(self.folder / "keys")
        self.authority.issue("pbx", f"IP:{ADDRESS}", file="asterisk")
        words = self.words()
        for source in CONFIGURATION.glob("*.conf"):
            text = source.read_text()
            for word, value in words.items():
                text = text.replace(f"@{word}@", value)
            (self.folder / "etc" / source.name).write_text(text)
        for sound in DIGITS.glob("*.ulaw"):
            (self.folder / "sounds" / sound.name).write_bytes(sound.read_bytes())
        (self.folder / "music" / "tone.ulaw").write_bytes(_tone())

    def words(self) -> dict[str, str]:
        """What stands in the configuration → what is here instead."""
        first = _rtp_range()
        addresses = {
            "WORKER": self.trunk_port,
            "WORKER_TLS": self.trunk_tls_port,
            "WORKER_HTTP": self.worker_http_port,
            "AUDIOSOCKET": self.audiosocket_port,
            "MEDIA": self.media_port,
        }
        return {
            "FOLDER": INSIDE,
            "KEYS": f"{INSIDE}/keys",
            "ADDRESS": ADDRESS,
            "SIP": str(self.sip_port),
            "TLS": str(self.tls_port),
            "TLS_VERIFIED": str(self.verified_port),
            "HTTP": str(self.ari_port),
            "RTP_START": str(first),
            "RTP_END": str(first + RTP_PORTS - 1),
            "PASSWORD": PASSWORD,
            "HASH": hashlib.sha256(f"worker256:asterisk:{PASSWORD}".encode()).hexdigest(),
            "KEY": KEY,
            # Its WebSocket compares names with a certificate, and no addresses.
            "MEDIA_TLS": f"localhost:{self.media_tls_port}",
            **{name: f"{ADDRESS}:{port}" for name, port in addresses.items()},
        }

    def start(self) -> None:
        command = inside(self.system, self.folder, "asterisk", "-f", "-C", f"{INSIDE}/etc/asterisk.conf")
        with (self.folder / "console.log").open("ab") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        until(self._booted, 60, "Asterisk has booted")

    def _booted(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()[-4000:]
        return "fully booted" in self.cli("core waitfullybooted")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(timeout=30)

    def cli(self, command: str) -> str:
        """What `asterisk -rx` answers; "" while there is nobody to ask."""
        line = inside(self.system, self.folder, "asterisk", "-C", f"{INSIDE}/etc/asterisk.conf", "-rx", command)
        return subprocess.run(line, capture_output=True, text=True, timeout=30).stdout

    def log(self) -> str:
        full = self.folder / "var" / "full"
        return (full if full.exists() else self.folder / "console.log").read_text(errors="replace")

    def account(self, user: str = "worker", transport: str = "udp", expires_s: int = 300) -> dict[str, str]:
        """What makes a worker register here."""
        port = self.tls_port if transport == "tls" else self.sip_port
        registrar = f"sip:{ADDRESS}:{port};transport={transport}"
        entry = f'registrar = "{registrar}", user = "{user}", password = "{PASSWORD}", expires_s = {expires_s}'
        trust = {"SIP__TLS_CA": str(self.authority.cert)} if transport == "tls" else {}
        return {"SIP__ACCOUNTS": f"[{{{entry}}}]"} | trust

    def call(self, peer: str, say: str, context: str = "dial") -> None:
        """Dial what `peer` is in a context of extensions.conf; whoever answers is played what extension `say` plays."""
        self.cli("dialplan set global DIALLED none")
        self.cli(f"channel originate Local/{peer}@{context} extension {say}@say")

    def dialled(self) -> str:
        """What became of the last call that has ended: DIALSTATUS and the cause; "" before."""
        lines = self.cli("dialplan show globals").splitlines()
        value = next((line.split("=", 1)[1].strip() for line in lines if line.strip().startswith("DIALLED=")), "none")
        return "" if value == "none" else value

    def went_on(self, number: str) -> bool:
        """Whether the last call to an extension of `transcribe`, which is over, came to the Hangup that is its end."""
        story = self.log().rpartition(f"Executing [{number}@transcribe:1]")[2]
        return bool(re.search(rf"Executing \[{number}@transcribe:\d\] Hangup", story))

    def contact(self, name: str) -> str:
        """Of an account that has registered: `sip:…` and how it is; "" of one that has not."""
        lines = (
            line.split("Contact:", 1)[1] for line in self.cli("pjsip show contacts").splitlines() if "Contact:" in line
        )
        return next((line.strip() for line in lines if line.strip().startswith(f"{name}/sip:")), "")

    def messages(self, *words: str) -> list[str]:
        """The SIP messages in the log that hold all of `words`."""
        parts = re.split(r"<--- (?:Transmitting|Received) SIP [^\n]*\n", self.log())[1:]
        messages = [part.split("\n[", 1)[0] for part in parts]
        return [message for message in messages if all(word in message for word in words)]

    def channels(self) -> list[list[str]]:
        return [line.split("!") for line in self.cli("core show channels concise").splitlines() if "!" in line]


@contextlib.contextmanager
def running(system: Path, folder: Path) -> Iterator[Asterisk]:
    asterisk = Asterisk(system, folder)
    asterisk.configure()
    try:
        asterisk.start()
        yield asterisk
    finally:
        asterisk.stop()


def _tone() -> bytes:
    """What those hear who are held: ten seconds of 440 Hz, µ-law."""
    return ulaw_encode((8000 * np.sin(2 * np.pi * 440 * np.arange(80000) / 8000)).astype(np.int16))


def _rtp_range() -> int:
    """The first of some ports below the range that the system gives to outgoing connections."""
    return 20000 + ports(1)[0] % 40 * RTP_PORTS
