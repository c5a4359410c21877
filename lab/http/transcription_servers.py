"""Servers of OpenAI's transcription route that are not ours, and a proxy that turns requests away before one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab.network.ports import free_port
from lab.patience import until
from lab.worker.peers import ROOT

LOCK = ROOT / "requirements" / "serve.txt"
HAPROXY = """
defaults
  mode http
  timeout client 30s
  timeout connect 5s
  timeout server 30s
backend asked
  stick-table type ip size 10 expire 10m store http_req_rate(1s)
frontend entry
  bind 127.0.0.1:{port}
  http-request track-sc0 src table asked
  acl post method POST
  http-request return status 429 hdr Retry-After 1 if post {{ sc_http_req_rate(0) gt {per_second} }}
  default_backend worker
backend worker
  server worker 127.0.0.1:{behind}
"""


@contextlib.contextmanager
def transformers_serve(folder: Path) -> Iterator[str]:
    """`transformers serve` of the installed transformers. -> its base URL."""
    port = free_port()
    environ = {
        "PYTHONPATH": str(_site()),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
        "OMP_NUM_THREADS": "1",
    }
    code = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with (folder / "serve.log").open("wb") as log:
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, env=os.environ | environ, cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: _listens(port, process), 90)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def busy(folder: Path, behind: int, per_second: int) -> Iterator[str]:
    """HAProxy, which lets so many requests a second through and answers others with 429. -> its base URL."""
    port = free_port()
    (folder / "haproxy.cfg").write_text(HAPROXY.format(port=port, behind=behind, per_second=per_second))
    program = shutil.which("haproxy", path=f"/usr/sbin:{os.environ['PATH']}")
    assert program, "apt install haproxy"
    process = subprocess.Popen([program, "-q", "-f", str(folder / "haproxy.cfg")])
    try:
        until(lambda: _listens(port, process))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(10)


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the server has ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _site() -> Path:
    """Where its packages are; made once for each lock, outside the checkout."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mediaworker"
    cache = Path(os.environ.get("MEDIAWORKER_CACHE", cache))
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    place = cache / f"serve-{digest}-cp{sys.version_info[0]}{sys.version_info[1]}"
    if not place.exists():
        making = place.with_name(f"{place.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--target", str(making), "-r", str(LOCK)], check=True)
        with contextlib.suppress(OSError):  # another process of the tests was first
            making.rename(place)
    return place
