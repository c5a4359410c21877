"""Calls that several Media Streams share: each stream carries one or both tracks of a call, and each track is a leg.

Streams with the same CallSid share one call, which ends with the last of them. If two streams carry the same track, the
newer one gets it: Twilio opens the next stream of a call before the end of the previous one has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, get_args

from audio import Codec
from config.sections.section import Role
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRegistry
from mediaworker.calls.shared import Connection, SharedCalls
from mediaworker.ingress.twilio.messages import StartBody

STALL_S = 15.0
"""The time that a stream may send nothing before its legs continue as silence. Twilio sends silence too, so a shorter
gap is caused by the network, and the delayed audio will still arrive."""
OWN_PARAMETERS = "mw_"
OVERRIDES = ("profile", "language", "context")
ROLES: Mapping[str, Role] = {"inbound": "customer", "outbound": "agent"}
"""Track → its role by default: Twilio's inbound track is the caller. A route or a parameter may set another role."""


class TrackHolder(Connection, Protocol):
    def replaced(self, track: str) -> None:
        """Give up the track, which another stream of the call carries from now on."""


class TwilioCalls(SharedCalls[TrackHolder]):
    """The shared calls, by AccountSid and CallSid."""

    def __init__(self, registry: CallRegistry) -> None:
        super().__init__()
        self._registry = registry

    def join(self, start: StartBody, stream: TrackHolder) -> tuple[Call, bool]:
        """(call, joined) for a stream: the call of its CallSid, with a leg for each track, and whether it was open.

        Raises CallRefused.
        """
        tracks, name = tuple(dict.fromkeys(start.tracks)), (start.account_sid, start.call_sid)
        shared = self.find(name)
        joined = shared is not None
        if shared is None:
            shared = self.add(self._open(start, tracks), name)
        for track in tracks:
            if (before := shared.seats.get(track)) is not None:
                before.replaced(track)
            if track not in shared.call.legs:
                shared.call.add_leg(_spec(track, start.custom_parameters))
            shared.seats[track] = stream
        return shared.call, joined

    def _open(self, start: StartBody, tracks: tuple[str, ...]) -> Call:
        parameters = start.custom_parameters
        return self._registry.open(
            source="twilio",
            legs=[_spec(track, {}) for track in tracks],
            external_id=start.call_sid,
            from_=parameters.get("mw_from", ""),
            to=parameters.get("mw_to", ""),
            # Twilio's values are inbound, outbound-api and outbound-dial.
            direction="outbound" if parameters.get("mw_direction", "").startswith("outbound") else "inbound",
            account=start.account_sid,
            custom={name: value for name, value in parameters.items() if not name.startswith(OWN_PARAMETERS)},
            overrides={name: value for name, value in parameters.items() if _overrides(name)},
        )


def _spec(track: str, parameters: Mapping[str, str]) -> LegSpec:
    """The leg of a track. `parameters` are those of a stream that joins, which the call's plan does not include."""
    role = parameters.get(f"role.{track}", "")
    return LegSpec(
        track,
        Codec.PCMU,
        role if role in get_args(Role) else ROLES[track],  # type: ignore[arg-type]
        label=track,
        name=parameters.get(f"name.{track}", "")[:200],
        transport="stream",
        stall_s=STALL_S,
    )


def _overrides(name: str) -> bool:
    return name in OVERRIDES or name.startswith(("role.", "name."))
