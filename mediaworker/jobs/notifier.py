"""Webhooks of jobs: the end of a job is posted under the job's id until it is delivered or given up."""

from __future__ import annotations

from functools import partial

import msgspec
import structlog
from msgspec.structs import replace

from config import ConfigError, Settings
from mediaworker.events.frame import timestamp
from mediaworker.jobs.record import Job, Webhook, public
from mediaworker.jobs.store import JobStore
from mediaworker.webhooks.lanes import OutgoingMessage
from mediaworker.webhooks.outbox import Attempt, WebhookOutbox
from mediaworker.webhooks.post import Poster, signing, wrong_with_secret
from mediaworker.webhooks.targets import Targets

AT_ONCE = 64
"""The most webhooks that are posted at once: a host that does not answer occupies each place for seconds."""
log = structlog.get_logger()


def check(settings: Settings) -> None:
    """Check the settings of webhooks. Raises ConfigError."""
    jobs = settings.jobs
    for name, secret in (("webhook_secret", jobs.webhook_secret), ("webhook_secret_next", jobs.webhook_secret_next)):
        if secret and (wrong := wrong_with_secret(secret)):
            raise ConfigError(f"jobs.{name}", None, wrong)
    Targets(settings.jobs.webhook_allow).close()


class JobNotifier:
    """Queues the webhooks of ended jobs. The state of a webhook is kept in its job's record, also across a restart.

    Raises ConfigError.
    """

    def __init__(self, store: JobStore, settings: Settings) -> None:
        check(settings)
        jobs = settings.jobs
        self._store = store
        self.outbox = WebhookOutbox(
            "job webhooks",
            Poster(Targets(jobs.webhook_allow)),
            signing(jobs.webhook_secret, jobs.webhook_secret_next),
            parallel=AT_ONCE,
            retry_s=jobs.retry_hours * 3600,
            clock=store.clock,
            on_attempt=self._on_attempt,
        )

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings that `check` has passed."""
        self.outbox.secrets = signing(settings.jobs.webhook_secret, settings.jobs.webhook_secret_next)

    def collect(self) -> None:
        """Queue the webhooks of jobs that have ended since the last call."""
        for job in self._store.open.values():
            owed = not job.active and not job.over and self._store.owns(job)
            if owed and job.id not in self.outbox.lanes:
                assert job.webhook is not None and job.ended_s is not None
                write = partial(self._body, job.id)
                message = OutgoingMessage(job.id, job.id, job.webhook.url, write, since_s=job.ended_s)
                message.tries = job.webhook.attempts
                self.outbox.add(message, job.webhook.next_s)

    def _body(self, job_id: str) -> str:
        return body(self._store.open[job_id])

    async def _on_attempt(self, message: OutgoingMessage, attempt: Attempt) -> None:
        job = self._store.open.get(message.id)
        if job is None:  # it was erased meanwhile
            return
        if attempt.error:
            log.warning("webhook", job=job.id, state=attempt.state, attempts=message.tries, error=attempt.error)
        webhook = Webhook(message.url, attempt.state, message.tries, attempt.next_s, attempt.error)
        await self._store.remember(replace(job, webhook=webhook))
        if attempt.state != "waiting" and job.id not in self._store.unwritten:
            self._store.open.pop(job.id, None)


def body(job: Job) -> str:
    """Return the body of a job's webhook; the webhook in it is still `waiting`."""
    assert job.ended_s is not None
    message = {"type": f"job.{job.state}", "timestamp": timestamp(job.ended_s), "data": public(job)}
    return msgspec.json.encode(message).decode()
