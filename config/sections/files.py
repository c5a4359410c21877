"""Files and the jobs that transcribe them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from config.sections.section import Positive, Secret, Section


class Files(Section, frozen=True, kw_only=True):
    """Files: how they are read, and what of them may be in work at once."""

    max_upload_mb: Positive = 2048
    """A file larger than this many MB is answered 413."""
    max_hours: Annotated[float, Meta(gt=0)] = 24.0
    """A file that lasts longer than this many hours is refused."""
    parallel_segments: Annotated[int, Meta(ge=1, le=64)] = 8
    """This many segments of speech of one file are recognised at the same time."""
    min_free_mb: Annotated[int, Meta(ge=0)] = 1024
    """This many MB of the disk stay free for calls: an upload that would take of them is answered 507."""
    max_requests: Positive = 16
    """This many requests with a file are served at once; as many more may wait for `files.queue_s`, and the rest are
    answered 429."""
    max_requests_per_key: Positive = 8
    """This many requests with a file are served at once for one key; as many more may wait for `files.queue_s`, and the
    rest are answered 429."""
    queue_s: Annotated[float, Meta(ge=0)] = 10.0
    """A request beyond `files.max_requests` or `files.max_requests_per_key` waits this many seconds for a place before
    it is answered 429."""


class Jobs(Section, frozen=True, kw_only=True):
    """Files that are transcribed in the background. Their uploads and results are in `data_dir`."""

    parallel: Annotated[int, Meta(ge=1, le=64)] = 4
    """This many jobs are in work at once; they take turns in the engine."""
    parallel_per_key: Positive = 4
    """This many jobs of one key are in work at once."""
    max_queued_per_key: Positive = 1000
    """A key may have this many jobs that have not ended; more are answered 429."""
    roots: tuple[str, ...] = ()
    """Files in these folders on this machine may be named by `path` instead of uploaded."""
    keep_days: Annotated[float, Meta(gt=0)] = 7.0
    """Ended jobs are kept this many days, with their results; an upload is erased as soon as its job has ended."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """A job waits this many hours for an engine that does not start, and a webhook is tried again for as long."""
    webhook_secret: Secret = Secret("")
    """The webhooks of ended jobs are signed with this secret (Standard Webhooks); without it none can be asked for. It
    has at least 24 characters, or is `whsec_` and base64 of at least 24 bytes."""
    webhook_allow: tuple[str, ...] = ()
    """Webhooks of jobs may go to these addresses or networks (CIDR) though they are not public: `["10.1.2.0/24"]`.
    While it is empty a URL that leads to loopback, a private network or a cloud's metadata is never connected to."""
