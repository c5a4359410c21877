"""One Twilio Media Stream as a state machine without I/O.

`start` opens its call, and `stop` ends it; Twilio then closes the connection. The table at the end contains every pair
of state and message; a test checks that it is complete.

Both tracks share the stream's clock: sample 0 of each leg is the moment at which `start` arrived, and a chunk's
`timestamp` is its position, in whatever order the chunks arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack, get_args

from audio import Leg
from config import Settings
from mediaworker.ingress.interfaces import MAX_AHEAD_S
from mediaworker.ingress.outbox import NORMAL, POLICY, UNSUPPORTED
from mediaworker.ingress.session import Hooks, Session, SessionChange, SessionState
from mediaworker.ingress.twilio import messages
from mediaworker.ingress.twilio.calls import ROLES, TwilioCalls
from mediaworker.ingress.twilio.calls import STALL_S as STALL_S
from mediaworker.ingress.twilio.counters import TwilioCounters
from mediaworker.ingress.twilio.player import MAX_MESSAGES, TwilioPlayer

SAMPLES_PER_MS = 8
MAX_AHEAD = round(MAX_AHEAD_S * 1000) * SAMPLES_PER_MS
MAX_JUMP = MAX_AHEAD
"""A chunk that is this far beyond both the clock and the previous audio has a wrong timestamp."""
SILENT_S = 60.0
"""The longest silence of a stream: Twilio sends 50 messages a second, also in silence and on hold."""
ABSENT = 2 * 8000
"""The lag behind the other track from which on a track counts as not being sent, and continues as silence."""
LINGER_S = 5.0
"""The time that Twilio has to close the connection after `stop`."""


@dataclass(slots=True)
class _Track:
    leg: Leg
    base: int
    """The leg's position at the beginning of the stream: 0, unless another stream fed the leg before."""
    end: int
    """The end position of the furthest chunk."""
    clear_to: int
    """The position up to which the track was not ahead of the VAD at the last check; the VAD never moves back."""
    arrived_s: float = 0.0
    """When the track's latest chunk arrived."""


class TwilioSession(Session[TwilioCounters]):
    """One stream with one or two legs, of a call that it may share with others. All sessions share `calls`."""

    new_counters = TwilioCounters
    max_waiting = MAX_MESSAGES
    naming = "Twilio {}"
    batched = True
    silent_s = SILENT_S
    linger_s = None

    def __init__(
        self,
        settings: Settings,
        calls: TwilioCalls,
        now: float,
        *,
        check_token: Callable[[str, str, str], bool],
        on_bad_token: Callable[[], object] = lambda: None,
        **hooks: Unpack[Hooks],
    ) -> None:
        """`check_token(token, callSid, streamSid)` returns whether the token was issued for this call, is fresh, and
        has not been used by another stream. `on_bad_token` is called if a `start` has no valid token but needs one."""
        super().__init__(now, settings.media.start_timeout_s, **hooks)
        self.player: TwilioPlayer | None = None
        """The player of a `<Connect>` stream, which accepts media, mark and clear. Any message to a `<Start>` stream
        causes Twilio's error 31924."""
        self._calls, self._needs_token = calls, settings.twilio.require_token
        self._check_token, self._on_bad_token = check_token, on_bad_token
        self._stream_sid = ""
        self._tracks: dict[str, _Track] = {}
        self._maybe_ahead = False
        self._origin_s = now

    def is_ahead(self) -> bool:
        if not self._maybe_ahead:
            return False
        ahead = False
        if self.state is SessionState.STREAMING and self.call is not None and not self.call.ending:
            for track in self._tracks.values():
                track.clear_to = track.leg.position + MAX_AHEAD
                ahead |= track.end > track.clear_to
        self._maybe_ahead = ahead
        return ahead

    def read(self, message: str | bytes) -> object:
        """Parse one text message, which may be undecoded bytes."""
        self.counters.messages += 1
        return messages.parse(message)

    # -- one method per kind of message; the table defines in which states each is called -----------------------------

    def _greet(self, message: messages.ConnectedMessage) -> None:
        """Do nothing: the call is identified by `start`."""

    def _open(self, message: messages.StartMessage) -> None:
        if refusal := self._refusal(message):
            self.refuse(*refusal)
            return
        start = message.start
        if (opened := self.try_open(lambda: self._calls.join(start, self))) is None:
            return
        call, joined = opened
        self._stream_sid, self._origin_s = message.stream_sid, self._now
        self.counters.joined += joined
        self._tracks = {track: self._add_track(call.legs[track], self._now) for track in start.tracks}
        # A <Connect> stream carries the inbound track only. Any other stream counts as <Start>, which gets no media.
        if start.custom_parameters.get("mw_mode") == "connect" and tuple(self._tracks) == ("inbound",):
            call.player = self.player = TwilioPlayer(call, "inbound", self.outbox, message.stream_sid, self.counters)
        self.begin(call, tuple(self._tracks))

    def _add_track(self, leg: Leg, now: float) -> _Track:
        """Start the stream's clock on a leg. A leg that another stream has fed continues from the present."""
        leg.anchor(now)
        assert leg.origin_s is not None
        base = max(leg.end, leg.position, round((now - leg.origin_s) * 8000))
        return _Track(leg, base, base, base + MAX_AHEAD)

    def _refusal(self, message: messages.StartMessage) -> tuple[str, int, str] | None:
        """The reason why this `start` cannot open a call, as the arguments of `refuse`, or None."""
        start = message.start
        form, token = start.media_format, start.custom_parameters.get("mw_token")
        if (form.encoding, form.sample_rate, form.channels) != ("audio/x-mulaw", 8000, 1):
            reason = f"mediaFormat {form.encoding} {form.sample_rate} Hz, {form.channels} channels is not supported"
            return "media_format", UNSUPPORTED, reason
        if not start.tracks or not set(start.tracks) <= set(ROLES):
            return "tracks", UNSUPPORTED, f"tracks {list(dict.fromkeys(start.tracks))[:4]} are not supported"
        if token is None and self._needs_token:
            self._on_bad_token()
            return "token", POLICY, "no mw_token parameter"
        if token is not None and not self._check_token(token, start.call_sid, message.stream_sid):
            self._on_bad_token()
            return "token", POLICY, "mw_token is not valid for this call"
        return None

    def _media(self, message: messages.MediaMessage) -> None:
        media, now = message.media, self._now
        assert self.call is not None
        if self.call.ending:  # the worker ended it, so its legs are gone
            self._ignore(message)
            return
        track = self._tracks.get(media.track)
        if track is None:
            self.counters.wrong_track += 1
            self._on_problem("Twilio media of a track that was not announced", media.track)
            return
        if message.stream_sid != self._stream_sid:
            self._stray(message)
            return
        self._active_s = now
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

    def _digit(self, message: messages.DtmfMessage) -> None:
        if message.stream_sid != self._stream_sid:
            self._stray(message)
            return
        self._active_s = self._now
        track = message.dtmf.track.removesuffix("_track")
        assert self.call is not None
        if track not in self._tracks or self.call.ending:
            self.counters.wrong_track += 1
            return
        # Twilio reports a digit when it has ended, without its duration.
        self.counters.dtmf += self._receive_digit(track, message.dtmf.digit)

    def _mark(self, message: messages.MarkMessage) -> None:
        self.counters.marks += 1
        self._active_s = self._now
        if self.player is not None:
            self.player.on_mark(message.mark.name)

    def _stop(self, message: messages.StopMessage) -> None:
        if message.stream_sid not in ("", self._stream_sid):
            self._stray(message)
            return
        self.counters.stopped += 1
        self._end("hangup")
        self._change(SessionChange.FINISH)
        self._set_deadline(LINGER_S)

    def _stop_early(self, message: messages.StopMessage) -> None:
        self.refuse("no_start", NORMAL, "stopped before it started")

    def _too_early(self, message: messages.FromTwilio) -> None:
        self.refuse("media_before_start", POLICY, f"{message.event} before start")

    def _ignore(self, message: messages.FromTwilio) -> None:
        self._unexpected(message.event)

    def _stray(self, message: messages.FromTwilio) -> None:
        self.counters.wrong_stream += 1
        self._on_problem("Twilio message of another stream", message.event)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _change(self, change: SessionChange) -> None:
        super()._change(change)
        if self.state is not SessionState.STREAMING and self.call is not None and self.player is not None:
            self.player.close()
            if self.call.player is self.player:
                self.call.player = None

    def _disconnected(self, broken: bool) -> str:
        self.counters.disconnected += 1
        return "disconnected"

    def close(self, code: int, reason: str) -> None:
        """Close now, without playing queued sound."""
        self._change(SessionChange.CLOSE)
        self._set_deadline(self.linger_s)
        self.outbox.abort(code, reason)

    def replaced(self, track: str) -> None:
        """Give up a track that another stream of the call carries from now on."""
        del self._tracks[track]
        self.counters.replaced += 1
        reason = f"another stream of this call carries the {track} track"
        self._on_problem("Twilio stream replaced", reason)
        if not self._tracks:
            self.close(POLICY, reason)

    def _end(self, reason: str) -> None:
        """Remove the stream from the call, which ends with its last stream."""
        assert self.call is not None
        self._calls.leave(self.call, self._tracks, self, reason)

    table = {
        (SessionState.WAITING, messages.ConnectedMessage): _greet,
        (SessionState.WAITING, messages.StartMessage): _open,
        (SessionState.WAITING, messages.MediaMessage): _too_early,
        (SessionState.WAITING, messages.DtmfMessage): _too_early,
        (SessionState.WAITING, messages.MarkMessage): _too_early,
        (SessionState.WAITING, messages.StopMessage): _stop_early,
        (SessionState.STREAMING, messages.ConnectedMessage): _ignore,
        (SessionState.STREAMING, messages.StartMessage): _ignore,
        (SessionState.STREAMING, messages.MediaMessage): _media,
        (SessionState.STREAMING, messages.DtmfMessage): _digit,
        (SessionState.STREAMING, messages.MarkMessage): _mark,
        (SessionState.STREAMING, messages.StopMessage): _stop,
    } | dict.fromkeys(((SessionState.FINISHING, kind) for kind in get_args(messages.FromTwilio)), _ignore)
