"""What a job is, on disk and to its owner."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from mediaworker.events.frame import timestamp
from mediaworker.files.options import Options

State = Literal["queued", "running", "completed", "failed", "cancelled"]
ACTIVE: tuple[State, ...] = ("queued", "running")
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file."""

    filename: str
    """As its sender calls it; its suffix tells headerless formats."""
    bytes: int
    path: str = ""
    """On this machine; empty: it was uploaded."""
    mtime_ns: int = 0
    """Of a path: it must not change while the job is in work."""
    worker: str = ""
    """In a cluster, the worker that was given the path, by the id of its store."""


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is told of the end."""

    url: str
    state: Literal["waiting", "delivered", "failed"] = "waiting"
    """`waiting`: for the end of the job, or for a try that succeeds."""
    attempts: int = 0
    next_s: float = 0.0
    """Unix time of the next try."""
    error: str = ""
    """What came of the last one."""


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times are Unix seconds."""

    id: str
    """UUIDv7: sorts by creation."""
    owner: str
    """Name of the key."""
    source: Source
    options: Options
    created_s: float
    state: State = "queued"
    started_s: float | None = None
    ended_s: float | None = None
    duration_s: float | None = None
    """Of the audio; while it is running, as the file says."""
    done_s: float = 0.0
    """Of it recognised."""
    channels: int = 1
    chunks: int = 0
    """Stretches of speech that are finished."""
    failed_chunks: int = 0
    damaged: int = 0
    jumps: int = 0
    code: str = ""
    error: str = ""
    """Why it failed, or what it waits for."""
    not_before_s: float = 0.0
    waits_since_s: float = 0.0
    """Since when it has been put off again and again; 0: it has not."""
    webhook: Webhook | None = None
    worker: str = ""
    """In a cluster, the worker that has written it last, by the id of its store: it runs a running job and posts the
    webhook of an ended one."""

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def over(self) -> bool:
        """It has ended, and nobody waits to be told."""
        return not self.active and (self.webhook is None or self.webhook.state != "waiting")


def is_job_id(text: str) -> bool:
    """A UUID as it is written (RFC 9562 section 4): nothing that could be a path."""
    return _UUID.fullmatch(text) is not None


def created_s(job_id: str) -> float:
    """Unix time of a UUIDv7 (RFC 9562 section 5.7), in its first 48 bits."""
    return int(job_id.replace("-", "")[:12], 16) / 1000


def public(job: Job) -> dict[str, Any]:
    """The job as its owner sees it. Times are RFC 3339."""

    def time(seconds: float | None) -> str | None:
        return None if seconds is None else timestamp(seconds)

    total_s = job.duration_s
    ratio = 1.0 if job.state == "completed" else min(1.0, job.done_s / total_s) if total_s else None
    found: dict[str, Any] = {
        "id": job.id,
        "status": job.state,
        "file": {"name": job.source.filename, "bytes": job.source.bytes},
        "options": msgspec.to_builtins(job.options),
        "created_at": time(job.created_s),
        "started_at": time(job.started_s),
        "ended_at": time(job.ended_s),
        "progress": {
            "done_s": round(job.done_s, 3),
            "duration_s": None if total_s is None else round(total_s, 3),
            "ratio": None if ratio is None else round(ratio, 4),
            "segments": job.chunks,
        },
    }
    if job.source.path:
        found["file"]["path"] = job.source.path
    if job.failed_chunks or job.damaged or job.jumps:
        found["warnings"] = {
            "failed_segments": job.failed_chunks,
            "damaged_packets": job.damaged,
            "clock_jumps": job.jumps,
        }
    if job.error:
        found["error"] = {"code": job.code, "message": job.error}
    if job.webhook is not None:
        found["webhook"] = {"url": job.webhook.url, "status": job.webhook.state, "attempts": job.webhook.attempts}
    return found
