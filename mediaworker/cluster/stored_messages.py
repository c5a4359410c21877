"""What a stream of JetStream has stored under a subject: read in its order, and overwritten.

A purge, and a limit of age or number, only have NATS forget where a message lies: its bytes stay in the stream's file
until everything else in that block of up to 8 MB has gone, too. A message that is deleted by its number is overwritten
at once, in each server's file of the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from mediaworker.cluster.connection import NatsConnection

PATIENCE_S = 15.0
"""A stream without a leader comes back within this."""
AT_ONCE = 64
"""Messages; those of uploads have 128 kB."""
NOT_DELETED = 10057
"""JetStream's error code where the message is gone already, or where the stream permits no deletion."""
log = structlog.get_logger("cluster")


async def messages(
    connection: NatsConnection, stream: str, subject: str, *, headers_only: bool = False
) -> AsyncGenerator[Msg, None]:
    """What the stream has of the subject, which may have wildcards. Raises what `TROUBLE` names."""
    js = connection.js
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.NONE,
        num_replicas=1,
        mem_storage=True,
        headers_only=headers_only or None,
        inactive_threshold=2 * PATIENCE_S,
    )
    pulled = await js.pull_subscribe(subject, stream=stream, config=config)
    try:
        consumer = await pulled.consumer_info()
        left = consumer.num_pending or 0
        while left > 0:
            some = await pulled.fetch(min(left, AT_ONCE), timeout=PATIENCE_S)
            if not some:  # the consumer has gone with its server, or has sent them to nobody
                raise TimeoutError
            left = some[-1].metadata.num_pending  # less than it was, and less again where others delete meanwhile
            for message in some:
                yield message
        with contextlib.suppress(NotFoundError):
            await js.delete_consumer(stream, consumer.name)
    finally:
        await pulled.unsubscribe()


async def overwrite(
    connection: NatsConnection,
    stream: str,
    subject: str,
    *,
    before: int | None = None,
    older_than_s: float | None = None,
) -> int:
    """Overwrite what the stream has of the subject; returns how many messages that were. Raises what `TROUBLE` names.

    Args:
        before: only messages with lower numbers than this one.
        older_than_s: only messages that were stored before this Unix time.
    """
    info = await connection.js.stream_info(stream)
    if info.config.deny_delete:  # nobody can change that once a stream has been made
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
    """As `overwrite`, but for the latest message of the subject."""
    last = await connection.js.get_last_msg(stream, subject)
    return await overwrite(connection, stream, subject, before=last.seq)


async def _overwrite(connection: NatsConnection, stream: str, numbers: list[int]) -> int:
    return sum(await asyncio.gather(*(overwrite_one(connection, stream, number) for number in numbers)))


async def overwrite_one(connection: NatsConnection, stream: str, number: int) -> bool:
    """One message by its number; whether it was there. Raises what `TROUBLE` names."""
    if not number:
        return False
    try:
        return await connection.js.delete_msg(stream, number)
    except APIError as error:
        if error.err_code != NOT_DELETED:
            raise
        return False  # another worker was faster
