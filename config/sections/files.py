"""The settings of files and of the jobs that transcribe them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from config.sections.section import Positive, Reloadable, Secret, Section


class Files(Section, frozen=True, kw_only=True):
    """Transcription of files: limits, and how many are in progress at once."""

    max_upload_mb: Positive = 2048
    """A file larger than this many MB is answered with 413."""
    max_hours: Annotated[float, Meta(gt=0)] = 24.0
    """A file longer than this many hours is refused."""
    parallel_segments: Annotated[int, Meta(ge=1, le=64)] = 8
    """At most this many segments of one file are recognised at the same time."""
    min_free_mb: Annotated[int, Meta(ge=0)] = 1024
    """Uploads leave at least this many MB of the disk free for calls; one that would need more is answered with 507."""
    max_requests: Positive = 16
    """At most this many requests with a file are served at once; eight times as many wait for up to `files.queue_s`,
    and the rest are answered with 429."""
    max_requests_per_key: Positive = 8
    """At most this many requests with a file are served at once for one key; eight times as many wait for up to
    `files.queue_s`, and the rest are answered with 429."""
    queue_s: Annotated[float, Meta(ge=0)] = 50.0
    """A request waits up to this many seconds for its turn before it is answered with 429. Many proxies give up after
    60."""


class Jobs(Section, frozen=True, kw_only=True):
    """Files that are transcribed in the background. Uploads and results are kept in `data_dir`."""

    parallel: Reloadable[Annotated[int, Meta(ge=1, le=64)]] = 4
    """At most this many jobs run at once, sharing the engine in turns."""
    parallel_per_key: Reloadable[Positive] = 4
    """At most this many jobs of one key run at once."""
    max_queued_per_key: Reloadable[Positive] = 1000
    """A key may have this many unfinished jobs; further ones are answered with 429."""
    roots: tuple[str, ...] = ()
    """Files in these folders of this machine may be named by `path` instead of being uploaded."""
    keep_days: Reloadable[Annotated[float, Meta(gt=0)]] = 7.0
    """Finished jobs and their results are kept for this many days; uploads are erased as soon as their job has
    finished."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """For this many hours a job waits for an engine that does not start, and a webhook is retried."""
    webhook_secret: Reloadable[Secret] = Secret("")
    """Webhooks of finished jobs are signed with this secret (Standard Webhooks), and cannot be requested without it. It
    has at least 24 characters, or is `whsec_` followed by base64 of at least 24 bytes."""
    webhook_secret_next: Reloadable[Secret] = Secret("")
    """Webhooks carry a signature with this second secret as well, so that the secret can be rotated."""
    webhook_allow: tuple[str, ...] = ()
    """Webhooks of jobs may go to these addresses or networks (CIDR) although they are not public: `["10.1.2.0/24"]`.
    All other URLs that lead to loopback, a private network or a cloud's metadata service are refused."""
