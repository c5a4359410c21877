"""Erasure in a cluster: erased data is overwritten in JetStream's files.

After a purge, or at a limit of age or number, NATS only drops its reference to a message. The bytes stay in the
stream's file until everything else in that block of up to 8 MB has been removed, too. A message that is deleted by its
number is overwritten at once, in each server's file of the stream. So calls and jobs are erased by message number, and
old messages are erased the same way before JetStream would expire them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import structlog
from nats.js.errors import APIError

from config import Settings
from mediaworker.cluster.connection import TROUBLE, NatsConnection, why
from mediaworker.cluster.events import ClusterEvents
from mediaworker.cluster.reader import AT_ONCE, messages
from mediaworker.events.retention import DAY_S, RetentionTask
from mediaworker.events.store import StoreError

NOT_DELETED = 10057
"""JetStream's error code if the message no longer exists, or if the stream permits no deletion."""
log = structlog.get_logger("cluster")


async def overwrite(
    connection: NatsConnection,
    stream: str,
    subject: str,
    *,
    before: int | None = None,
    older_than_s: float | None = None,
) -> int:
    """Overwrite the stream's messages with the subject; returns their number. Raises the errors of `TROUBLE`.

    Args:
        before: only messages with lower numbers than this one.
        older_than_s: only messages that were stored before this Unix time.
    """
    info = await connection.js.stream_info(stream)
    if info.config.deny_delete:  # it cannot be changed once the stream exists
        log.warning("erased, but not overwritten: the stream denies it", stream=stream)
        if older_than_s is None:
            await connection.js.purge_stream(stream, seq=before, subject=subject)
        return 0
    numbers, count = list[int](), 0
    async with aclosing(messages(connection, stream, subject, headers_only=True)) as found:
        async for message in found:
            metadata = message.metadata
            number = metadata.sequence.stream
            if (before is not None and number >= before) or (
                older_than_s is not None and metadata.timestamp.timestamp() >= older_than_s
            ):
                break
            numbers.append(number)
            if len(numbers) >= AT_ONCE:
                count += await _overwrite(connection, stream, numbers)
                numbers.clear()
    return count + await _overwrite(connection, stream, numbers)


async def overwrite_old(connection: NatsConnection, stream: str, subject: str) -> int:
    """Overwrite all messages with the subject except the latest one."""
    last = await connection.js.get_last_msg(stream, subject)
    return await overwrite(connection, stream, subject, before=last.seq)


async def _overwrite(connection: NatsConnection, stream: str, numbers: list[int]) -> int:
    return sum(await asyncio.gather(*(overwrite_one(connection, stream, number) for number in numbers)))


async def overwrite_one(connection: NatsConnection, stream: str, number: int) -> bool:
    """Overwrite one message by its number; returns whether it existed. Raises the errors of `TROUBLE`."""
    if not number:
        return False
    try:
        return await connection.js.delete_msg(stream, number)
    except APIError as error:
        if error.err_code != NOT_DELETED:
            raise
        return False  # another worker was faster


class ClusterRetention(RetentionTask):
    """Erases old calls from this worker's copy of all events, and from the stream that fills the copy."""

    def __init__(
        self,
        events: ClusterEvents,
        settings: Settings,
        connection: NatsConnection,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(events, settings.retention, clock=clock, steady=steady)
        self._connection, self._keep_days = connection, settings.cluster.keep_days

    async def sweep(self) -> int:
        calls = await super().sweep()
        if self._sure_clock.is_sure():
            await self._overwrite(">", older_than_s=self._clock() - self._keep_days * DAY_S)
        return calls

    async def _erase_elsewhere(self, call_id: str) -> None:
        if self.settings.max_age_days < self._keep_days:  # else the stream has expired it already
            await self._overwrite("*", call_id)

    async def _overwrite(self, *tokens: str, older_than_s: float | None = None) -> None:
        connection = self._connection
        try:
            await overwrite(
                connection, connection.stream, connection.subject("events", *tokens), older_than_s=older_than_s
            )
        except TROUBLE as error:
            raise StoreError(f"JetStream: {why(error)}") from error

    async def _latest_s(self) -> float | None:
        # An empty copy will be filled with events that were stored by the clocks of other machines.
        return await super()._latest_s() or 0.0
