"""The directory of all workers' calls: it reads the shared events, and asks a live call's worker for changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Literal

import msgspec
import structlog
from nats.aio.msg import Msg

from mediaworker.calls.directory import CallDirectory, CallOver, NotPlayable, OwnerAway
from mediaworker.calls.registry import CallRegistry
from mediaworker.cluster.connection import TROUBLE, NatsConnection
from mediaworker.cluster.erasure import overwrite
from mediaworker.cluster.events import ClusterEvents
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import CallRecord
from mediaworker.events.store import StoreError

ANSWER_S = 5.0
log = structlog.get_logger("cluster")


class Command(msgspec.Struct, frozen=True):
    """A request to the worker that has a live call."""

    do: Literal["hangup", "change", "play", "stop", "stopped"]
    call_id: str
    names: dict[str, str] = {}
    language: str | None = None
    sound: bytes = b""
    """µ-law at 8 kHz."""
    mark: str = ""
    after_playback: bool = False


class Reply(msgspec.Struct, frozen=True):
    over: bool = False
    error: str = ""
    not_playable: bool = False
    full: bool = False
    stopped: int = 0


class EndedCallChange(msgspec.Struct, frozen=True):
    """A change of an ended call, published to all workers in the stream."""

    names: dict[str, str] = {}
    erased: bool = False


CHANGES = "changes"
"""The subject token that such changes have in place of a worker's id."""


class ClusterDirectory(CallDirectory):
    """The calls of all workers; until the cluster has been reached for the first time, only those of this worker."""

    def __init__(self, hub: EventHub, live: CallRegistry, events: ClusterEvents, connection: NatsConnection) -> None:
        super().__init__(hub, live)
        self._events, self._connection = events, connection

    async def page(self, limit: int, after: str | None) -> list[CallRecord]:
        own = await super().page(limit, after)
        if not self._events.started:
            return own
        others = await self._events.read(lambda database: database.calls(limit, after))
        found = {record.call_id: record for record in own}
        for record in others:
            local = found.get(record.call_id)
            if local is None or (record.state == "ended" and not self._goes_on(local)):
                found[record.call_id] = record
        return sorted(found.values(), key=lambda record: record.call_id, reverse=True)[:limit]

    async def search(self, text: str, limit: int, after: int | None) -> tuple[list[CallRecord], int | None]:
        if not self._events.started:
            return await super().search(text, limit, after)
        found, last = await self._events.read(lambda database: database.search(text, limit, after))
        return [self._events.call(record.call_id) or record for record in found], last

    async def record(self, call_id: str) -> CallRecord | None:
        own = await super().record(call_id)
        if not self._events.started or self._goes_on(own):
            return own
        # For an ended call the shared record counts: another worker may have ended it while this one was cut off.
        return self._events.call(call_id) or await self._events.read(lambda database: database.call(call_id)) or own

    async def frames(self, call_id: str, types: frozenset[str]) -> list[str]:
        record = await super().record(call_id)
        if not self._events.started or self._goes_on(record):
            return await super().frames(call_id, types)
        found = await self._events.read(lambda database: database.frames(call_id, types))
        return found or await super().frames(call_id, types)

    def _goes_on(self, own: CallRecord | None) -> bool:
        """Whether a call of this worker is open, and no other worker has ended it."""
        return own is not None and own.state != "ended" and not self._events.own_calls.ended_elsewhere(own.call_id)

    # -- carried out by the worker that has the call ------------------------------------------------------------------

    async def hangup(self, call_id: str, *, after_playback: bool = False) -> None:
        await self._do(Command("hangup", call_id, after_playback=after_playback))

    async def change(self, call_id: str, names: Mapping[str, str], language: str | None) -> None:
        if language is None and self._live.get(call_id) is None and not self._elsewhere(call_id):
            await self._publish_change(call_id, EndedCallChange(names=dict(names)))
        else:
            await self._do(Command("change", call_id, dict(names), language))

    async def play(self, call_id: str, codes: bytes, mark: str) -> None:
        await self._do(Command("play", call_id, sound=codes, mark=mark))

    async def stop_playing(self, call_id: str) -> None:
        await self._do(Command("stop", call_id))

    async def playing_stopped(self, call_id: str) -> int:
        return (await self._do(Command("stopped", call_id))).stopped

    async def _do(self, command: Command) -> Reply:
        """Carry out a command here, or at the call's worker. Raises CallOver, NotPlayable, OwnerAway."""
        owner = self._elsewhere(command.call_id)
        return await (self._ask(owner, command) if owner else self._do_here(command))

    async def _do_here(self, command: Command) -> Reply:
        """Carry out a command on a call of this worker. Raises CallOver, NotPlayable, StoreError."""
        match command.do:
            case "hangup":
                await super().hangup(command.call_id, after_playback=command.after_playback)
            case "change":
                await super().change(command.call_id, command.names, command.language)
            case "play":
                await super().play(command.call_id, command.sound, command.mark)
            case "stop":
                await super().stop_playing(command.call_id)
            case "stopped":
                return Reply(stopped=await super().playing_stopped(command.call_id))
        return Reply()

    async def _erase(self, call_id: str) -> None:
        try:
            await self._overwrite("*", call_id)
        except TROUBLE as error:
            raise OwnerAway(f"the call cannot be erased everywhere just now: {error}") from None
        await self._publish_change(call_id, EndedCallChange(erased=True))

    async def _overwrite(self, worker: str, call_id: str) -> None:
        """Overwrite a worker's (or, for `*`, every worker's) messages about a call in the stream. Raises `TROUBLE`."""
        await overwrite(self._connection, self._connection.stream, self._connection.subject("events", worker, call_id))

    def _elsewhere(self, call_id: str) -> str:
        """The id of the other worker that has the live call; empty if there is none."""
        if not self._events.started or self._live.get(call_id) is not None:
            return ""
        owner = self._events.owner(call_id)
        return "" if owner == self._events.own else owner

    async def _ask(self, owner: str, command: Command) -> Reply:
        """Send a command to the worker that has the call. Raises CallOver, NotPlayable, OwnerAway."""
        subject = self._connection.subject("worker", owner)
        try:
            answer = await self._connection.client.request(subject, msgspec.msgpack.encode(command), timeout=ANSWER_S)
            reply = msgspec.msgpack.decode(answer.data, type=Reply)
        except (*TROUBLE, msgspec.DecodeError) as error:
            raise OwnerAway(f"the worker that has the call does not answer ({error})") from None
        if reply.over:
            raise CallOver
        if reply.not_playable:
            raise NotPlayable(reply.error, full=reply.full)
        if reply.error:
            raise OwnerAway(reply.error)
        return reply

    async def _publish_change(self, call_id: str, change: EndedCallChange) -> None:
        """Publish a change to all workers; this worker has applied it when this returns. Raises OwnerAway."""
        subject = self._connection.subject("events", CHANGES, call_id)
        try:
            taken = await self._connection.js.publish(subject, msgspec.json.encode(change))
        except TROUBLE as error:
            raise OwnerAway(f"the change cannot be sent to the other workers now: {error}") from None
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._events.passed(taken.seq)
        except TimeoutError:
            raise OwnerAway("the stream does not deliver what it has accepted") from None

    # -- requests and changes from other workers --------------------------------------------------------------------

    async def answer(self, message: Msg) -> None:
        """Answer a command from another worker."""
        try:
            reply = await self._do_here(msgspec.msgpack.decode(message.data, type=Command))
        except CallOver:
            reply = Reply(over=True)
        except NotPlayable as error:
            reply = Reply(error=str(error), not_playable=True, full=error.full)
        except (StoreError, msgspec.DecodeError) as error:
            reply = Reply(error=str(error))
        await message.respond(msgspec.msgpack.encode(reply))

    async def changed(self, call_id: str, payload: bytes) -> None:
        """Apply a change from the stream to both stores of this worker."""
        try:
            change = msgspec.json.decode(payload, type=EndedCallChange)
        except msgspec.DecodeError as error:
            log.error("unreadable change in the stream", call_id=call_id, error=str(error))
            return
        for feed in (self._hub, self._events):
            if await feed.read(lambda database: database.call(call_id)) is None:
                continue
            if change.erased:
                await feed.ended_calls.erase(call_id)
                if feed is self._hub:  # the outbox may still hold events of the call
                    with contextlib.suppress(*TROUBLE):
                        await self._overwrite(self._events.own, call_id)
            else:
                await feed.ended_calls.rename(call_id, change.names)
