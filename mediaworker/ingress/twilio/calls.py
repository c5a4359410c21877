"""Calls that several Media Streams share: each stream carries one track or both of a call, and a track is a leg.

Streams of one CallSid share one call, which ends with the last of them. Where two carry the same track, the newer one
has it: Twilio opens the next stream of a call while the end of the one before is still on its way.
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
"""So long a stream may send nothing before its legs go on as silence: it is the network's doing, and what was said
meanwhile comes when it goes on."""
OWN_PARAMETERS = "mw_"
OVERRIDES = ("profile", "language", "context")
ROLES: Mapping[str, Role] = {"inbound": "customer", "outbound": "agent"}
"""Twilio's inbound track is the person on the phone; a route or a parameter may change the role."""


class TrackHolder(Connection, Protocol):
    def replaced(self, track: str) -> None:
        """Another stream of the call has this track from now on."""


class TwilioCalls(SharedCalls[TrackHolder]):
    """By AccountSid and CallSid."""

    def __init__(self, registry: CallRegistry) -> None:
        super().__init__()
        self._registry = registry

    def join(self, start: StartBody, stream: TrackHolder) -> tuple[Call, bool]:
        """The call of this CallSid, with a leg for each of the stream's tracks; True: it was open before.

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
            # Twilio says inbound, outbound-api or outbound-dial.
            direction="outbound" if parameters.get("mw_direction", "").startswith("outbound") else "inbound",
            account=start.account_sid,
            custom={name: value for name, value in parameters.items() if not name.startswith(OWN_PARAMETERS)},
            overrides={name: value for name, value in parameters.items() if _overrides(name)},
        )


def _spec(track: str, parameters: Mapping[str, str]) -> LegSpec:
    """A leg; `parameters` are those of a stream that joins, whose overrides the call's plan does not have."""
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
