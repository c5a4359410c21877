"""Calls that several WebSocket channels share: each side of a conversation has its own connection, and is one leg.

Connections with the same `MEDIAWORKER_CALL` share one call, which ends with the last of them. A connection joins only
with the same API key, because a call's name is not secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from audio import Codec
from config.sections.section import Role
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.calls.shared import Connection, SharedCall, SharedCalls
from mediaworker.ingress.asterisk.messages import MediaStart

MAX_LEGS = 8
"""The most legs of one call: each occupies a row of the VAD's batch."""
MAX_CUSTOM, MAX_CUSTOM_CHARS = 32, 500
MAX_NAME = 200
OVERRIDES = ("language", "profile", "context")
_LEG = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")


class AsteriskCalls(SharedCalls[Connection]):
    """The shared calls, by the API key's name and `MEDIAWORKER_CALL`."""

    def __init__(self, registry: CallRegistry) -> None:
        super().__init__()
        self._registry = registry

    def join(self, owner: str, start: MediaStart, codec: Codec, connection: Connection) -> tuple[Call, str, bool]:
        """(call, leg, joined) for a connection: it joins the call that it names (`joined`), or opens a new one.

        Raises CallRefused.
        """
        name = start.own.get("call", "")
        names = ((owner, name),) if name else ()
        shared = self.find(*names)
        joined = shared is not None
        if shared is None:
            leg = _leg_name(start.own)
            shared = self.add(self._open(start, leg, codec), *names)
        else:
            leg = self._join_leg(shared, start.own, codec)
        shared.seats[leg] = connection
        return shared.call, leg, joined

    def _open(self, start: MediaStart, leg: str, codec: Codec) -> Call:
        own = start.own
        overrides = {key: own[key] for key in OVERRIDES if key in own}
        named = {"role": own.get("role", "").lower(), "name": own.get("name", "")}
        overrides |= {f"{key}.{leg}": value for key, value in named.items() if value}
        return self._registry.open(
            source="asterisk-ws",
            legs=[_spec(own, leg, codec)],
            external_id=(own.get("call") or start.channel_id or start.channel or start.connection_id)[:MAX_NAME],
            from_=own.get("from", "")[:MAX_NAME],
            to=own.get("to", "")[:MAX_NAME],
            custom=_custom(start),
            overrides=overrides,
        )

    def _join_leg(self, shared: SharedCall[Connection], own: Mapping[str, str], codec: Codec) -> str:
        """Open another leg, or reuse one whose connection is gone. Raises CallRefused."""
        call, wanted = shared.call, _leg_name(own)
        leg, number = wanted, 2
        while leg in shared.seats:
            leg, number = f"{wanted}-{number}", number + 1
        if leg in call.legs:
            call.media_changed(leg, codec, None, None)
        elif len(call.legs) >= MAX_LEGS:
            raise CallRefused(503, f"the call has {MAX_LEGS} legs")
        else:
            call.add_leg(_spec(own, leg, codec))
        return leg


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
