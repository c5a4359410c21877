"""The job service of a worker: it accepts jobs, runs them, posts their webhooks and erases old ones.

It guarantees two things, whichever process is killed meanwhile. A job that was answered 201 ends in `completed`,
`failed` or `cancelled`. Each segment of its file is recognised once, except those in progress at a kill.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import structlog

from config import Settings
from config.metrics.registry import MetricsRegistry
from config.process.tasks import end_tasks, lasting
from mediaworker.errors import MediaworkerError
from mediaworker.files.service import FileService
from mediaworker.jobs import queue
from mediaworker.jobs.database import JobDatabase
from mediaworker.jobs.notifier import JobNotifier
from mediaworker.jobs.record import Job, created_s
from mediaworker.jobs.run import JobRun, waiting
from mediaworker.jobs.store import JobElsewhere, JobStore
from mediaworker.storage.database_thread import StoreError, reason_of
from mediaworker.storage.sqlite import UnusableDatabase
from mediaworker.storage.sure_clock import SureClock

CHECK_S = 1.0
"""How often the store's file is checked, or opened again while it could not be."""
SWEEP_S = 60.0
SWEPT = 100
"""The number of old jobs that one query returns."""

log = structlog.get_logger()


class TooMany(MediaworkerError):
    """The key has as many unfinished jobs as `jobs.max_queued_per_key` allows; it deserves status 429."""


class JobService:
    """Accepts, runs, cancels and erases jobs.

    Args:
        clock: returns Unix time.
        store: the store of jobs; None: a store of this worker alone.
    """

    def __init__(
        self,
        settings: Settings,
        files: FileService,
        *,
        clock: Callable[[], float] = time.time,
        store: JobStore | None = None,
    ) -> None:
        """Raises ConfigError."""
        self.settings, self._files = settings, files
        self.store = store or JobStore(settings, clock=clock)
        self.sources = self.store.sources
        self.store.on_change = self._changed
        self._notifier = JobNotifier(self.store, settings)
        self.webhooks = self._notifier.outbox
        self._sure_clock = SureClock(self.store.clock)
        self.erased = self.expired = 0
        """The number of jobs erased by request, and of jobs erased for their age."""
        self._arriving: Counter[str] = Counter()
        """The number of new jobs that are being written to the store, by key."""
        self._turns: dict[str, int] = {}
        self._running: dict[str, tuple[asyncio.Task[None], JobRun]] = {}
        self._cancelling: dict[str, asyncio.Task[Job | None]] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        self.store.add_metrics(metrics)
        webhooks = self.webhooks
        metrics.gauge("jobs_queued", "Shows how many jobs are waiting.", lambda: self.queued)
        metrics.gauge("jobs_running", "Shows how many jobs are running.", lambda: self.running)
        metrics.counter("jobs_erased", "Counts jobs that somebody had erased, with their results.", lambda: self.erased)
        metrics.counter("jobs_expired", "Counts jobs that were erased for their age.", lambda: self.expired)
        metrics.counter("webhook_tries", "Counts requests made to webhooks for finished jobs.", lambda: webhooks.tries)
        metrics.counter(
            "webhooks_delivered", "Counts finished jobs whose webhook was delivered.", lambda: webhooks.delivered
        )
        metrics.counter(
            "webhooks_failed", "Counts finished jobs whose webhook was given up.", lambda: webhooks.given_up
        )

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings that `notifier.check` has passed."""
        self.settings = settings
        self._notifier.use(settings)

    async def start(self) -> None:
        """Continue the stored jobs. A store that cannot be opened does not keep the worker from accepting calls; it is
        opened later."""
        try:
            await self.store.start()
        except StoreError as error:
            log.error("jobs are unavailable: their store cannot be opened", reason=str(error))
        self.webhooks.start()
        self._sweeper = lasting(self._sweep, "jobs-sweeper")
        self._watcher = lasting(lambda: self.store.look_after(CHECK_S, self._check_store, self._renew), "jobs-watch")
        self._advance()

    async def pause(self) -> None:
        """Stop all work. The next start continues the jobs that were running."""
        self._stopping = True
        if self._alarm is not None:
            self._alarm.cancel()
        tasks = [task for task, _ in self._running.values()]
        running = tuple(self._running)
        await end_tasks(*tasks, self._sweeper, self._watcher)
        await asyncio.gather(*self._cancelling.values(), *self._releasing.values(), return_exceptions=True)
        for job_id in running:
            await self.store.release(job_id)
        await self.webhooks.stop()

    async def stop(self) -> None:
        await self.pause()
        await self.webhooks.close()
        await self.store.close()

    # -- for the routes and for metrics -----------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return sum(job.state == "queued" for job in self.store.open.values())

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def warnings(self) -> list[str]:
        """Sentences for the operator about the store, valid although calls are accepted."""
        return self.store.warnings

    def check_room(self, owner: str) -> None:
        """Raise TooMany when this key may have no further job."""
        limit = self.settings.jobs.max_queued_per_key
        active = sum(job.owner == owner and job.active for job in self.store.open.values())
        if active + self._arriving[owner] >= limit:
            raise TooMany(f"{limit} jobs of this key have not ended yet (jobs.max_queued_per_key)")

    async def submit(self, job: Job) -> None:
        """Queue a job whose source is complete; it is on the disk when this returns. Raises StoreError, OSError,
        TooMany."""
        self.check_room(job.owner)
        self._arriving[job.owner] += 1
        try:
            await self.store.add(job)
        finally:
            self._arriving[job.owner] -= 1
        log.info("job queued", job=job.id, file=job.source.filename, bytes=job.source.bytes)
        self._advance()

    async def get(self, job_id: str) -> Job | None:
        """Return the job with its current progress. Raises StoreError."""
        job = await self.store.find(job_id)
        return None if job is None else self._now(job)

    async def page(self, limit: int, *, after: str | None, owner: str | None, state: str | None) -> list[Job]:
        """Return at most `limit` jobs older than the job `after`, newest first. Raises StoreError."""
        found = await self.store.read(lambda database: database.jobs(limit, after=after, owner=owner, state=state))
        return [self._now(self.store.open.get(job.id, job)) for job in found]

    async def cancel(self, job_id: str) -> Job | None:
        """Cancel a job and return it; None when it has ended already. Raises StoreError."""
        # It runs in a task of its own, because the client may disconnect, or may send the request twice.
        if (task := self._cancelling.get(job_id)) is None:
            task = asyncio.get_running_loop().create_task(self._cancel(job_id), name=f"cancel {job_id}")
            self._cancelling[job_id] = task
        return await asyncio.shield(task)

    async def erase(self, job_id: str, by: str) -> None:
        """Erase an ended job with its result. `by`: the name of the key that requests it. Raises StoreError."""
        await self._erase(job_id)
        log.info("job erased", job=job_id, by=by)
        self.erased += 1

    async def _erase(self, job_id: str) -> None:
        """Erase an ended job; on an error it stays as it was. Raises StoreError."""
        job = self.store.open.pop(job_id, None)
        self.webhooks.forget(job_id)
        try:
            await self.store.erase(job_id)
        except (StoreError, OSError) as error:
            if job is not None:
                self.store.open[job_id] = job
                self._notifier.collect()
            raise error if isinstance(error, StoreError) else StoreError(reason_of(error)) from error

    # -- inside -----------------------------------------------------------------------------------------------------

    def _now(self, job: Job) -> Job:
        _, run = self._running.get(job.id, (None, None))
        return job if run is None else run.now(job)

    def _advance(self) -> None:
        """Start the jobs that may run now, and set a timer for the next one that is put off."""
        if self._stopping:
            return
        limits, now_s = self.settings.jobs, self.store.clock()
        busy = self._running.keys() | self._cancelling.keys()
        queued = [job for job in self.store.open.values() if self.store.may_run(job) and job.id not in busy]
        running = [self.store.open[job_id] for job_id in self._running if job_id in self.store.open]
        for job in queue.choose(
            queued, running, self._turns, parallel=limits.parallel, per_key=limits.parallel_per_key, now_s=now_s
        ):
            self._turns[job.owner] = max(self._turns.values(), default=0) + 1
            run = JobRun(job.id, self.store, self._files, patience_s=limits.retry_hours * 3600)
            task = asyncio.get_running_loop().create_task(run.go(), name=f"job {job.id}")
            self._running[job.id] = (task, run)
            task.add_done_callback(partial(self._ended, job.id))
        self._notifier.collect()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if (next_s := queue.next_s(queued, now_s)) is not None:
            self._alarm = asyncio.get_running_loop().call_later(max(0.05, next_s - now_s), self._advance)

    def _ended(self, job_id: str, task: asyncio.Task[None]) -> None:
        """Called when a job's task ends, also for a task that was cancelled before it began."""
        del self._running[job_id]
        self._release_stray(job_id)
        self._advance()

    def _release_stray(self, job_id: str) -> None:
        """Release a job that runs here by its record but has no task. Its task was cancelled while the record was being
        written, and without a release no worker would run the job."""
        job = self.store.open.get(job_id)
        if job is None or job.state != "running" or not self.store.owns(job) or self._stopping:
            return
        if job_id not in self._running.keys() | self._cancelling.keys() | self._releasing.keys():
            log.info("a job is released: no task of this worker runs it", job=job_id)
            task = asyncio.get_running_loop().create_task(self.store.release(job_id), name=f"release {job_id}")
            self._releasing[job_id] = task
            task.add_done_callback(partial(self._released, job_id))

    def _released(self, job_id: str, task: asyncio.Task[None]) -> None:
        del self._releasing[job_id]
        self._advance()

    async def _cancel(self, job_id: str) -> Job | None:
        try:
            task, _ = self._running.get(job_id, (None, None))
            await end_tasks(task)
            job = self.store.open.get(job_id)
            if job is None or not job.active:
                return None  # it ended before it could be cancelled
            return await self.store.end(job, "cancelled")
        except JobElsewhere:
            return None
        except StoreError:
            if (job := self.store.open.get(job_id)) is not None:
                self.store.open[job_id] = waiting(job, self.store.clock())
            raise
        finally:
            del self._cancelling[job_id]
            asyncio.get_running_loop().call_soon(self._advance)

    def _changed(self, job_id: str) -> None:
        job = self.store.open.get(job_id)
        if job is None:
            self.webhooks.forget(job_id)
        task, _ = self._running.get(job_id, (None, None))
        if task is not None and (job is None or not job.active or not self.store.owns(job)):
            task.cancel()
        self._release_stray(job_id)
        self._advance()

    async def _sweep(self) -> None:
        clock_set = False
        while True:
            try:
                if self.store.is_open and not clock_set:
                    latest = await self.store.read(JobDatabase.latest)
                    self._sure_clock.agree(None if latest is None else created_s(latest))
                    clock_set = True
                if self.store.is_open:
                    sure = self._sure_clock.is_sure()
                    if sure:
                        await self._forget(self.store.clock() - self.settings.jobs.keep_days * 86400)
                        await self.store.sweep_set_aside(self.settings.jobs.keep_days * 86400)
                    await self.store.sweep_uploads(sure=sure)
            except (StoreError, OSError) as error:
                log.warning("old jobs could not be erased", reason=reason_of(error))
            await asyncio.sleep(SWEEP_S)

    async def _check_store(self) -> None:
        """Check the store and write the ends of jobs that it could not write before. When it is closed, open it. Raises
        StoreError."""
        if self.store.is_open:
            await self.store.check()
            await self.store.write_ended()
        else:
            await self.store.start()
            self._advance()

    async def _renew(self, lost: UnusableDatabase) -> None:
        anew = await self.store.renew(lost)
        # The segments of these jobs are lost, so they must begin again instead of recognising only the rest.
        await end_tasks(*(self._running[job_id][0] for job_id in anew if job_id in self._running))
        self.store.begin_anew(anew)
        self._advance()

    async def _forget(self, ended_before_s: float) -> None:
        """Erase the jobs that ended before this time; their undelivered webhooks are given up."""
        while old := await self.store.read(lambda database: database.ended_before(ended_before_s, SWEPT)):
            for job_id in old:
                await self._erase(job_id)
                self.expired += 1
