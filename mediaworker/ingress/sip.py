"""SIP calls become Calls: the handler that the SIP endpoint reports to."""

from __future__ import annotations

import structlog

from audio.dtmf import DigitRate
from mediaworker.call import Call, LegSpec
from mediaworker.registry import CallRegistry, Refused
from sip.call import SipCall

log = structlog.get_logger()

OVERRIDE = "x-mediaworker-"
"""Headers `X-Mediaworker-Language`, `-Profile`, `-Context`, `-Role-LEG`, `-Name-LEG` speak over the routes."""
CUSTOM = "x-"


class SipIngress:
    """Implements `sip.endpoint.SipHandler` on the registry."""

    def __init__(self, registry: CallRegistry) -> None:
        self._registry = registry
        self._calls: dict[SipCall, Call] = {}
        self._dialled: dict[SipCall, DigitRate] = {}

    def can_accept(self) -> int:
        refusal = self._registry.refusal()
        if refusal is None:
            return 0
        return 486 if refusal.busy else 503

    def on_call(self, sip: SipCall) -> None:
        headers = {name.lower(): value for name, value in sip.headers.items()}
        overrides = {
            name[len(OVERRIDE) :].replace("role-", "role.").replace("name-", "name."): value
            for name, value in headers.items()
            if name.startswith(OVERRIDE)
        }
        custom = {n: v for n, v in headers.items() if n.startswith(CUSTOM) and not n.startswith(OVERRIDE)}
        single = len(sip.streams) == 1
        legs = [
            LegSpec(
                leg="main" if single else stream.label or str(index),
                codec=stream.codec,
                label=stream.label,
                transport="rtp",
                telephone_event=stream.telephone_event,
                payload_type=stream.payload_type,
            )
            for index, stream in enumerate(sip.streams)
        ]
        try:
            call = self._registry.open(
                source="sip",
                legs=legs,
                external_id=sip.call_id,
                from_=user_part(sip.from_uri),
                to=user_part(sip.to_uri),
                account=sip.account,
                custom=custom,
                overrides=overrides,
            )
        except Refused as refused:
            log.warning("call refused at its answer", reason=refused.reason, external_id=sip.call_id)
            sip.hangup(self.can_accept() or 503)
            return
        self._calls[sip] = call
        call.on_hangup = sip.hangup
        # Straight from the socket into the ring: nothing of ours runs per packet in between.
        for stream, leg in zip(sip.streams, call.legs.values(), strict=True):
            stream.socket.leg = leg
        if sip.held:  # offered that way: a call that begins parked
            call.held()

    def on_media(self, sip: SipCall) -> None:
        call = self._calls.get(sip)
        if call is None:
            return
        for stream, (name, leg) in zip(sip.streams, call.legs.items(), strict=False):
            # The peer may have moved the audio to another line of its offer, which has a socket of its own.
            stream.socket.leg = leg
            call.media_changed(name, stream.codec, stream.telephone_event, stream.payload_type)
        if sip.held:
            call.held()
        else:
            call.resumed()

    def on_dtmf(self, sip: SipCall, digit: str, duration_ms: int) -> None:
        call = self._calls.get(sip)
        # By SIP INFO; the leg holds those of RFC 4733 to the same rate.
        if call is not None and self._dialled.setdefault(sip, DigitRate()).allow(call.elapsed_ms() / 1000):
            call.dtmf(next(iter(call.members)), digit, duration_ms)

    def on_end(self, sip: SipCall, reason: str) -> None:
        self._dialled.pop(sip, None)
        call = self._calls.pop(sip, None)
        if call is not None:
            call.end(reason)

    def __len__(self) -> int:
        return len(self._calls)


def user_part(uri: str) -> str:
    """`"Ann" <sip:100@host;p=1>` → `100`; a URI without a user gives its host."""
    inside = uri.split("<", 1)[-1].split(">", 1)[0]
    _, _, rest = inside.partition(":")
    user, at, host = rest.partition("@")
    return (user if at else rest).split(";", 1)[0].split("?", 1)[0]
