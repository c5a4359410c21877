"""Counters of files and jobs under their Prometheus names."""

from __future__ import annotations

from mediaworker.files.service import FileService
from mediaworker.jobs.service import JobService
from mediaworker.ops.metrics import MetricsRegistry


def register(metrics: MetricsRegistry, files: FileService, jobs: JobService) -> None:
    stats = files.stats
    metrics.gauge("files_open", "Files in work, of requests and of jobs", lambda: files.open_files)
    metrics.gauge("file_requests", "Requests with a file that wait for their answer", lambda: files.requests)
    metrics.gauge(
        "file_requests_queued", "Requests with a file that wait for a place (files.queue_s)", lambda: files.waiting
    )
    metrics.counter("file_requests_rejected", "Requests with a file answered 429", lambda: files.rejected)
    metrics.counter("file_segments", "Stretches of speech of files that were recognised", lambda: stats.chunks)
    metrics.counter(
        "file_segments_failed", "Stretches of speech of files that ended without text", lambda: stats.failed_chunks
    )
    metrics.counter(
        "file_segments_retried",
        "Stretches of speech of files that were sent again because the engine had died",
        lambda: stats.retried_chunks,
    )
    metrics.counter("file_audio_seconds", "Audio of files that were read to their end", lambda: stats.audio_s)
    metrics.counter(
        "files_refused",
        "Files refused or failed, by the fault",
        lambda: {(fault,): float(count) for fault, count in stats.refused.items()},
        labels=("fault",),
    )
    metrics.histogram(
        "file_first_text_seconds", "From the end of an upload to the first text of its file", files.first_text
    )
    metrics.gauge("jobs_queued", "Jobs that wait", lambda: jobs.queued)
    metrics.gauge("jobs_running", "Jobs in work", lambda: jobs.running)
    metrics.counter(
        "jobs_ended",
        "Jobs by how they ended",
        lambda: {(state,): float(count) for state, count in jobs.store.ended.items()},
        labels=("status",),
    )
    metrics.gauge("job_store_ok", "1 while jobs can be written down", lambda: float(jobs.store.trouble is None))
    store = jobs.store
    metrics.counter(
        "job_store_renewals",
        "Times a new job store was begun because its file was damaged, deleted or replaced",
        lambda: {(reason,): float(count) for reason, count in store.renewed.items()},
        labels=("reason",),
    )
    metrics.counter(
        "job_store_damaged_records",
        "Stored jobs and stretches of them that were met and could not be read",
        lambda: store.damaged_records,
    )
    metrics.gauge(
        "job_store_files_set_aside",
        "Damaged job stores that lie in `data_dir` beside the one in use",
        lambda: len(store.set_aside),
    )
    webhooks = jobs.webhooks
    metrics.counter("webhook_tries", "Requests that told of a job's end", lambda: webhooks.tries)
    metrics.counter("webhooks_delivered", "Ends that were told", lambda: webhooks.delivered)
    metrics.counter("webhooks_failed", "Ends that were given up to tell", lambda: webhooks.given_up)
