"""The directory of all calls, live and ended: it finds their records, and carries out what users ask of a call."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from mediaworker.calls.registry import CallRegistry
from mediaworker.calls.sound import Player
from mediaworker.errors import MediaworkerError
from mediaworker.events.hub import EventHub
from mediaworker.events.schema import CallErased, CallRecord

log = structlog.get_logger()


class CallOver(MediaworkerError):
    """The request needs a live call, and this one has ended."""


class CallLive(MediaworkerError):
    """The request needs an ended call, and this one is live."""


class NotPlayable(MediaworkerError):
    """Nothing can be played into the call. `full`: its queue is full, so a later attempt may succeed."""

    def __init__(self, reason: str, *, full: bool = False) -> None:
        self.full = full
        super().__init__(reason)


class OwnerAway(MediaworkerError):
    """The call belongs to another worker, which does not answer."""


class CallDirectory:
    """The calls of a worker that belongs to no cluster. Every method raises StoreError."""

    def __init__(self, hub: EventHub, live: CallRegistry) -> None:
        self._hub, self._live = hub, live

    async def page(self, limit: int, after: str | None) -> list[CallRecord]:
        """Newest first, older than the call `after`."""
        return await self._hub.read(lambda database: database.calls(limit, after))

    async def search(self, text: str, limit: int, after: int | None) -> tuple[list[CallRecord], int | None]:
        """See `Database.search`."""
        found, last = await self._hub.read(lambda database: database.search(text, limit, after))
        return [self._hub.call(record.call_id) or record for record in found], last

    async def record(self, call_id: str) -> CallRecord | None:
        return self._hub.call(call_id) or await self._hub.read(lambda database: database.call(call_id))

    async def frames(self, call_id: str, types: frozenset[str]) -> list[str]:
        """The call's durable events of these types, in order."""
        return await self._hub.read(lambda database: database.frames(call_id, types))

    async def hangup(self, call_id: str, *, after_playback: bool = False) -> None:
        """End the call now, or once everything queued has been played. Raises CallOver, OwnerAway."""
        if (live := self._live.get(call_id)) is None:
            raise CallOver
        if after_playback:
            live.hangup_after_playback()
        else:
            live.hangup()

    async def change(self, call_id: str, names: Mapping[str, str], language: str | None) -> None:
        """Set the names of legs, and the language of future utterances.

        Raises CallOver for a language if the call has ended, and OwnerAway.
        """
        if (live := self._live.get(call_id)) is None:
            if language is not None:
                raise CallOver
            await self._hub.ended_calls.rename(call_id, dict(names))
            return
        for leg, name in names.items():
            live.rename(leg, name)
        if language is not None:
            live.set_language(language)
        await self._hub.flush()

    async def play(self, call_id: str, codes: bytes, mark: str) -> None:
        """Queue µ-law at 8 kHz after the audio that is still being played; events name its end `mark`.

        Raises CallOver, NotPlayable, OwnerAway.
        """
        player = self._player(call_id)
        if not player.play(codes, mark):
            raise NotPlayable("too much is waiting to be played", full=True)

    async def stop_playing(self, call_id: str) -> None:
        """Drop the audio that is still queued. Raises CallOver, NotPlayable, OwnerAway."""
        self._player(call_id).clear()

    async def playing_stopped(self, call_id: str) -> int:
        """How many times playback has been stopped. Raises CallOver, NotPlayable, OwnerAway."""
        return self._player(call_id).clears

    def _player(self, call_id: str) -> Player:
        if (call := self._live.get(call_id)) is None:
            raise CallOver
        if call.player is None:
            raise NotPlayable("nothing can be played into this call: it takes a Twilio <Connect> stream")
        return call.player

    async def erase(self, call_id: str, by: str) -> None:
        """Erase an ended call. `by` is the name of the requesting key, which the log and `call.erased` record.

        Raises CallLive, OwnerAway.
        """
        record = await self.record(call_id)
        if record is not None and record.state != "ended":
            raise CallLive
        await self._erase(call_id)
        log.info("call erased", call_id=call_id, by=by)
        self._hub.publish(call_id, 0, CallErased(by))

    async def _erase(self, call_id: str) -> None:
        """Raises OwnerAway."""
        await self._hub.ended_calls.erase(call_id)
