"""Files uploaded to a worker, and the jobs and the files on disk that come of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

from lab.patience import until
from lab.worker.peers import Worker


def jobs(by: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = by.get("/v1/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def folder(running: Worker) -> list[str]:
    """Uploads on the disk."""
    return sorted(os.listdir(running.data_dir / "jobs"))


def upload(by: httpx.Client, path: Path, **fields: Any) -> httpx.Response:
    return by.post("/v1/jobs", files={"file": (path.name, path.read_bytes())}, data=fields)


def name(by: httpx.Client, path: Path | str, **fields: Any) -> httpx.Response:
    return by.post("/v1/jobs", json={"path": str(path), **fields})


def made(answer: httpx.Response) -> str:
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return str(answer.json()["id"])


def ended(by: httpx.Client, job_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        job: dict[str, Any] = by.get(f"/v1/jobs/{job_id}").json()
        return job if job["status"] not in ("queued", "running") else None

    found: dict[str, Any] = until(look, 60, "the job ends")
    return found
