"""What is common to calls of every ingress: the words that are expected, and the processes that a worker has."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from lab.engine.offline import Expected
from lab.worker.peers import COMMAND, ROOT, Worker


def said(worker: Worker, call_id: str) -> list[str]:
    return [event["text"] for event in worker.events(call_id) if event["type"] == "transcript.final"]


TOLERANCE_MS = 32 + 60
"""One VAD window and the reorder wait."""


def check_heard(finals: list[dict[str, Any]], expected: list[Expected], *, shift_ms: int | None = None) -> None:
    assert expected, "the recording has speech"
    assert [final["text"] for final in finals] == [utterance.text for utterance in expected]
    if shift_ms is None:  # when the first packet came, in call time
        shift_ms = finals[0]["start_ms"] - expected[0].start_ms
        assert 0 <= shift_ms < 3000
    for final, utterance in zip(finals, expected, strict=True):
        assert abs(final["start_ms"] - shift_ms - utterance.start_ms) <= TOLERANCE_MS
        assert abs(final["end_ms"] - shift_ms - utterance.end_ms) <= TOLERANCE_MS
        assert final["lost_ms"] == 0


def start(*arguments: str) -> Any:
    return subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
