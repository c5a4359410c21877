"""One WebSocket channel of Asterisk as a state machine without I/O.

    WAITING ──MEDIA_START──▶ STREAMING ──gone, silent, hung up by us──▶ CLOSED
       └─ refused, too late ────────────────────────────────────────────┘

Its one rule: what a peer sends wrongly is counted and the call goes on; only a channel that cannot become a leg is
closed. The end of the connection is the hang-up: the protocol has no other.

Asterisk makes silence itself while nothing is sent to it, so no audio goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from audio.rtp.dtmf import DigitRate
from config.counters import counter, counter_by
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.asterisk import messages
from mediaworker.ingress.asterisk.calls import AsteriskCalls, Seat
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.outbox import Outbox
from mediaworker.ingress.websocket.audio import AudioIntake
from mediaworker.ingress.websocket.limits import GOING_AWAY, LINGER_S, NORMAL, POLICY, TRY_LATER

UNSUPPORTED = 1003
"""RFC 6455 section 7.4.1."""
EARLY_BYTES = 32_000
"""Audio may overtake MEDIA_START (Asterisk 22.7 under load): so much of it waits, a second of slin16."""
SILENT_S = 60.0
"""After so long without a message (nobody sends audio to a held channel) Asterisk is asked whether it is there."""
PROBE_S = 10.0
FORGOTTEN_S = 3600.0
"""After so long without audio a channel is hung up that still answers: whatever was heard through it has gone, and
nobody has taken it out of its bridge. As a SIP call on hold."""
DIGITS = frozenset("0123456789ABCD*#")


class AsteriskState(Enum):
    WAITING = auto()
    STREAMING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class AsteriskCounters(IngressCounters):
    """Over all channels, since the start of the worker. Plain integers for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Channels refused by reason")
    events: int = counter("Control messages received")
    started: int = counter("Channels that became a leg")
    joined: int = counter("Channels that joined a call that another channel had opened")
    hangups: int = counter("Channels hung up by Asterisk")
    silent: int = counter("Channels ended because Asterisk did not answer any more, or sent no audio for an hour")
    probes: int = counter("Times that a silent channel of Asterisk was asked for its status")
    malformed: int = counter("Messages that are not what Asterisk sends")
    unknown: int = counter("Messages of an unknown event")
    unexpected: int = counter("Messages in the wrong state, and errors that Asterisk reports")
    implausible: int = counter("Digits that came faster than any phone sends them")
    early: int = counter("Messages of audio before MEDIA_START")
    early_lost: int = counter("Messages of audio before MEDIA_START that were too many to keep")


@dataclass(frozen=True, slots=True)
class AsteriskPolicy:
    """What the shell knows when it accepts the upgrade."""

    owner: str
    """The API key's name, or `loopback`."""
    start_timeout_s: float
    answers: bool


class AsteriskSession:
    """Implements `interfaces.MediaSession`. `on_problem(problem, detail)` is for the log, `on_lost` is
    called once when the socket is gone; all sessions share `counters`."""

    streaming = False
    """Its messages are not all audio: each is looked at."""

    def __init__(
        self,
        policy: AsteriskPolicy,
        calls: AsteriskCalls,
        now: float,
        *,
        counters: AsteriskCounters | None = None,
        on_problem: Callable[[str, str], None] = lambda problem, detail: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = AsteriskState.WAITING
        self.seat: Seat | None = None
        self.outbox = Outbox()
        self.counters = counters if counters is not None else AsteriskCounters()
        self._policy, self._calls = policy, calls
        self._on_problem, self._on_lost = on_problem, on_lost
        self._audio: AudioIntake | None = None
        self._early = b""
        self._digits = DigitRate()
        self._json = self._probed = self._lost = False
        self._heard_s = self._spoken_s = self._now = now
        """Of any message, and of audio."""
        self._since_s = now
        """When WAITING or CLOSED began."""

    # -- interfaces.MediaSession --------------------------------------------------------------------------------------

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""
        return self.seat.call.id if self.seat is not None else None

    @property
    def deadline(self) -> float | None:
        if self.state is AsteriskState.WAITING:
            return self._since_s + self._policy.start_timeout_s
        if self.state is AsteriskState.CLOSED:
            return self._since_s + LINGER_S
        return min(self._heard_s + SILENT_S + PROBE_S * self._probed, self._spoken_s + FORGOTTEN_S)

    def is_ahead(self) -> bool:
        if (
            self.state is not AsteriskState.STREAMING
            or self._audio is None
            or self.seat is None
            or self.seat.call.ending
        ):
            return False
        if ahead := self._audio.advance():
            self.seat.call.defer(self.seat.leg)
        return ahead

    def receive(self, message: str | bytes, now: float) -> None:
        """Audio as bytes, an event as text."""
        self._now = now
        if self.state is AsteriskState.CLOSED:
            return
        if self.state is AsteriskState.STREAMING:
            self._heard_s, self._probed = now, False
        if isinstance(message, str):
            self._event(message)
            return
        self._spoken_s = now
        if self._audio is None:
            self._wait(message)
        elif message:
            self._audio.take(message, now)

    def expire(self, now: float) -> None:
        """The deadline has passed; does nothing when it has moved meanwhile."""
        self._now = now
        if self.is_ahead():  # it is us who do not read
            self._heard_s = self._spoken_s = now
        if self.deadline is None or now < self.deadline:
            return
        if self.state is AsteriskState.CLOSED:
            self._since_s = now
            self.outbox.abort()
        elif self.state is AsteriskState.WAITING:
            self._refuse("start_timeout", POLICY, f"no MEDIA_START within {self._policy.start_timeout_s:g} s")
        elif now >= self._spoken_s + FORGOTTEN_S:
            self.counters.silent += 1
            self._on_problem("channel of Asterisk's is forgotten", f"no audio for {FORGOTTEN_S:g} s")
            self._leave("media_timeout")
            self._command(messages.HANGUP)
            self._close(NORMAL, "no audio")
        elif not self._probed:
            self._probed = True
            self.counters.probes += 1
            self._command(messages.GET_STATUS)
        else:
            self.counters.silent += 1
            self._on_problem("Asterisk is silent", f"no answer within {PROBE_S:g} s")
            self._leave("media_timeout")
            self._close(GOING_AWAY, "no answer")

    def connection_lost(self, now: float) -> None:
        if self._lost:
            return
        self._lost, self._now = True, now
        if self.state is AsteriskState.STREAMING:
            self.counters.hangups += 1
            self._leave("hangup")
        elif self.state is AsteriskState.WAITING:
            self.counters.refuse("no_start")
        self.state, self._since_s = AsteriskState.CLOSED, now
        self.outbox.close(NORMAL, "")
        self._on_lost()

    # -- what the peer says -------------------------------------------------------------------------------------------

    def _event(self, text: str) -> None:
        self.counters.events += 1
        try:
            event = messages.parse(text)
        except messages.AsteriskMalformed as error:
            self.counters.malformed += 1
            self._on_problem("malformed message of Asterisk's", str(error))
            return
        except messages.AsteriskUnknown as error:
            self.counters.unknown += 1
            self._on_problem("unknown message of Asterisk's", str(error))
            return
        if isinstance(event, messages.MediaStart):
            self._start(event)
        elif isinstance(event, messages.DtmfEnd):
            self._digit(event.digit)
        elif event.event == "ERROR":
            self.counters.unexpected += 1
            self._on_problem("Asterisk reports an error", event.text)

    def _start(self, start: messages.MediaStart) -> None:
        if self.state is not AsteriskState.WAITING:
            self.counters.unexpected += 1
            self._on_problem("unexpected message of Asterisk's", "MEDIA_START again")
            return
        self._json = start.json
        form = messages.FORMATS.get(start.format.lower())
        if form is None:
            self._refuse("format", UNSUPPORTED, f"format {start.format[:20]!r} is not supported")
            return
        try:
            self.seat = self._calls.join(self._policy.owner, start, form.codec, self._hung_up)
        except CallRefused as refused:
            self._refuse("capacity", POLICY if refused.status == 403 else TRY_LATER, refused.reason)
            return
        self.counters.started += 1
        self.counters.joined += self.seat.joined
        self._audio = AudioIntake(self.seat.call, (self.seat.leg,), form)
        self.state, self._heard_s, self._spoken_s = AsteriskState.STREAMING, self._now, self._now
        if self._policy.answers:
            self._command(messages.ANSWER)
        if self._early:
            self._audio.take(self._early, self._now)
            self._early = b""

    def _wait(self, data: bytes) -> None:
        self.counters.early += 1
        if len(self._early) + len(data) <= EARLY_BYTES:
            self._early += data
        else:
            self.counters.early_lost += 1

    def _digit(self, digit: str) -> None:
        if self.seat is None:
            self.counters.unexpected += 1
        elif digit not in DIGITS:
            self.counters.malformed += 1
            self._on_problem("malformed digit of Asterisk's", f"{len(digit)} characters")  # never what is keyed
        elif not self._digits.allow(self._now):
            self.counters.implausible += 1
            self._on_problem("digits of Asterisk's faster than any phone", self.seat.leg)
        else:
            self.seat.call.dtmf(self.seat.leg, digit, 0)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _hung_up(self) -> None:
        """The worker ends the call: what is said so far still gets its final."""
        if self.state is AsteriskState.STREAMING:
            self._finish_audio()
            self._command(messages.HANGUP)
            self._close(NORMAL, "call ended by the worker")

    def _leave(self, reason: str) -> None:
        assert self.seat is not None
        self._finish_audio()
        self.state = AsteriskState.CLOSED
        self._calls.leave(self.seat, reason)

    def _finish_audio(self) -> None:
        assert self._audio is not None
        self._audio.finish(self._now)

    def _refuse(self, why: str, code: int, reason: str) -> None:
        self.counters.refuse(why)
        self._on_problem("channel of Asterisk's refused", reason)
        self._close(code, reason)

    def _command(self, name: str) -> None:
        self.outbox.send(messages.command(name, json=self._json))

    def _close(self, code: int, reason: str) -> None:
        self.state, self._since_s = AsteriskState.CLOSED, self._now
        self.outbox.close(code, reason)
