"""Which worker has a call: a worker holds all of its calls under one lease, and those of one that is gone are ended.

Every worker renews its lease, a key that JetStream forgets by itself, and looks at those of workers with open calls.
One counts as gone when it has not renewed its lease while this worker has renewed its own several times: while nobody
can renew anything, nobody is gone. Whoever is first ends a call, for the stream takes its end only behind the call's
last message; one that comes back finds its calls ended. Jobs and SIP accounts are taken over by the same decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog
from nats.js.api import Header
from nats.js.errors import BadRequestError, InvalidKeyError, KeyNotFoundError
from nats.js.kv import KeyValue

from config.tasks import end_tasks, lasting
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
"""So many times must this worker have renewed its lease, and the other one have given no sign of life."""
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
        """Worker → the revision of its lease and its latest message, and how often this worker's own lease had been
        renewed when that was new."""
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
                await self._look_after_others(bucket)
            except (*TROUBLE, StoreError) as error:
                log.debug("leases", reason=str(error) or type(error).__name__)
                wait_s = RETRY_S
            await asyncio.sleep(wait_s)

    async def _renew(self) -> KeyValue:
        bucket = await self._connection.bucket("WORKERS", ttl_s=FORGET_S)
        await bucket.put(self._events.own, timestamp(time.time()).encode())
        self._renewals += 1
        return bucket

    async def _look_after_others(self, bucket: KeyValue) -> None:
        holders = await self._accounts.read()
        others = (self._events.owners() | self._jobs.workers() | holders) - {self._events.own}
        gone = [worker for worker in others if await self._is_gone(bucket, worker)]
        await self._accounts.settle(self._events.own, gone)
        for worker in gone:
            await self._close_calls(worker)
            await self._jobs.take_over(worker)

    async def catch_up(self) -> None:
        """After this worker has stood still: renew its lease, and take what the stream has until now. Another worker
        may have ended its calls."""
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
            except (*TROUBLE, StoreError) as error:  # the next time, perhaps; it keeps no other call from its end
                log.info("a call is not ended yet", call_id=record.call_id, reason=why(error))
                continue
            if closed:
                self.closed_calls += 1
                log.warning("call ended: its worker is gone", call_id=record.call_id, worker=worker)

    async def _close(self, worker: str, call_id: str) -> bool:
        """Whether it was this worker that has ended it."""
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
        row, said = int(time.time() * 1_000_000), events.last_partials(call_id)
        end = lost(record, history, lambda number: Cursor(closer_of(worker), row + number), said)
        payload = "\n".join(map(encode, end)).encode()
        headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(last)}
        try:
            await connection.js.publish(subject, payload, headers=headers)
        except BadRequestError:
            return False  # somebody else has been faster, or the worker is back
        return True
