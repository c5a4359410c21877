"""The calls of all workers: known here by their events, and changed by the worker that has them."""

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
    """To the worker that has a live call."""

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
    """To all workers, in the stream: what has been done to a call that has ended."""

    names: dict[str, str] = {}
    erased: bool = False


CHANGES = "changes"
"""In the place of a worker's id in a subject of the stream."""


class ClusterDirectory(CallDirectory):
    """Falls back to this worker's own calls until the cluster has been reached for the first time."""

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
            mine = found.get(record.call_id)
            if mine is None or (record.state == "ended" and not self._goes_on(mine)):
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
        # Of one that has ended, what all know: another worker may have ended it while this one was away.
        return self._events.call(call_id) or await self._events.read(lambda database: database.call(call_id)) or own

    async def frames(self, call_id: str, types: frozenset[str]) -> list[str]:
        record = await super().record(call_id)
        if not self._events.started or self._goes_on(record):
            return await super().frames(call_id, types)
        found = await self._events.read(lambda database: database.frames(call_id, types))
        return found or await super().frames(call_id, types)

    def _goes_on(self, own: CallRecord | None) -> bool:
        """Whether a call of this worker is open, for all that anybody knows."""
        return own is not None and own.state != "ended" and not self._events.own_calls.ended_elsewhere(own.call_id)

    # -- by the worker that has it ------------------------------------------------------------------------------------

    async def hangup(self, call_id: str, *, after_playback: bool = False) -> None:
        await self._do(Command("hangup", call_id, after_playback=after_playback))

    async def change(self, call_id: str, names: Mapping[str, str], language: str | None) -> None:
        if language is None and self._live.get(call_id) is None and not self._elsewhere(call_id):
            await self._tell(call_id, EndedCallChange(names=dict(names)))
        else:
            await self._do(Command("change", call_id, dict(names), language))

    async def play(self, call_id: str, codes: bytes, mark: str) -> None:
        await self._do(Command("play", call_id, sound=codes, mark=mark))

    async def stop_playing(self, call_id: str) -> None:
        await self._do(Command("stop", call_id))

    async def playing_stopped(self, call_id: str) -> int:
        return (await self._do(Command("stopped", call_id))).stopped

    async def _do(self, command: Command) -> Reply:
        """Raises CallOver, NotPlayable, OwnerAway."""
        owner = self._elsewhere(command.call_id)
        return await (self._ask(owner, command) if owner else self._do_here(command))

    async def _do_here(self, command: Command) -> Reply:
        """Raises CallOver, NotPlayable, StoreError."""
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
        await self._tell(call_id, EndedCallChange(erased=True))

    async def _overwrite(self, worker: str, call_id: str) -> None:
        """In the stream, what a worker has told of a call, or what all of them have. Raises what `TROUBLE` names."""
        await overwrite(self._connection, self._connection.stream, self._connection.subject("events", worker, call_id))

    def _elsewhere(self, call_id: str) -> str:
        """The worker that has the live call, if it is not this one."""
        if not self._events.started or self._live.get(call_id) is not None:
            return ""
        owner = self._events.owner(call_id)
        return "" if owner == self._events.own else owner

    async def _ask(self, owner: str, command: Command) -> Reply:
        """Raises CallOver, NotPlayable, OwnerAway."""
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

    async def _tell(self, call_id: str, change: EndedCallChange) -> None:
        """All workers; done here when it returns. Raises OwnerAway."""
        subject = self._connection.subject("events", CHANGES, call_id)
        try:
            taken = await self._connection.js.publish(subject, msgspec.json.encode(change))
        except TROUBLE as error:
            raise OwnerAway(f"the other workers cannot be told just now: {error}") from None
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._events.passed(taken.seq)
        except TimeoutError:
            raise OwnerAway("the stream does not bring what it has taken") from None

    # -- asked and told by others -----------------------------------------------------------------------------------

    async def answer(self, message: Msg) -> None:
        """A command for this worker."""
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
        """A change has come in the stream: it is made in both stores of this worker."""
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
                if feed is self._hub:  # its outbox may have been late with some of it
                    with contextlib.suppress(*TROUBLE):
                        await self._overwrite(self._events.own, call_id)
            else:
                await feed.ended_calls.rename(call_id, change.names)
