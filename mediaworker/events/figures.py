"""The hub's counters under their Prometheus names."""

from __future__ import annotations

from mediaworker.events.hub import EventHub
from mediaworker.ops.metrics import MetricsRegistry


def register(metrics: MetricsRegistry, hub: EventHub) -> None:
    journal, store = hub.journal, hub.store
    metrics.counter(
        "events_published",
        "Events by type",
        lambda: {(kind,): count for kind, count in hub.published.items()},
        labels=("type",),
    )
    metrics.counter("events_stray", "Events dropped because their call had not begun or had ended", lambda: hub.strays)
    metrics.gauge("event_subscribers", "Connections to /v1/events", lambda: hub.subscribers)
    metrics.counter("event_subscribers_overrun", "Subscribers closed because they were too slow", lambda: hub.overruns)
    metrics.counter("event_partials_dropped", "Partials dropped for slow subscribers", lambda: hub.dropped)
    metrics.counter("event_partials_shed", "Partials dropped because commits did not keep up", lambda: journal.shed)
    metrics.gauge("event_store_backlog", "Durable events not on disk yet", lambda: journal.backlog)
    metrics.gauge("event_store_ok", "1 while events are being stored", lambda: float(journal.trouble is None))
    metrics.counter("event_store_failures", "Commits that failed", lambda: journal.write_failures)
    metrics.counter("event_store_lost", "Events given up because the disk did not take them", lambda: journal.lost)
    metrics.counter(
        "event_store_unstored",
        "Durable events that were sent with `stored` false, because the disk did not take them at that time",
        lambda: journal.unstored,
    )
    metrics.counter(
        "event_store_renewals",
        "Times a new event store was begun because its file was damaged, deleted or replaced",
        lambda: {(reason,): float(count) for reason, count in store.renewed.items()},
        labels=("reason",),
    )
    metrics.counter(
        "event_store_damaged_records",
        "Stored events and call records that were met and could not be read",
        lambda: store.damaged_records,
    )
    metrics.gauge(
        "event_store_files_set_aside",
        "Damaged event stores that lie in `data_dir` beside the one in use",
        lambda: len(store.set_aside),
    )
    metrics.histogram("event_commit_seconds", "Time of a commit, its wait for the thread included", journal.commit_s)
    metrics.histogram("event_delay_seconds", "From an event's publication to its fan-out", hub.delay_s)
