"""What an idle worker costs: memory and CPU of the media process after start, with and without SIP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

SECONDS = 10.0


def main() -> None:
    for sip in ("true", "false"):
        rss_mb, cpu_share, children = measure(sip)
        print(f"sip {sip:5}: {rss_mb:.0f} MB RSS, {100 * cpu_share:.2f} % of a core, {children} inference processes")


def measure(sip: str) -> tuple[float, float, int]:
    ports = [free_port() for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {
            "MEDIAWORKER_DATA_DIR": folder,
            "MEDIAWORKER_SIP__ENABLED": sip,
            "MEDIAWORKER_HTTP__PORT": str(ports[0]),
            "MEDIAWORKER_MEDIA__PORT": str(ports[1]),
            "MEDIAWORKER_SIP__PORT": str(ports[2]),
            "MEDIAWORKER_LOG__LEVEL": "error",
        }
        worker = subprocess.Popen([sys.executable, "-m", "mediaworker.cli.main", "serve"], env=environ)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/healthz", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            time.sleep(2)
            before = cpu_s(worker.pid)
            time.sleep(SECONDS)
            share = (cpu_s(worker.pid) - before) / SECONDS
            with open(f"/proc/{worker.pid}/statm") as file:
                rss_mb = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024**2
            with open(f"/proc/{worker.pid}/task/{worker.pid}/children") as file:
                children = len(file.read().split())
            return rss_mb, share, children
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
