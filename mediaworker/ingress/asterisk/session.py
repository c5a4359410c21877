"""One WebSocket channel of Asterisk as a state machine without I/O.

    WAITING ──MEDIA_START──▶ STREAMING ──gone, silent, hung up by us──▶ CLOSED
       └─ refused, too late ────────────────────────────────────────────┘

Its one rule: a wrong message is counted and the call goes on; only a channel that cannot become a leg is closed. The
protocol has no hang-up besides the end of the connection.

Asterisk makes silence itself while nothing is sent to it, so no audio goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from config.counters import counter, counter_by
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.asterisk import messages
from mediaworker.ingress.asterisk.calls import AsteriskCalls, Seat
from mediaworker.ingress.audio_intake import AudioIntake
from mediaworker.ingress.audio_session import AudioSession
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.outbox import GOING_AWAY, LINGER_S, NORMAL, POLICY, TRY_LATER, UNSUPPORTED, Outbox

EARLY_BYTES = 32_000
"""How much audio may wait for MEDIA_START, which it can overtake (Asterisk 22.7 under load): a second of slin16."""
SILENT_S = 60.0
"""How long a channel may send nothing before Asterisk is asked for its status. A held channel sends no audio."""
PROBE_S = 10.0
FORGOTTEN_S = 3600.0
"""How long a channel that still answers may send no audio before it is hung up, as a SIP call on hold is: its far end
has gone, and nothing has taken it out of its bridge."""


class AsteriskState(Enum):
    WAITING = auto()
    STREAMING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class AsteriskCounters(IngressCounters):
    """Over all channels, since the start of the worker. Plain integers for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Counts refused channels of Asterisk by reason.")
    events: int = counter("Counts control messages received on Asterisk's WebSocket channels.")
    started: int = counter("Counts channels of Asterisk that became a leg.")
    joined: int = counter("Counts channels that joined a call which another channel had opened.")
    hangups: int = counter("Counts channels that Asterisk hung up.")
    silent: int = counter(
        "Counts channels that were ended because Asterisk stopped answering or sent no audio for an hour."
    )
    probes: int = counter("Counts how often a silent channel of Asterisk was asked for its status.")
    malformed: int = counter("Counts messages on Asterisk's channels that are malformed.")
    unknown: int = counter("Counts messages of unknown events on Asterisk's channels.")
    unexpected: int = counter("Counts messages in the wrong state and errors reported by Asterisk on its channels.")
    implausible: int = counter("Counts digits on Asterisk's channels that came faster than any phone sends them.")
    early: int = counter("Counts audio messages that arrived before MEDIA_START.")
    early_lost: int = counter("Counts audio messages before MEDIA_START that were dropped because there were too many.")


@dataclass(frozen=True, slots=True)
class AsteriskPolicy:
    """What the ingress knows when it accepts the upgrade."""

    owner: str
    """The API key's name, or `loopback`."""
    start_timeout_s: float
    answers: bool


class AsteriskSession(AudioSession):
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
        super().__init__(now, on_problem)
        self.state = AsteriskState.WAITING
        self.seat: Seat | None = None
        self.outbox = Outbox()
        self.counters = counters if counters is not None else AsteriskCounters()
        self._policy, self._calls, self._on_lost = policy, calls, on_lost
        self._early = b""
        self._json = self._probed = self._lost = False
        self._message_s = self._audio_s = now
        """When the latest message and the latest audio arrived."""
        self._since_s = now
        """When WAITING or CLOSED began."""

    # -- interfaces.MediaSession --------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        if self.state is AsteriskState.WAITING:
            return self._since_s + self._policy.start_timeout_s
        if self.state is AsteriskState.CLOSED:
            return self._since_s + LINGER_S
        return min(self._message_s + SILENT_S + PROBE_S * self._probed, self._audio_s + FORGOTTEN_S)

    def _is_streaming(self) -> bool:
        return self.state is AsteriskState.STREAMING

    def receive(self, message: str | bytes, now: float) -> None:
        """Audio as bytes, an event as text."""
        self._now = now
        if self.state is AsteriskState.CLOSED:
            return
        if self.state is AsteriskState.STREAMING:
            self._message_s, self._probed = now, False
        if isinstance(message, str):
            self._event(message)
            return
        self._audio_s = now
        if self._audio is None:
            self._keep_early(message)
        elif message:
            self._audio.receive(message, now)

    def expire(self, now: float) -> None:
        """The deadline has passed; does nothing when it has moved meanwhile."""
        self._now = now
        if self.is_ahead():  # we do not read
            self._message_s = self._audio_s = now
        if self.deadline is None or now < self.deadline:
            return
        if self.state is AsteriskState.CLOSED:
            self._since_s = now
            self.outbox.abort()
        elif self.state is AsteriskState.WAITING:
            self._refuse("start_timeout", POLICY, f"no MEDIA_START within {self._policy.start_timeout_s:g} s")
        elif now >= self._audio_s + FORGOTTEN_S:
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

    # -- messages of the peer -----------------------------------------------------------------------------------------

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
            self.seat = self._calls.join(self._policy.owner, start, form.codec, self)
        except CallRefused as refused:
            self._refuse("capacity", POLICY if refused.status == 403 else TRY_LATER, refused.reason)
            return
        self.counters.started += 1
        self.counters.joined += self.seat.joined
        self.call, self._legs = self.seat.call, (self.seat.leg,)
        self._audio = AudioIntake(self.call, self._legs, form)
        self.state, self._message_s, self._audio_s = AsteriskState.STREAMING, self._now, self._now
        if self._policy.answers:
            self._command(messages.ANSWER)
        if self._early:
            self._audio.receive(self._early, self._now)
            self._early = b""

    def _keep_early(self, data: bytes) -> None:
        self.counters.early += 1
        if len(self._early) + len(data) <= EARLY_BYTES:
            self._early += data
        else:
            self.counters.early_lost += 1

    def _digit(self, digit: str) -> None:
        if self.seat is None:
            self.counters.unexpected += 1
        else:
            problems = "malformed digit of Asterisk's", "digits of Asterisk's faster than any phone"
            self._receive_digit(digit, self.counters, *problems)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """The worker ends the call: the open utterance still gets its final."""
        if self.state is AsteriskState.STREAMING:
            self._finish_audio()
            self._command(messages.HANGUP)
            self._close(NORMAL, "call ended by the worker")

    def _leave(self, reason: str) -> None:
        assert self.seat is not None
        self._finish_audio()
        self.state = AsteriskState.CLOSED
        self._calls.leave(self.seat.call, [self.seat.leg], self, reason)

    def _refuse(self, why: str, code: int, reason: str) -> None:
        self.counters.refuse(why)
        self._on_problem("channel of Asterisk's refused", reason)
        self._close(code, reason)

    def _command(self, name: str) -> None:
        self.outbox.send(messages.command(name, json=self._json))

    def _close(self, code: int, reason: str) -> None:
        self.state, self._since_s = AsteriskState.CLOSED, self._now
        self.outbox.close(code, reason)
