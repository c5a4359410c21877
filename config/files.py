"""Files and the jobs that transcribe them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from config.section import Positive, Secret, Section


class Files(Section, frozen=True, kw_only=True):
    """Files: how they are read, and what of them may be in work at once."""

    max_upload_mb: Positive = 2048
    """Of one file; larger ones are answered 413."""
    max_hours: Annotated[float, Meta(gt=0)] = 24.0
    """Of its audio."""
    parallel_segments: Annotated[int, Meta(ge=1, le=64)] = 8
    """Stretches of speech of one file in work at the same time."""
    memory_mb: Annotated[int, Meta(ge=512)] = 1536
    """Address space of the process that decodes a file; it uses about 60 MB."""
    cpu_s: Positive = 3600
    """Processor time, in seconds, that decoding one file may take; a file that takes more is refused. An hour of one
    channel takes about 6 s."""
    decoder_timeout_s: Annotated[float, Meta(gt=0)] = 60.0
    """A decoder that says nothing for so long is ended."""
    min_free_mb: Annotated[int, Meta(ge=0)] = 1024
    """So much of the disk stays free for calls: an upload that would take of it is answered 507."""
    max_requests: Positive = 16
    """Requests with a file that are served at once. As many more may wait for `queue_s`; the rest are answered 429."""
    max_requests_per_key: Positive = 8
    """The same for the requests of one key."""
    queue_s: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds for which a request beyond `max_requests` or `max_requests_per_key` waits for a place before it is
    answered 429."""
    heartbeat_s: Annotated[float, Meta(ge=1)] = 10.0
    """A stream of text that has nothing to say says so this often."""


class Jobs(Section, frozen=True, kw_only=True):
    """Files that are transcribed in the background. Their uploads and results are in `data_dir`."""

    parallel: Annotated[int, Meta(ge=1, le=64)] = 4
    """In work at once; they take turns in the engine."""
    parallel_per_key: Positive = 4
    max_queued_per_key: Positive = 1000
    """Not yet ended; more are answered 429."""
    roots: tuple[str, ...] = ()
    """Folders on this machine whose files may be named by `path` instead of uploaded."""
    keep_days: Annotated[float, Meta(gt=0)] = 7.0
    """Ended jobs, with their results. An upload is erased as soon as its job has ended."""
    retry_hours: Annotated[float, Meta(ge=0)] = 24.0
    """So long a job waits for an engine that does not start, and a webhook is tried again."""
    webhook_secret: Secret = Secret("")
    """Signs the webhooks of ended jobs (Standard Webhooks); without it none can be asked for. At least 24 characters,
    or `whsec_` and base64 of at least 24 bytes."""
    webhook_allow: tuple[str, ...] = ()
    """Addresses or networks (CIDR) that these webhooks may go to though they are not public: `["10.1.2.0/24"]`. Empty:
    a URL that leads to loopback, a private network or a cloud's metadata is never connected to."""
