"""Calls that several WebSocket channels share: each side of a conversation is a connection, and a leg.

Connections with the same `MEDIAWORKER_CALL` share one call, which ends with the last of them. A connection joins only
with the same API key, because the name of a call is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from audio import Codec
from config.sections.section import Role
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.asterisk.messages import MediaStart
from mediaworker.ingress.interfaces import CallOpener

MAX_LEGS = 8
"""The most legs of one call: each takes a row of the VAD."""
MAX_CUSTOM, MAX_CUSTOM_CHARS = 32, 500
MAX_NAME = 200
OVERRIDES = ("language", "profile", "context")
_LEG = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")


@dataclass(frozen=True, slots=True)
class Seat:
    """A leg of a call, taken by one connection."""

    call: Call
    leg: str
    joined: bool
    """The call existed before."""


@dataclass(slots=True)
class _Shared:
    call: Call
    hang_ups: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Closes the connection of a leg, by the leg's name."""


class AsteriskCalls:
    def __init__(self, open_call: CallOpener) -> None:
        self._open_call = open_call
        self._named: dict[tuple[str, str], _Shared] = {}
        """By the API key's name and `MEDIAWORKER_CALL`."""
        self._by_id: dict[str, _Shared] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def join(self, owner: str, start: MediaStart, codec: Codec, hang_up: Callable[[], None]) -> Seat:
        """A leg for this connection, in the call that it names or in one of its own. Raises CallRefused."""
        name = start.own.get("call", "")
        shared = self._named.get((owner, name)) if name else None
        joined = shared is not None and not shared.call.ending
        if shared is None or not joined:
            leg = _leg_name(start.own)
            shared = _Shared(self._open(start, leg, codec))
            shared.call.on_hangup = lambda: self._on_hangup(shared)
            self._by_id[shared.call.id] = shared
            if name:
                self._named[owner, name] = shared
        else:
            leg = self._join_leg(shared, start.own, codec)
        shared.hang_ups[leg] = hang_up
        return Seat(shared.call, leg, joined)

    def leave(self, seat: Seat, reason: str) -> None:
        """The connection is gone; with the last one the call ends."""
        shared = self._by_id.get(seat.call.id)
        if shared is None or shared.hang_ups.pop(seat.leg, None) is None:
            return
        if shared.hang_ups:
            seat.call.flush(seat.leg)
            return
        self._forget(shared)
        seat.call.on_hangup = None
        seat.call.end(reason)

    def _open(self, start: MediaStart, leg: str, codec: Codec) -> Call:
        own = start.own
        overrides = {key: own[key] for key in OVERRIDES if key in own}
        named = {"role": own.get("role", "").lower(), "name": own.get("name", "")}
        overrides |= {f"{key}.{leg}": value for key, value in named.items() if value}
        return self._open_call(
            source="asterisk-ws",
            legs=[_spec(own, leg, codec)],
            external_id=(own.get("call") or start.channel_id or start.channel or start.connection_id)[:MAX_NAME],
            from_=own.get("from", "")[:MAX_NAME],
            to=own.get("to", "")[:MAX_NAME],
            custom=_custom(start),
            overrides=overrides,
        )

    def _join_leg(self, shared: _Shared, own: Mapping[str, str], codec: Codec) -> str:
        """Opens another leg, or takes one whose connection has gone. Raises CallRefused."""
        call, wanted = shared.call, _leg_name(own)
        leg, number = wanted, 2
        while leg in shared.hang_ups:
            leg, number = f"{wanted}-{number}", number + 1
        if leg in call.legs:
            call.media_changed(leg, codec, None, None)
        elif len(call.legs) >= MAX_LEGS:
            raise CallRefused(503, f"the call has {MAX_LEGS} legs")
        else:
            call.add_leg(_spec(own, leg, codec))
        return leg

    def _on_hangup(self, shared: _Shared) -> None:
        self._forget(shared)
        hang_ups, shared.hang_ups = shared.hang_ups, {}
        for hang_up in hang_ups.values():
            hang_up()

    def _forget(self, shared: _Shared) -> None:
        self._by_id.pop(shared.call.id, None)
        for key in [key for key, each in self._named.items() if each is shared]:
            del self._named[key]


def _role(own: Mapping[str, str]) -> Role:
    role = own.get("role", "").lower()
    return role if role in get_args(Role) else "unknown"  # type: ignore[return-value]


def _leg_name(own: Mapping[str, str]) -> str:
    leg = own.get("leg", "")
    if _LEG.match(leg):
        return leg
    return _role(own) if own.get("call") and _role(own) != "unknown" else "main"


def _spec(own: Mapping[str, str], leg: str, codec: Codec) -> LegSpec:
    return LegSpec(leg=leg, codec=codec, role=_role(own), name=own.get("name", "")[:MAX_NAME], transport="stream")


def _custom(start: MediaStart) -> dict[str, str]:
    """The channel's identifiers and other variables, for `call.started`."""
    known = {"channel": start.channel, "channel_id": start.channel_id, "connection_id": start.connection_id}
    pairs = [*known.items(), *start.others.items()]
    return {name[:100]: value[:MAX_CUSTOM_CHARS] for name, value in pairs[:MAX_CUSTOM] if value}
