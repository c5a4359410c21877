"""The metrics of what is stored or read from a disk: events and their webhooks, files, jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from config.metrics.registry import Metrics
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask, file_bytes
from mediaworker.files.service import FileService
from mediaworker.jobs.service import JobService
from mediaworker.webhooks.events import EventFeed

if TYPE_CHECKING:
    from mediaworker.cluster.member import ClusterMember


def add_events(metrics: Metrics, hub: EventHub) -> None:
    event_log = hub.event_log
    metrics.counter("events_published", "Counts published events by type.", lambda: hub.published, "type")
    metrics.counter(
        "events_stray",
        "Counts events that were dropped because their call had not begun or had already ended.",
        lambda: hub.strays,
    )
    metrics.gauge("event_subscribers", "Shows how many connections to /v1/events are open.", lambda: hub.subscribers)
    metrics.counter(
        "event_subscribers_overrun",
        "Counts subscribers that were closed because they were too slow.",
        lambda: hub.overruns,
    )
    metrics.counter(
        "event_partials_dropped", "Counts partials that were dropped for slow subscribers.", lambda: hub.dropped
    )
    metrics.counter(
        "event_partials_shed",
        "Counts partials that were dropped because commits did not keep up.",
        lambda: event_log.shed,
    )
    metrics.histogram(
        "event_commit_seconds",
        "Measures how long a commit of events takes, including its wait for the writer's thread.",
        event_log.commit_s,
    )
    metrics.histogram(
        "event_delay_seconds",
        "Measures the time from an event's publication until it is sent to subscribers.",
        hub.delay_s,
    )


def add_event_store(metrics: Metrics, hub: EventHub, retention: RetentionTask) -> None:
    event_log, store, path = hub.event_log, hub.store, hub.file
    metrics.gauge(
        "event_store_backlog", "Shows how many durable events are not on disk yet.", lambda: event_log.backlog
    )
    metrics.gauge("event_store_ok", "Is 1 while events are being stored.", lambda: event_log.trouble is None)
    metrics.counter(
        "event_store_failures", "Counts commits to the event store that failed.", lambda: event_log.write_failures
    )
    metrics.counter(
        "event_store_lost",
        "Counts events that were given up because the disk did not accept them.",
        lambda: event_log.lost,
    )
    metrics.counter(
        "event_store_unstored",
        "Counts durable events that were sent with `stored` false because the disk did not accept them at that time.",
        lambda: event_log.unstored,
    )
    metrics.counter(
        "event_store_renewals",
        "Counts how often a new event store was begun because its file was damaged, deleted or replaced.",
        lambda: store.renewed,
        "reason",
    )
    metrics.counter(
        "event_store_damaged_records",
        "Counts stored events and call records that turned out to be unreadable.",
        lambda: store.damaged_records,
    )
    metrics.gauge(
        "event_store_files_set_aside",
        "Shows how many damaged event stores are in `data_dir` beside the one in use.",
        lambda: len(store.set_aside),
    )
    metrics.gauge(
        "event_store_bytes", "Shows the size of the event store on disk, including its log.", lambda: file_bytes(path)
    )
    metrics.gauge("event_store_rows", "Shows how many events are in the store.", lambda: retention.rows)
    metrics.gauge(
        "event_store_free_bytes", "Shows the free space on the disk of the event store.", lambda: _free_bytes(path)
    )
    metrics.counter("retention_calls", "Counts calls that retention has erased.", lambda: retention.erased_calls)
    metrics.counter("retention_events", "Counts events that retention has erased.", lambda: retention.erased_events)


def add_cluster(metrics: Metrics, member: ClusterMember) -> None:
    connection = member.connection
    metrics.gauge("cluster_connected", "Is 0 while the cluster cannot be reached.", lambda: not connection.trouble)
    metrics.gauge(
        "cluster_outbox_lag_seconds",
        "Shows how long the oldest event has waited that the stream of all workers has not taken.",
        lambda: member.outbox.lag_s,
    )
    metrics.gauge("cluster_calls", "Shows how many calls are live at all workers.", lambda: len(member.feed().calls))
    metrics.counter("cluster_reconnects", "Counts connections to NATS made again.", lambda: connection.reconnects)
    metrics.counter(
        "cluster_strays", "Counts events of calls whose beginning is not known here.", lambda: member.events.strays
    )
    metrics.counter(
        "cluster_closed_calls",
        "Counts calls that this worker has ended because theirs was gone.",
        lambda: member.leases.closed_calls,
    )
    metrics.counter(
        "cluster_jobs_taken_over",
        "Counts jobs that this worker has taken from one that was gone, for any worker to go on with.",
        lambda: member.jobs.taken_over,
    )
    metrics.counter(
        "cluster_unreadable_jobs",
        "Counts records of jobs in NATS that were left out because they cannot be read or are not what their key says.",
        lambda: member.jobs.unreadable,
    )
    metrics.counters("cluster_outbox", member.outbox.counters)
    metrics.counters("cluster_mirror", member.mirror.counters)


def add_event_webhooks(metrics: Metrics, feeds: Sequence[EventFeed]) -> None:
    metrics.counter(
        "event_webhook_events",
        (
"Counts events by webhook and outcome: accepted by the receiver, given up, or skipped"
" because they had been erased."
),
        lambda: {
            (feed.name, outcome): count
            for feed in feeds
            for outcome, count in (
                ("delivered", feed.outbox.delivered), ("given_up", feed.outbox.given_up), ("skipped", feed.skips)
            )
        },
        "webhook", "outcome",
    )  # fmt: skip
    metrics.counter(
        "event_webhook_tries",
        "Counts requests made to webhooks for events.",
        lambda: {feed.name: feed.outbox.tries for feed in feeds},
        "webhook",
    )
    metrics.gauge(
        "event_webhook_lag_seconds",
        "Shows the age of the oldest event that a webhook's receiver has not accepted.",
        lambda: {feed.name: feed.lag_s for feed in feeds},
        "webhook",
    )


def add_files(metrics: Metrics, files: FileService) -> None:
    metrics.counters("file", files.stats)
    metrics.gauge(
        "files_open", "Shows how many files are in progress, of requests and of jobs.", lambda: files.open_files
    )
    metrics.gauge("file_requests", "Shows how many requests with a file are being answered.", lambda: files.requests)
    metrics.gauge(
        "file_requests_queued",
        "Shows how many requests with a file are waiting for their turn (files.queue_s).",
        lambda: files.waiting,
    )
    metrics.counter(
        "file_requests_rejected", "Counts requests with a file that were answered with 429.", lambda: files.rejected
    )
    metrics.histogram(
        "file_first_text_seconds",
        "Measures the time from the end of an upload to the first text of its file.",
        files.first_text,
    )


def add_jobs(metrics: Metrics, jobs: JobService) -> None:
    store, webhooks = jobs.store, jobs.webhooks
    metrics.gauge("jobs_queued", "Shows how many jobs are waiting.", lambda: jobs.queued)
    metrics.gauge("jobs_running", "Shows how many jobs are running.", lambda: jobs.running)
    metrics.counter("jobs_ended", "Counts finished jobs by how they ended.", lambda: store.ended, "status")
    metrics.counter("jobs_erased", "Counts jobs that somebody had erased, with their results.", lambda: jobs.erased)
    metrics.counter("jobs_expired", "Counts jobs that were erased for their age.", lambda: jobs.expired)
    metrics.gauge("job_store_ok", "Is 1 while jobs can be stored.", lambda: store.trouble is None)
    metrics.counter(
        "job_store_renewals",
        "Counts how often a new job store was begun because its file was damaged, deleted or replaced.",
        lambda: store.renewed,
        "reason",
    )
    metrics.counter(
        "job_store_damaged_records",
        "Counts stored jobs and segments that turned out to be unreadable.",
        lambda: store.damaged_records,
    )
    metrics.gauge(
        "job_store_files_set_aside",
        "Shows how many damaged job stores are in `data_dir` beside the one in use.",
        lambda: len(store.set_aside),
    )
    metrics.counter("webhook_tries", "Counts requests made to webhooks for finished jobs.", lambda: webhooks.tries)
    metrics.counter(
        "webhooks_delivered", "Counts finished jobs whose webhook was delivered.", lambda: webhooks.delivered
    )
    metrics.counter("webhooks_failed", "Counts finished jobs whose webhook was given up.", lambda: webhooks.given_up)


def _free_bytes(path: Path) -> float:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return 0.0
    return disk.f_bavail * disk.f_frsize
