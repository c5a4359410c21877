"""A certificate authority of the tests', by openssl, and stunnel, which speaks TLS for programs that do not."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]


@dataclass(frozen=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(["-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.cert)])

    def issue(self, name: str, *alternatives: str, file: str = "", use: str = "") -> Pair:
        """`alternatives`: as openssl writes them, `DNS:localhost`, `IP:127.0.0.1`; and so is `use`: `clientAuth`."""
        stem = file or f"{self._name}-{name}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        signed = ["-CA", str(self.cert), "-CAkey", str(self._key), "-addext", "basicConstraints=critical,CA:FALSE"]
        names = ["-addext", f"subjectAltName={','.join(alternatives)}"] if alternatives else []
        names += ["-addext", f"extendedKeyUsage={use}"] if use else []
        _openssl([*signed, *names, "-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(pair.cert)])
        return pair


def _openssl(arguments: list[str]) -> None:
    subprocess.run(["openssl", "req", "-x509", *_KEY, *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def stunnel(
    folder: Path,
    listen: int,
    connect: int,
    pair: Pair | None = None,
    *,
    client: bool = False,
    ca: Path | None = None,
    name: str = "",
) -> Iterator[None]:
    """TLS on `listen` to TCP on `connect`, as the server with `pair`; the other way round as a client."""
    lines = ["foreground = yes", "syslog = no", "pid =", "debug = notice", "socket = r:TCP_NODELAY=1", "[sip]"]
    lines += [f"client = {'yes' if client else 'no'}", f"accept = 127.0.0.1:{listen}", f"connect = 127.0.0.1:{connect}"]
    lines += ["TIMEOUTclose = 0", "retry = no"]
    if pair:
        lines += [f"cert = {pair.cert}", f"key = {pair.key}"]
    if ca:
        lines += [f"CAfile = {ca}", "verifyChain = yes"]
    if name:
        lines += [f"checkHost = {name}"]
    file = folder / f"stunnel-{listen}.conf"
    file.write_text("\n".join(lines) + "\n")
    with (folder / f"stunnel-{listen}.log").open("wb") as log:
        process = subprocess.Popen(["stunnel", str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(listen, process)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Looked up, not tried: a connection would go through to the other side."""
    wanted = f"{socket.ntohl(0x7F000001) & 0xFFFFFFFF:08X}:{port:04X} 00000000:0000 0A"
    deadline = time.monotonic() + 10
    while wanted not in Path("/proc/net/tcp").read_text():
        assert process.poll() is None and time.monotonic() < deadline, "stunnel does not listen"
        time.sleep(0.02)
