"""What `/readyz` answers, whether it is 200 or 503."""

from __future__ import annotations

import contextlib
import json
import urllib.error

from lab.worker.peers import Worker


def ready(worker: Worker) -> bool:
    with contextlib.suppress(urllib.error.HTTPError):
        worker.get("/readyz")
        return True
    return False


def states(running: Worker) -> list[str]:
    return [each["state"] for each in readiness(running)["engine"]["servers"]]


def readiness(running: Worker) -> dict:
    try:
        return running.get("/readyz")
    except urllib.error.HTTPError as error:
        return json.load(error)
