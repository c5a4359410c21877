"""The record of a job: its form on the disk, and its form for the owner (`public`)."""

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
    """The file that a job transcribes."""

    filename: str
    """The client's name of the file; its suffix gives the format of a file without a header."""
    bytes: int
    path: str = ""
    """The path on the worker's machine; empty for an upload."""
    mtime_ns: int = 0
    """The modification time of the file at `path`, which must not change until the job has ended."""
    worker: str = ""
    """In a cluster, the id of the store of the worker on whose machine `path` is."""


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """The webhook that is posted at the end of a job, and its state."""

    url: str
    state: Literal["waiting", "delivered", "failed"] = "waiting"
    """`waiting`: until the job has ended and an attempt has succeeded."""
    attempts: int = 0
    next_s: float = 0.0
    """The Unix time of the next attempt."""
    error: str = ""
    """The error of the last attempt; empty when there was none."""


class Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job with its state and progress. Times (`…_s`) are Unix seconds, durations seconds of audio."""

    id: str
    """A UUIDv7, so that ids sort by the time of creation."""
    owner: str
    """The name of the API key that created it."""
    source: Source
    options: Options
    created_s: float
    state: State = "queued"
    started_s: float | None = None
    ended_s: float | None = None
    duration_s: float | None = None
    """The duration of the audio; until the job has ended, the duration that the file declares."""
    done_s: float = 0.0
    """The position in the audio before which everything is recognised."""
    channels: int = 1
    chunks: int = 0
    """The number of finished segments."""
    failed_chunks: int = 0
    damaged: int = 0
    jumps: int = 0
    code: str = ""
    error: str = ""
    """Why the job failed, or why it has been put off."""
    not_before_s: float = 0.0
    """The time before which it is not tried again."""
    waits_since_s: float = 0.0
    """The time since which every attempt has been put off; 0: the last one was not."""
    webhook: Webhook | None = None
    worker: str = ""
    """In a cluster, the id of the store of the worker that wrote the record last: that worker runs a running job and
    posts the webhook of an ended one."""

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def over(self) -> bool:
        """True when the job has ended and no webhook is left to post."""
        return not self.active and (self.webhook is None or self.webhook.state != "waiting")


def is_job_id(text: str) -> bool:
    """Return whether the text is a UUID in its written form (RFC 9562 section 4), which can be no path."""
    return _UUID.fullmatch(text) is not None


def created_s(job_id: str) -> float:
    """Return the Unix time in the first 48 bits of a UUIDv7 (RFC 9562 section 5.7)."""
    return int(job_id.replace("-", "")[:12], 16) / 1000


def public(job: Job) -> dict[str, Any]:
    """Return the job as its owner sees it. Times are RFC 3339."""

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
