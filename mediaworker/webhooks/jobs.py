"""Tells of a job's end: one POST under the job's id, until somebody has taken it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from config import ConfigError, Settings
from config.settings import Secret
from mediaworker.events.schema import timestamp
from mediaworker.jobs.record import Job, Webhook, public
from mediaworker.webhooks.post import Poster, wait_s, wrong_with_secret
from mediaworker.webhooks.targets import Targets


def check(settings: Settings) -> None:
    """Raises ConfigError."""
    secret = settings.jobs.webhook_secret
    if secret and (wrong := wrong_with_secret(secret)):
        raise ConfigError("jobs.webhook_secret", None, wrong)
    Targets(settings.jobs.webhook_allow).close()


class Webhooks:
    """Sends. `close` when nothing is to be sent any more.

    `allow` is `jobs.webhook_allow`; None: to any address. Raises ConfigError.
    """

    def __init__(self, secret: Secret, *, retry_s: float, allow: Sequence[str] | None = None) -> None:
        self._secret, self._retry_s = secret, retry_s
        self.delivered = self.failed = self.tries = 0
        self._poster = Poster(None if allow is None else Targets(allow))

    async def send(self, job: Job, now_s: float) -> Webhook:
        """One try; what there is to be known of it."""
        assert job.webhook is not None and job.ended_s is not None
        self.tries += 1
        told = {"type": f"job.{job.state}", "timestamp": timestamp(job.ended_s), "data": public(job)}
        body = msgspec.json.encode(told).decode()
        refusal = await self._poster.post(job.webhook.url, self._secret, job.id, body, now_s)
        attempts = job.webhook.attempts + 1
        if refusal is None:
            self.delivered += 1
            return Webhook(job.webhook.url, "delivered", attempts)
        next_s = now_s + wait_s(attempts)
        if refusal.gone or next_s > job.ended_s + self._retry_s:
            self.failed += 1
            return Webhook(job.webhook.url, "failed", attempts, error=refusal.reason)
        return Webhook(job.webhook.url, "waiting", attempts, next_s, refusal.reason)

    async def close(self) -> None:
        await self._poster.close()
