"""Messages to webhooks: in order within a lane, each posted under the same id until it is taken or given up.

Events (`webhooks.events`, a lane for each call) and ends of jobs (`jobs.notifier`, a lane for each job) go out here.
They keep their places over restarts, an event's by its row in the store, a job's in its record; what was taken just
before a kill is posted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import structlog

from config.settings import Secret
from config.tasks import end_tasks, lasting, within
from mediaworker.webhooks.lanes import Lanes, OutgoingMessage
from mediaworker.webhooks.post import Poster, Refusal, wait_s

UNTAKEABLE_TRIES = 4
"""A message that is refused as such is put aside after some 2.5 minutes: whoever sent it is told, and the next goes."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one try."""

    state: Literal["delivered", "waiting", "failed"]
    next_s: float = 0.0
    """Unix time of the next try, while it is `waiting`."""
    error: str = ""


class WebhookOutbox:
    """See the module. `close` when nothing is to be sent any more.

    Args:
        secrets: each try is signed with each of them; may be set anew, as `retry_s` may.
        parallel: lanes that are posted to at once: a host that does not answer holds each up for seconds.
        retry_s: for so long a message is tried again.
        clock: Unix time.
        on_attempt: called after each try, before the lane goes on.
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
        """Hosts that have asked for a pause of everything, and its end."""
        self._changed = asyncio.Event()
        self._posts: dict[str | None, asyncio.Task[None]] = {}
        """By lane."""
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sender = lasting(self._send, f"{self._name}: send")

    async def stop(self) -> None:
        """Send nothing more. What waits for another try is the feed's to bring again."""
        await end_tasks(*self._posts.values(), self._sender)

    async def close(self) -> None:
        await self.stop()
        await self._poster.close()

    def add(self, message: OutgoingMessage, due_s: float = 0.0) -> None:
        """`due_s`: Unix time before which it is not sent."""
        self.lanes.add(message, max(due_s, self._clock()))
        self._changed.set()

    def forget(self, lane: str | None) -> list[OutgoingMessage]:
        """Nothing of this lane is sent any more. Returns what was in it."""
        if (task := self._posts.get(lane)) is not None:
            task.cancel()
        return self.lanes.forget(lane)

    async def attempt(self, message: OutgoingMessage) -> Attempt:
        """One try, now."""
        now_s = self._clock()
        self.tries += 1
        message.tries += 1
        message.since_s = message.since_s or now_s
        try:
            refusal = await self._poster.post(message.url, self.secrets, message.id, message.body(), now_s)
        except Exception as error:  # ours: the lane's other messages must go on all the same
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
