"""The outbox of webhooks: it posts messages in order within a lane, each under the same id until it is delivered or
given up.

It sends events (`webhooks.events`, a lane for each call) and ends of jobs (`jobs.notifier`, a lane for each job). The
outbox itself is in memory only: its callers keep their progress, as a row of the event store or in a job's record. So
delivery is at least once: a message that was delivered just before a kill is posted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import structlog

from config.process.tasks import end_tasks, lasting, within
from config.settings import Secret
from mediaworker.webhooks.lanes import Lanes, OutgoingMessage
from mediaworker.webhooks.post import Poster, Refusal, wait_s

UNTAKEABLE_TRIES = 4
"""The number of attempts after which a message is given up that the receiver refuses as such: about 2.5 minutes."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one attempt."""

    state: Literal["delivered", "waiting", "failed"]
    next_s: float = 0.0
    """Unix time of the next attempt, while the state is `waiting`."""
    error: str = ""


class WebhookOutbox:
    """Posts messages and retries them. `close` it after the last message.

    Args:
        secrets: the secrets with which each attempt is signed. They may be replaced, and so may `retry_s`.
        parallel: the most lanes that are posted at once: a host that does not answer occupies each for seconds.
        retry_s: the time for which a message is retried.
        clock: returns Unix time.
        on_attempt: called after each attempt, before its lane goes on.
    """

    def __init__(
        self,
        name: str,
        poster: Poster,
        secrets: Sequence[Secret],
        *,
        parallel: int,
        retry_s: float,
        clock: Callable[[], float],
        on_attempt: Callable[[OutgoingMessage, Attempt], Awaitable[None]],
    ) -> None:
        self.lanes = Lanes()
        self.delivered = self.tries = self.given_up = 0
        self.secrets, self.retry_s = secrets, retry_s
        self._name, self._poster = name, poster
        self._parallel, self._clock, self._on_attempt = parallel, clock, on_attempt
        self._held: dict[str, float] = {}
        """The end of the pause of each host that has answered 429."""
        self._changed = asyncio.Event()
        self._posts: dict[str | None, asyncio.Task[None]] = {}
        """The tasks that are posting, by lane."""
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sender = lasting(self._send, f"{self._name}: send")

    async def stop(self) -> None:
        """Stop sending. The caller adds undelivered messages again after the next start."""
        await end_tasks(*self._posts.values(), self._sender)

    async def close(self) -> None:
        await self.stop()
        await self._poster.close()

    def add(self, message: OutgoingMessage, due_s: float = 0.0) -> None:
        """Queue a message. `due_s`: the Unix time before which it is not sent."""
        self.lanes.add(message, max(due_s, self._clock()))
        self._changed.set()

    def forget(self, lane: str | None) -> list[OutgoingMessage]:
        """Drop a lane, stop its current post, and return its messages."""
        if (task := self._posts.get(lane)) is not None:
            task.cancel()
        return self.lanes.forget(lane)

    async def attempt(self, message: OutgoingMessage) -> Attempt:
        """Post a message once, now."""
        now_s = self._clock()
        self.tries += 1
        message.tries += 1
        message.since_s = message.since_s or now_s
        try:
            refusal = await self._poster.post(message.url, self.secrets, message.id, message.body(), now_s)
        except Exception as error:  # a fault of this program must not stop the lane's other messages
            log.exception("webhook failed", webhook=self._name)
            refusal = Refusal(repr(error))
        if refusal is None:
            self.delivered += 1
            return Attempt("delivered")
        next_s = self._clock() + wait_s(message.tries, refusal.after_s)
        if refusal.throttled:
            self._held[_host(message)] = next_s
        useless = refusal.gone or (refusal.untakeable and message.tries >= UNTAKEABLE_TRIES)
        if useless or next_s > message.since_s + self.retry_s:
            self.given_up += 1
            return Attempt("failed", error=refusal.reason)
        return Attempt("waiting", next_s, refusal.reason)

    async def _send(self) -> None:
        while True:
            self._changed.clear()
            now_s = self._clock()
            self._held = {host: end_s for host, end_s in self._held.items() if end_s > now_s}
            for message in self.lanes.ready(now_s, self._parallel - len(self._posts)):
                if (end_s := self._held.get(_host(message))) is not None:
                    self.lanes.again(message, end_s)
                    continue
                task = asyncio.create_task(self._post(message), name=f"{self._name}: {message.id}")
                self._posts[message.lane] = task
                task.add_done_callback(lambda task, lane=message.lane: self._ended(lane, task))  # type: ignore[misc]
            due_s = self.lanes.next_due_s() if len(self._posts) < self._parallel else None
            async with within(None if due_s is None else max(0.0, due_s - now_s)):
                await self._changed.wait()

    async def _post(self, message: OutgoingMessage) -> None:
        attempt = await self.attempt(message)
        await self._on_attempt(message, attempt)
        if attempt.state == "waiting":
            self.lanes.again(message, attempt.next_s)
        else:
            self.lanes.done(message, self._clock())

    def _ended(self, lane: str | None, task: asyncio.Task[None]) -> None:
        if self._posts.get(lane) is task:
            del self._posts[lane]
        self._changed.set()


def _host(message: OutgoingMessage) -> str:
    return urlsplit(message.url).netloc
