"""Leases: each worker holds all of its calls under one lease, and the calls of a lost worker are ended by another one.

Every worker renews its lease, a key that expires in JetStream, and checks the leases of workers with open calls. A
worker counts as lost when it has not renewed its lease while this worker has renewed its own several times. So no
worker counts as lost while NATS is down and none can renew. The first worker to notice ends the call: the stream
accepts the end only directly after the call's last message. A worker that comes back finds its calls ended. The same
decision moves jobs and SIP accounts to other workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog
from nats.js.api import Header
from nats.js.errors import BadRequestError, InvalidKeyError, KeyNotFoundError
from nats.js.kv import KeyValue

from config.process.tasks import end_tasks, lasting
from mediaworker.cluster.accounts import ClusterAccounts
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why
from mediaworker.cluster.cursors import closer_of
from mediaworker.cluster.events import ClusterEvents
from mediaworker.cluster.jobs import ClusterJobStore
from mediaworker.cluster.own_calls import lost
from mediaworker.events.frame import encode, timestamp
from mediaworker.events.store import StoreError
from mediaworker.events.subscription import Cursor

RENEW_S = 2.0
RETRY_S = 0.5
MISSED = 5
"""A worker is lost after this many renewals by this worker without a sign of life from the other one."""
FORGET_S = 60.0
log = structlog.get_logger("cluster")


class Leases:
    def __init__(
        self, connection: NatsConnection, events: ClusterEvents, jobs: ClusterJobStore, accounts: ClusterAccounts
    ) -> None:
        self.closed_calls = 0
        self._connection, self._events, self._jobs, self._accounts = connection, events, jobs, accounts
        self._renewals = 0
        self._seen: dict[str, tuple[tuple[int, int], int]] = {}
        """Worker → its latest sign of life (lease revision, latest message), and the `_renewals` when it appeared."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = lasting(self._run, "cluster-leases")

    async def stop(self) -> None:
        await end_tasks(self._task)

    async def _run(self) -> None:
        while True:
            wait_s = RENEW_S
            try:
                async with asyncio.timeout(RENEW_S):
                    bucket = await self._renew()
                await self._check_others(bucket)
            except (*TROUBLE, StoreError) as error:
                log.debug("leases", reason=str(error) or type(error).__name__)
                wait_s = RETRY_S
            await asyncio.sleep(wait_s)

    async def _renew(self) -> KeyValue:
        bucket = await self._connection.bucket("WORKERS", ttl_s=FORGET_S)
        await bucket.put(self._events.own, timestamp(time.time()).encode())
        self._renewals += 1
        return bucket

    async def _check_others(self, bucket: KeyValue) -> None:
        holders = await self._accounts.read()
        others = (self._events.owners() | self._jobs.workers() | holders) - {self._events.own}
        gone = [worker for worker in others if await self._is_gone(bucket, worker)]
        await self._accounts.settle(self._events.own, gone)
        for worker in gone:
            await self._close_calls(worker)
            await self._jobs.take_over(worker)

    async def catch_up(self) -> None:
        """Renew the lease and process the stream up to now, after this worker has been suspended.

        Another worker may have ended its calls meanwhile.
        """
        with contextlib.suppress(*TROUBLE, StoreError):
            await self._renew()
            connection = self._connection
            last = (await connection.js.stream_info(connection.stream)).state.last_seq
            await self._events.passed(last)
            await self._events.flush()

    async def _is_gone(self, bucket: KeyValue, worker: str) -> bool:
        try:
            revision = (await bucket.get(worker)).revision or 0
        except (KeyNotFoundError, InvalidKeyError):  # no worker has such a name
            revision = 0
        sign = revision, self._events.latest_message(worker)
        before = self._seen.get(worker)
        if before is None or before[0] != sign:
            self._seen[worker] = sign, self._renewals
            return False
        return self._renewals - before[1] >= MISSED

    async def _close_calls(self, worker: str) -> None:
        for record in self._events.calls_of(worker):
            try:
                closed = await self._close(worker, record.call_id)
            except (*TROUBLE, StoreError) as error:  # retried at the next renewal; other calls are not affected
                log.info("a call is not ended yet", call_id=record.call_id, reason=why(error))
                continue
            if closed:
                self.closed_calls += 1
                log.warning("call ended: its worker is gone", call_id=record.call_id, worker=worker)

    async def _close(self, worker: str, call_id: str) -> bool:
        """End a call of a lost worker; returns whether this worker was the one that ended it."""
        connection, events = self._connection, self._events
        subject = connection.subject("events", worker, call_id)
        last = (await connection.js.get_last_msg(connection.stream, subject)).seq or 0
        async with asyncio.timeout(RENEW_S):
            await events.passed(last)
        await events.flush()
        record = next((each for each in events.calls_of(worker) if each.call_id == call_id), None)
        if record is None:
            return False
        history = await events.history(call_id)
        row, partials = int(time.time() * 1_000_000), events.last_partials(call_id)
        end = lost(record, history, lambda number: Cursor(closer_of(worker), row + number), partials)
        payload = "\n".join(map(encode, end)).encode()
        headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(last)}
        try:
            await connection.js.publish(subject, payload, headers=headers)
        except BadRequestError:
            return False  # another worker was faster, or the call's worker is back
        return True
