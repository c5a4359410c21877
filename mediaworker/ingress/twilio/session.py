"""One Twilio Media Stream as a state machine without I/O.

    WAITING ──start──▶ STREAMING ──stop──▶ STOPPED ──▶ CLOSED
       └─ refused, too late ─────┴─ lost, silent ───────┘

Its one rule: a wrong message is counted and the call goes on; only a stream that cannot become a call is closed. The
table below names every pair of state and message; a test checks that it is complete.

Both tracks share the stream's clock: sample 0 of each leg is the moment `start` arrived, and a chunk's `timestamp` is
its position, in whatever order chunks arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import get_args

from audio import Leg
from audio.rtp.dtmf import DigitRate
from mediaworker.calls.call import Call
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.interfaces import MAX_AHEAD_S, CallOpener
from mediaworker.ingress.outbox import GOING_AWAY, NORMAL, POLICY, TRY_LATER, UNSUPPORTED, Outbox
from mediaworker.ingress.twilio import messages
from mediaworker.ingress.twilio.calls import ROLES, TwilioCalls
from mediaworker.ingress.twilio.calls import STALL_S as STALL_S
from mediaworker.ingress.twilio.counters import TwilioCounters
from mediaworker.ingress.twilio.player import MAX_MESSAGES, TwilioPlayer

SAMPLES_PER_MS = 8
MAX_AHEAD = round(MAX_AHEAD_S * 1000) * SAMPLES_PER_MS
MAX_JUMP = MAX_AHEAD
"""A chunk this far past both the clock and the audio before it has a wrong timestamp."""
SILENT_S = 60.0
"""How long a stream may send nothing: Twilio sends 50 messages a second, in silence and on hold too."""
ABSENT = 2 * 8000
"""How far one track may be behind the other, which goes on: then nothing is sent of it, and it is silent."""
LINGER_S = 5.0
"""How long Twilio may take to close after `stop`."""


class TwilioState(Enum):
    WAITING = auto()
    """Connected; `start` has not named the call."""
    STREAMING = auto()
    STOPPED = auto()
    """The call has ended; the peer is about to close."""
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class TwilioPolicy:
    """What the ingress knows when it accepts the upgrade."""

    start_timeout_s: float
    trusted: bool
    """The upgrade was signed, or came from this machine, and that is enough: a `start` may come without a token."""
    check_token: Callable[[str, str, str], bool]
    """(token, callSid, streamSid) → it was made for this call, is fresh, and has not been used by another stream."""
    on_bad_token: Callable[[], object] = lambda: None
    """A `start` without a token that was needed, or with a wrong one."""


@dataclass(slots=True)
class _Track:
    leg: Leg
    base: int
    """The leg's position at the beginning of the stream: 0, unless another stream fed the leg before."""
    end: int
    """The position after the furthest chunk."""
    clear_to: int
    """Up to here the track was not ahead of the VAD at the last check; the VAD only advances."""
    arrived_s: float = 0.0
    """When its latest chunk came."""


class TwilioSession:
    """Implements `interfaces.MediaSession`.

    `on_problem(problem, detail)` is for the log; all sessions share `counters` and `calls`.
    """

    def __init__(
        self,
        policy: TwilioPolicy,
        open_call: CallOpener,
        now: float,
        *,
        counters: TwilioCounters | None = None,
        on_problem: Callable[[str, str], None] = lambda problem, detail: None,
        calls: TwilioCalls | None = None,
    ) -> None:
        self.state = TwilioState.WAITING
        self.call: Call | None = None
        self.player: TwilioPlayer | None = None
        """Of a `<Connect>` stream, which takes media, mark and clear; anything sent on a `<Start>` stream is Twilio's
        error 31924."""
        self.outbox = Outbox(MAX_MESSAGES)
        self.counters = counters if counters is not None else TwilioCounters()
        self._policy, self._on_problem = policy, on_problem
        self._calls = calls if calls is not None else TwilioCalls(open_call)
        self._stream_sid = ""
        self._tracks: dict[str, _Track] = {}
        self._maybe_ahead = False
        self._row = ROWS[TwilioState.WAITING]
        self._origin_s = now
        self._waits_from, self._patience_s = now, policy.start_timeout_s
        self._digits = DigitRate()

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""
        return self.call.id if self.call is not None else None

    @property
    def deadline(self) -> float | None:
        return None if self.state is TwilioState.CLOSED else self._waits_from + self._patience_s

    @property
    def streaming(self) -> bool:
        return self.state is TwilioState.STREAMING

    def is_ahead(self) -> bool:
        if not self._maybe_ahead:
            return False
        ahead = False
        if self.state is TwilioState.STREAMING and self.call is not None and not self.call.ending:
            for track in self._tracks.values():
                track.clear_to = track.leg.position + MAX_AHEAD
                ahead |= track.end > track.clear_to
        self._maybe_ahead = ahead
        return ahead

    def receive(self, message: str | bytes, now: float) -> None:
        """Take one text message (bytes: not decoded yet)."""
        if self.state is TwilioState.CLOSED:
            return
        self.counters.messages += 1
        try:
            typed = messages.parse(message)
        except messages.TwilioMalformed as error:
            self.counters.malformed += 1
            self._on_problem("malformed Twilio message", str(error))
            return
        except messages.TwilioUnknown as error:
            self.counters.unknown += 1
            self._on_problem("unknown Twilio message", str(error))
            return
        self._row[type(typed)](self, typed, now)

    def expire(self, now: float) -> None:
        """The deadline has passed; does nothing when it has moved meanwhile."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return
        if self.state is TwilioState.WAITING:
            self._refuse("start_timeout", POLICY, f"no start message within {self._policy.start_timeout_s:g} s")
        elif self.state is TwilioState.STREAMING:
            self.counters.silent += 1
            self._end("media_timeout")
            self._close(GOING_AWAY, f"no message for {SILENT_S:g} s")
        else:
            self._close(NORMAL, "")

    def connection_lost(self, now: float) -> None:
        if self.state is TwilioState.STREAMING:
            self.counters.disconnected += 1
            self._end("disconnected")
        elif self.state is TwilioState.WAITING:
            self.counters.refuse("no_start")
        self._enter(TwilioState.CLOSED)

    # -- one method per kind of message; TABLE says when each is right ------------------------------------------------

    def _greet(self, message: messages.ConnectedMessage, now: float) -> None:
        """Nothing to do: `start` says which call this is."""

    def _open(self, message: messages.StartMessage, now: float) -> None:
        if refusal := self._refusal(message):
            self._refuse(*refusal)
            return
        try:
            seat = self._calls.join(message.start, self)
        except CallRefused as refused:
            # Waiting does not help against a 403, but against a full or draining worker it does.
            self._refuse("capacity", POLICY if refused.status == 403 else TRY_LATER, refused.reason)
            return
        self.call, self._stream_sid, self._origin_s = seat.call, message.stream_sid, now
        self.counters.joined += seat.joined
        self._tracks = {track: self._take(leg, now) for track, leg in seat.legs.items()}
        # <Connect> forks the caller's side only. Without either the stream is taken for <Start>, which gets no media.
        if message.start.custom_parameters.get("mw_mode") == "connect" and tuple(seat.legs) == ("inbound",):
            self.player = TwilioPlayer(seat.call, "inbound", self.outbox, message.stream_sid, self.counters)
            seat.call.player = self.player
        self._enter(TwilioState.STREAMING)
        self.counters.started += 1
        self._waits_from, self._patience_s = now, SILENT_S

    def _take(self, leg: Leg, now: float) -> _Track:
        """The stream's clock begins now; a leg that another stream has fed goes on from here."""
        leg.anchor(now)
        assert leg.origin_s is not None
        base = max(leg.end, leg.position, round((now - leg.origin_s) * 8000))
        return _Track(leg, base, base, base + MAX_AHEAD)

    def _refusal(self, message: messages.StartMessage) -> tuple[str, int, str] | None:
        """Why this `start` cannot open a call, as the arguments of `_refuse`, or None."""
        start = message.start
        form, token = start.media_format, start.custom_parameters.get("mw_token")
        if (form.encoding, form.sample_rate, form.channels) != ("audio/x-mulaw", 8000, 1):
            reason = f"mediaFormat {form.encoding} {form.sample_rate} Hz, {form.channels} channels is not supported"
            return "media_format", UNSUPPORTED, reason
        if not start.tracks or not set(start.tracks) <= set(ROLES):
            return "tracks", UNSUPPORTED, f"tracks {list(dict.fromkeys(start.tracks))[:4]} are not supported"
        if token is None and not self._policy.trusted:
            self._policy.on_bad_token()
            return "token", POLICY, "no mw_token parameter"
        if token is not None and not self._policy.check_token(token, start.call_sid, message.stream_sid):
            self._policy.on_bad_token()
            return "token", POLICY, "mw_token is not valid for this call"
        return None

    def _receive_audio(self, message: messages.MediaMessage, now: float) -> None:
        media = message.media
        assert self.call is not None
        if self.call.ending:  # ended from our side: its legs are gone
            self._ignore(message, now)
            return
        track = self._tracks.get(media.track)
        if track is None:
            self.counters.wrong_track += 1
            self._on_problem("Twilio media of a track that was not announced", media.track)
            return
        if message.stream_sid != self._stream_sid:
            self._stray(message, now)
            return
        self._waits_from = now
        since_start = media.timestamp * SAMPLES_PER_MS
        position = track.base + since_start
        if position - track.end > MAX_JUMP and since_start - int((now - self._origin_s) * 8000) > MAX_JUMP:
            self.counters.implausible += 1
            self._on_problem("Twilio media with an implausible timestamp", str(media.timestamp))
            return
        self.counters.media += 1
        end = position + len(media.payload)
        if end > track.end:
            track.end = end
            if end > track.clear_to:
                self._maybe_ahead = True
        track.arrived_s = now
        track.leg.receive_chunk(position, media.payload, now)
        for other in self._tracks.values():
            absent_to = end - track.base + other.base - ABSENT
            if other.end < absent_to and other.arrived_s < now - ABSENT / 8000:
                other.leg.pass_over(absent_to)

    def _digit(self, message: messages.DtmfMessage, now: float) -> None:
        if message.stream_sid != self._stream_sid:
            self._stray(message, now)
            return
        self._waits_from = now
        track = message.dtmf.track.removesuffix("_track")
        assert self.call is not None
        if track not in self._tracks or self.call.ending:
            self.counters.wrong_track += 1
            return
        if not self._digits.allow(now):
            self.counters.implausible += 1
            self._on_problem("Twilio digits faster than any phone", track)
            return
        self.counters.dtmf += 1
        # Twilio reports a digit when it has ended, without its duration.
        self.call.dtmf(track, message.dtmf.digit, 0)

    def _mark(self, message: messages.MarkMessage, now: float) -> None:
        self.counters.marks += 1
        self._waits_from = now
        if self.player is not None:
            self.player.on_mark(message.mark.name)

    def _stop(self, message: messages.StopMessage, now: float) -> None:
        if message.stream_sid not in ("", self._stream_sid):
            self._stray(message, now)
            return
        self.counters.stopped += 1
        self._end("hangup")
        self._enter(TwilioState.STOPPED)
        self._waits_from, self._patience_s = now, LINGER_S

    def _leave(self, message: messages.StopMessage, now: float) -> None:
        self._refuse("no_start", NORMAL, "stopped before it started")

    def _too_early(self, message: messages.FromTwilio, now: float) -> None:
        self._refuse("media_before_start", POLICY, f"{message.event} before start")

    def _ignore(self, message: messages.FromTwilio, now: float) -> None:
        self.counters.unexpected += 1
        self._on_problem("unexpected Twilio message", message.event)

    def _stray(self, message: messages.FromTwilio, now: float) -> None:
        self.counters.wrong_stream += 1
        self._on_problem("Twilio message of another stream", message.event)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _enter(self, state: TwilioState) -> None:
        self.state, self._row = state, ROWS[state]
        if state is not TwilioState.STREAMING and self.call is not None and self.player is not None:
            self.player.close()
            if self.call.player is self.player:
                self.call.player = None

    def _refuse(self, why: str, code: int, reason: str) -> None:
        self.counters.refuse(why)
        self._on_problem("Twilio stream refused", reason)
        self._close(code, reason)

    def _close(self, code: int, reason: str) -> None:
        self._enter(TwilioState.CLOSED)
        self.outbox.abort(code, reason)

    def hang_up(self) -> None:
        """The worker ends the call: the session takes no more audio and closes the socket."""
        self._close(NORMAL, "call ended by the worker")

    def replaced(self, track: str) -> None:
        """Another stream of the call has the track: it is no leg of this one any more."""
        del self._tracks[track]
        self.counters.replaced += 1
        reason = f"another stream of this call carries the {track} track"
        self._on_problem("Twilio stream replaced", reason)
        if not self._tracks:
            self._close(POLICY, reason)

    def _end(self, reason: str) -> None:
        """The stream is over, and the call with its last one."""
        assert self.call is not None
        self._calls.leave(self.call, self._tracks, self, reason)


Handler = Callable[[TwilioSession, object, float], None]


def _table() -> dict[tuple[TwilioState, type], Handler]:
    session, kinds = TwilioSession, messages
    handlers = {
        (TwilioState.WAITING, kinds.ConnectedMessage): session._greet,
        (TwilioState.WAITING, kinds.StartMessage): session._open,
        (TwilioState.WAITING, kinds.MediaMessage): session._too_early,
        (TwilioState.WAITING, kinds.DtmfMessage): session._too_early,
        (TwilioState.WAITING, kinds.MarkMessage): session._too_early,
        (TwilioState.WAITING, kinds.StopMessage): session._leave,
        (TwilioState.STREAMING, kinds.ConnectedMessage): session._ignore,
        (TwilioState.STREAMING, kinds.StartMessage): session._ignore,
        (TwilioState.STREAMING, kinds.MediaMessage): session._receive_audio,
        (TwilioState.STREAMING, kinds.DtmfMessage): session._digit,
        (TwilioState.STREAMING, kinds.MarkMessage): session._mark,
        (TwilioState.STREAMING, kinds.StopMessage): session._stop,
    }
    handlers |= {(TwilioState.STOPPED, kind): session._ignore for kind in get_args(kinds.FromTwilio)}
    return handlers  # type: ignore[return-value]  # each handler takes the message of its own key


TABLE = _table()
# Hashing an Enum member takes a Python call: the hot path looks up the row once per state, not once per message.
ROWS: dict[TwilioState, dict[type, Handler]] = {
    state: {kind: handler for (at, kind), handler in TABLE.items() if at is state} for state in TwilioState
}
