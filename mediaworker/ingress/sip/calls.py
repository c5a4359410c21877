"""The handler of the SIP endpoint's events: it opens a `Call`, or a leg of one, for each SIP call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from config import Settings
from config.sections.section import Role
from mediaworker.calls import routing
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.ingress.sip.headers import (
    calling_uri,
    custom_headers,
    overriding_headers,
    shared_names,
    user_part,
)
from mediaworker.ingress.sip.joining import JoinedCalls, Seat
from mediaworker.ingress.sip.siprec import speaker
from sip.media.call_media import MediaStream
from sip.pjsip.call import SipCall
from sip.protocol.siprec import Participant, same_people

log = structlog.get_logger()

MAIN = "main"
"""The leg of a SIP call that is no recording session. Routes and headers use this name for the SIP call's own leg, even
if the leg has another name in a shared call."""


class SipIngress:
    """Implements `sip.pjsip.call.SipHandler` on the registry.

    `settings` returns the current settings. `refusal` returns why a call would be refused now, by default the
    registry's reason.
    """

    def __init__(
        self,
        registry: CallRegistry,
        settings: Callable[[], Settings] = Settings,
        refusal: Callable[[], CallRefused | None] | None = None,
    ) -> None:
        self._registry, self._settings = registry, settings
        self._refusal = refusal or registry.refusal
        self._calls: dict[SipCall, Seat] = {}
        self._joined = JoinedCalls()

    def can_accept(self) -> int:
        refusal = self._refusal()
        if refusal is None:
            return 0
        return 486 if refusal.busy else 503

    def on_call(self, sip: SipCall) -> None:
        try:
            seat = self._calls[sip] = self._seat(sip)
        except CallRefused as refused:
            log.warning("call refused at its answer", reason=refused.reason, external_id=sip.call_id)
            sip.hangup(self.can_accept() or 503)
            return
        # Packets go directly from the socket into the ring.
        for name, stream in _named(seat).items():
            stream.socket.leg, seat.heard[name] = seat.call.legs[name], self._speakers(sip, stream)
        self._hold(seat)  # a call may begin on hold

    def _seat(self, sip: SipCall) -> Seat:
        """The place of the SIP call in a new call, or in one that it shares with others. Raises CallRefused."""
        headers = {name.lower(): value for name, value in sip.headers.items()}
        if sip.recording is None:
            plan = routing.plan(
                self._settings(),
                source="sip",
                calling=user_part(calling_uri(sip.from_uri, headers)),
                called=user_part(sip.to_uri),
                account=sip.account,
                headers=headers,
                overrides=overriding_headers(headers),
            )
            if names := shared_names(plan.join, headers):
                (spec,) = self._specs(sip)
                # The route and headers of this SIP call name its speaker, whichever SIP call opened the call.
                spec = replace(spec, role=plan.roles.get(MAIN, "unknown"), name=plan.names.get(MAIN, ""))
                return self._joined.join(sip, plan.join, names, spec, lambda: self._open(sip, headers, [spec]))
        call = self._open(sip, headers, self._specs(sip))
        call.on_hangup = sip.hangup
        return Seat(sip, call)

    def _open(self, sip: SipCall, headers: Mapping[str, str], legs: Sequence[LegSpec]) -> Call:
        """Open a new call. Raises CallRefused."""
        custom = custom_headers(headers, self._settings().sip.headers)
        if sip.recording is not None and sip.recording.sessions:
            custom["siprec-session"], session_id = next(iter(sip.recording.sessions.items()))
            custom |= {"session-id": session_id} if session_id else {}
        return self._registry.open(
            source="sip" if sip.recording is None else "siprec",
            legs=legs,
            external_id=sip.call_id,
            from_=user_part(calling_uri(sip.from_uri, headers)),
            to=user_part(sip.to_uri),
            account=sip.account,
            custom=custom,
            headers=headers,
            participants=sip.recording.identities() if sip.recording is not None else (),
            overrides=overriding_headers(headers),
        )

    def on_media(self, sip: SipCall) -> None:
        seat = self._calls.get(sip)
        if seat is None or seat.call.ending:
            return
        call, streams = seat.call, _named(seat)
        for name, stream in streams.items():
            # The peer may have moved the audio to another m-line, which has its own socket.
            if name in call.legs:
                stream.socket.leg = call.legs[name]
                call.media_changed(
                    name, stream.codec, stream.telephone_event, stream.payload_type, stream.event_clock_hz
                )
            else:
                stream.socket.leg = call.add_leg(self._leg(sip, name, stream))
                seat.heard[name] = self._speakers(sip, stream)
        for name in seat.legs - streams.keys():  # the peer has removed them
            call.left(name)
        self._hold(seat)

    def on_metadata(self, sip: SipCall) -> None:
        seat = self._calls.get(sip)
        if seat is None or sip.recording is None:
            return
        call = seat.call
        for name, stream in _named(seat).items():
            # Metadata names no speaker while a participant holds or has left; the earlier speech is still theirs.
            if name in call.members and (speakers := self._speakers(sip, stream)):
                role, shown = speaker(self._settings().siprec, speakers, stream.label)
                before, seat.heard[name] = seat.heard.get(name, ()), speakers
                # Who is named where nobody was has been there before.
                another = bool(before) and not same_people(before, speakers)
                call.describe(name, role=role, name=shown, another=another)

    def _leg(self, sip: SipCall, name: str, stream: MediaStream) -> LegSpec:
        role: Role = "unknown"
        shown = ""
        if sip.recording is not None:
            role, shown = speaker(self._settings().siprec, self._speakers(sip, stream), stream.label)
        return LegSpec(
            leg=name,
            codec=stream.codec,
            role=role,
            label=stream.label,
            name=shown,
            transport="rtp",
            telephone_event=stream.telephone_event,
            payload_type=stream.payload_type,
            event_clock_hz=stream.event_clock_hz,
        )

    def _speakers(self, sip: SipCall, stream: MediaStream) -> tuple[Participant, ...]:
        if sip.recording is None:
            return ()
        place = sip.streams.index(stream)
        skipped = sum(index < stream.index for index in sip.mixed)
        return sip.recording.speakers(stream.label, place + skipped, unmixed_place=place, of=len(sip.streams))

    def _specs(self, sip: SipCall) -> list[LegSpec]:
        return [self._leg(sip, name, stream) for name, stream in _streams(sip).items()]

    def _hold(self, seat: Seat) -> None:
        sip, call = seat.sip, seat.call
        if sip.recording is None:
            (call.held if sip.held else call.resumed)(seat.leg or None)
            return
        for name, stream in _named(seat).items():
            (call.held if stream.held else call.resumed)(name)

    def on_dtmf(self, sip: SipCall, digit: str, duration_ms: int) -> None:
        seat = self._calls.get(sip)
        # These come by SIP INFO; the leg limits the rate of RFC 4733 digits.
        if seat is not None and seat.digits.allow(seat.call.elapsed_ms() / 1000):
            seat.call.dtmf(next(iter(seat.legs)), digit, duration_ms)

    def on_end(self, sip: SipCall, reason: str) -> None:
        seat = self._calls.pop(sip, None)
        if seat is None:
            return
        if seat.leg:
            self._joined.give_up(seat, reason)
        else:
            seat.call.end(reason)

    def __len__(self) -> int:
        return len(self._calls)


def _named(seat: Seat) -> dict[str, MediaStream]:
    """Leg of the call → stream, in the order of the m-lines."""
    return dict(zip([seat.leg], seat.sip.streams, strict=True)) if seat.leg else _streams(seat.sip)


def _streams(sip: SipCall) -> dict[str, MediaStream]:
    """The peer's name of a leg → stream. For a recording session the names are its unique labels."""
    if sip.recording is None:
        return {MAIN: sip.streams[0]} if sip.streams else {}
    named: dict[str, MediaStream] = {}
    for stream in sip.streams:
        name = stream.label or str(stream.index)
        named[f"{name}#{stream.index}" if name in named else name] = stream
    return named
