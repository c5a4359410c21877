"""Schemathesis against a live worker: made-up requests for every route, answers held to `/openapi.json`.

    python -m tools.fuzz_api [--examples N]

Exits 1 when an answer is not documented, has another body than documented, or is a failure of the worker's own.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.worker.peers import ROOT, command, worker

LOCK = ROOT / "requirements" / "schemathesis.lock"
KEY = "fuzz-key-1"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "ignored_auth", "unsupported_method",
)  # fmt: skip


def environment() -> Path:
    """The folder of its programs; made once for each lock, outside the checkout. Raises CalledProcessError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mediaworker"
    cache = Path(os.environ.get("MEDIAWORKER_CACHE", cache))
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    place = cache / f"schemathesis-{digest}-cp{sys.version_info[0]}{sys.version_info[1]}"
    if not (place / "complete").exists():
        print(f"fuzz: installing Schemathesis into {place}", flush=True)
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
        (place / "complete").touch()
    return place / "bin"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200, metavar="N", help="requests for each route (default 200)")
    arguments = parser.parse_args()
    programs = environment()
    keys = f'[{{name = "fuzz", key = "{KEY}", scopes = ["events", "admin", "batch", "stream"]}}]'
    with tempfile.TemporaryDirectory() as folder:
        options = {"SIP__ENABLED": "false", "ASR__PRELOAD": "true", "AUTH__API_KEYS": keys}
        with worker(Path(folder), **options) as running:
            # A call, so that there is something to find.
            speech = str(ROOT / "tests" / "data" / "digits" / "agent.ulaw")
            assert command("stream", running.twilio, "--play", speech, "--tail", "0").returncode == 0
            schemathesis = [
                str(programs / "schemathesis"), "run", f"{running.url}/openapi.json",
                "--header", f"Authorization: Bearer {KEY}", "--checks", ",".join(CHECKS),
                # A stream of events has no end.
                "--exclude-path", "/v1/events", "--max-examples", str(arguments.examples), "--continue-on-failure",
                "--request-timeout", "60", "--suppress-health-check", "all", "--no-color",
            ]  # fmt: skip
            environ = os.environ | {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(ROOT / "tools")}
            return subprocess.run(schemathesis, cwd=folder, env=environ).returncode


if __name__ == "__main__":
    sys.exit(main())
