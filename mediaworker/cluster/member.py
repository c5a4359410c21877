"""This worker's membership in a cluster: it builds, starts and stops everything that `cluster.nats` adds."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from config import Settings
from config.metrics.registry import MetricsRegistry
from mediaworker.calls.registry import CallRegistry
from mediaworker.cluster.accounts import ClusterAccounts
from mediaworker.cluster.connection import ClusterUnreachable, NatsConnection
from mediaworker.cluster.directory import ClusterDirectory
from mediaworker.cluster.erasure import ClusterRetention
from mediaworker.cluster.events import ClusterEvents
from mediaworker.cluster.jobs import ClusterJobStore
from mediaworker.cluster.leases import Leases
from mediaworker.cluster.mirror import Mirror
from mediaworker.cluster.outbox import ClusterOutbox
from mediaworker.events.hub import EventHub
from mediaworker.events.store import EventStore, StoreError
from mediaworker.events.stored_events import StoredEvents
from mediaworker.tracing.traces import Traces

if TYPE_CHECKING:
    from sip.pjsip.accounts import RegisteredAccount

FOLDER = "cluster"
"""The folder in `data_dir` with this worker's copy of all workers' events."""
PUBLISH_S = 5.0
"""The time limit at shutdown for publishing the rest of the outbox."""
log = structlog.get_logger("cluster")


class ClusterMember:
    """The cluster side of a worker. `start` follows that of the hub, and `stop` precedes it."""

    def __init__(
        self,
        settings: Settings,
        hub: EventHub,
        calls: CallRegistry,
        traces: Traces | None = None,
        accounts: Sequence[RegisteredAccount] = (),
    ) -> None:
        """`accounts`: the SIP accounts that only one worker may register."""
        self._hub = hub
        name = f"mediaworker {socket.gethostname()}"
        self.connection = NatsConnection(settings.cluster, worker=name, on_ready=self._join)
        self.events = ClusterEvents(
            settings,
            EventStore(Path(settings.data_dir) / FOLDER),
            hub,
            traces,
            ask=lambda: self.leases.catch_up(),
            prompt=lambda: self.outbox.prompt,
        )
        self.outbox = ClusterOutbox(hub, self.connection, traces, on_written=self.events.own_events.on_written)
        self.directory = ClusterDirectory(hub, calls, self.events, self.connection)
        self.mirror = Mirror(self.connection, self.events, self.directory.changed)
        self.jobs = ClusterJobStore(self.connection, settings)
        """The cluster's job store, which the job service opens and closes."""
        self.accounts = ClusterAccounts(self.connection, accounts)
        self.leases = Leases(self.connection, self.events, self.jobs, self.accounts)
        self.retention = ClusterRetention(self.events, settings, self.connection)
        self._stream_id = ""

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        connection = self.connection
        metrics.gauge("cluster_connected", "Is 0 while the cluster cannot be reached.", lambda: not connection.trouble)
        metrics.gauge(
            "cluster_outbox_lag_seconds",
            "Shows how long the oldest event has waited that the stream of all workers has not taken.",
            lambda: self.outbox.lag_s,
        )
        metrics.gauge("cluster_calls", "Shows how many calls are live at all workers.", lambda: len(self.feed().calls))
        metrics.counter("cluster_reconnects", "Counts connections to NATS made again.", lambda: connection.reconnects)
        metrics.counter(
            "cluster_strays", "Counts events of calls whose beginning is not known here.", lambda: self.events.strays
        )
        metrics.counter(
            "cluster_closed_calls",
            "Counts calls that this worker has ended because theirs was gone.",
            lambda: self.leases.closed_calls,
        )
        metrics.counter(
            "cluster_jobs_taken_over",
            "Counts jobs that this worker has taken from one that was gone, for any worker to go on with.",
            lambda: self.jobs.taken_over,
        )
        metrics.counter(
            "cluster_unreadable_jobs",
            "Counts records of jobs in NATS that were left out because they cannot be read or are not what their key "
            "says.",
            lambda: self.jobs.unreadable,
        )
        metrics.counters("cluster_outbox", self.outbox.counters)
        metrics.counters("cluster_mirror", self.mirror.counters)

    def feed(self) -> StoredEvents:
        """The feed for subscribers: this worker's own events until the cluster has been reached once."""
        return self.events if self.events.started else self._hub

    @property
    def warnings(self) -> list[str]:
        trouble = self.connection.trouble
        if not trouble:
            return []
        return [f"cluster: {trouble}; other workers do not see this one's calls now", *self.accounts.warnings]

    def start(self) -> None:
        self.connection.start()

    async def stop(self) -> None:
        await self.accounts.release()
        await self.outbox.stop(PUBLISH_S if not self.connection.trouble else 0.0)
        await self.leases.stop()
        await self.mirror.stop()
        await self.connection.stop()
        if self.events.started:
            await self.retention.stop()
            await self.events.stop()

    async def _join(self) -> None:
        """Start or resume everything on a new connection to NATS. Raises ClusterUnreachable."""
        stream_id = await self.connection.stream_id()
        if self._stream_id not in ("", stream_id):
            raise ClusterUnreachable("the stream has been made anew: this worker must be restarted")
        try:
            if not self.events.started:
                await self.events.start(stream_id)
                self.retention.start()
            self._stream_id = stream_id
            await self.outbox.start()
        except StoreError as error:
            raise ClusterUnreachable(f"data_dir: {error}") from None
        await self.connection.listen(self.connection.subject("worker", self.events.own), self.directory.answer)
        self.mirror.start()
        self.jobs.join(self.events.own)
        self.leases.start()
