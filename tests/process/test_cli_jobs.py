"""`mediaworker jobs` at a real worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx

from lab.chaos.jobs import recording
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import seconds, until
from lab.worker.peers import worker

KEY, OTHER = "ann-key-1234", "screen-key-1"
KEYS = f'[{{name="ann", key="{KEY}", scopes=["batch"]}}, {{name="screen", key="{OTHER}", scopes=["events"]}}]'


def test_jobs_are_listed_shown_read_and_erased(tmp_path: Path) -> None:
    recording(tmp_path / "short.wav", 2, 1)
    with worker(tmp_path, LISTENER_PATH, SIP__ENABLED="false", AUTH__API_KEYS=KEYS, **LISTENER) as running:

        def jobs(*arguments: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "mediaworker", "jobs", *arguments, "--url", running.url, "--key", key]
            return subprocess.run(command, capture_output=True, text=True, timeout=seconds(60))

        assert (jobs().returncode, jobs().stdout) == (0, "")
        with (tmp_path / "short.wav").open("rb") as file:
            url, headers = f"{running.url}/v1/jobs", {"Authorization": f"Bearer {KEY}"}
            made = httpx.post(url, headers=headers, files={"file": file}, timeout=seconds(30)).raise_for_status()
        name = made.json()["id"]
        until(lambda: json.loads(jobs(name, "--json").stdout)["status"] == "completed")
        listed = jobs()
        assert listed.returncode == 0 and listed.stdout.startswith(name) and "short.wav" in listed.stdout
        assert "100%" in listed.stdout and listed.stdout.count("\n") == 1
        assert jobs(name, "--result", "txt").stdout.strip()
        assert " --> " in jobs(name, "--result", "srt").stdout
        assert (erased := jobs(name, "--cancel")).returncode == 0 and erased.stdout == "erased\n"
        gone = jobs(name)
        assert gone.returncode == 1 and "refused with status 404: " in gone.stderr and gone.stderr.count("\n") == 1
        strange = jobs("../calls")
        assert strange.returncode == 1 and "404" in strange.stderr
        assert "lacks the scope `batch`" in jobs(key=OTHER).stderr
        assert jobs("--result", "txt").returncode == 2
