"""The base of all media sessions: the state machine of one connection, independent of its peer's dialect. No I/O.

    WAITING ──a call is opened──▶ STREAMING ──the audio is over──▶ FINISHING ──▶ CLOSED
       └─ refused, too late ─────────┴─ lost, silent, hung up ────────┴────────────┘

A dialect is a subclass. It defines how messages are parsed (`read`), what each does in each state (`table`), and what
is sent.
One rule holds for all: a wrong message is counted and the call goes on; only a connection that cannot become a call is
closed.
The base contains what is the same for all dialects: states, deadlines, refusals, every way a call ends, and counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar, Generic, TypedDict, TypeVar, cast

from audio.rtp.dtmf import DigitRate
from mediaworker.calls.call import Call
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audio_intake import AudioForm, AudioIntake
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.errors import MalformedMessage, UnknownMessage
from mediaworker.ingress.outbox import GOING_AWAY, LINGER_S, MAX_WAITING, NORMAL, POLICY, TRY_LATER, SessionOutbox

DIGITS = frozenset("0123456789ABCD*#")

C = TypeVar("C", bound=IngressCounters)
T = TypeVar("T")


class SessionState(Enum):
    WAITING = auto()
    """The peer is connected, but has no call yet."""
    STREAMING = auto()
    """The call accepts audio."""
    FINISHING = auto()
    """The call accepts no more audio; its finals, or the peer's close, are still to come."""
    CLOSED = auto()
    """No input is accepted; queued output may still be sent."""


class SessionChange(Enum):
    OPEN = auto()
    FINISH = auto()
    CLOSE = auto()


TRANSITIONS: Mapping[tuple[SessionState, SessionChange], SessionState] = {
    (SessionState.WAITING, SessionChange.OPEN): SessionState.STREAMING,
    (SessionState.WAITING, SessionChange.CLOSE): SessionState.CLOSED,
    (SessionState.STREAMING, SessionChange.FINISH): SessionState.FINISHING,
    (SessionState.STREAMING, SessionChange.CLOSE): SessionState.CLOSED,
    (SessionState.FINISHING, SessionChange.CLOSE): SessionState.CLOSED,
    # An end may be reported twice, a session may be cut off while it flushes, and each connection is lost after its
    # close. None of these changes a later state.
    (SessionState.FINISHING, SessionChange.FINISH): SessionState.FINISHING,
    (SessionState.CLOSED, SessionChange.FINISH): SessionState.CLOSED,
    (SessionState.CLOSED, SessionChange.CLOSE): SessionState.CLOSED,
}
"""Every possible transition. Any other is a bug of ours."""

Kind = type | int
"""The type of a message, or its number if the protocol numbers its messages."""
Handler = Callable[..., None]
"""A method that handles a message of the type in its key."""


class Hooks(TypedDict, total=False):
    """The arguments that an ingress passes to its sessions; see `Session`."""

    counters: Any
    on_problem: Callable[[str, str], None]
    on_lost: Callable[[], None]


class Session(Generic[C]):
    """One connection. No input raises: a wrong message is counted, answered, or ends the connection.

    Args:
        now: the present in seconds, by the same clock as every later `now`.
        start_timeout_s: the time that the peer has to begin its call.
        counters: the counters of the dialect, which all its sessions share.
        on_problem: writes a log line about a problem, with a detail.
        on_lost: called once, when the connection is gone.
    """

    table: ClassVar[Mapping[tuple[SessionState, Any], Handler]] = {}
    """(state, type that `read` returns) → handler. In a state without any entry messages are ignored; in other states a
    type without an entry is unexpected."""
    new_counters: ClassVar[type[IngressCounters]] = IngressCounters
    naming: ClassVar[str] = "{}"
    """The template for names in the log, such as "Twilio {}"."""
    message_word: ClassVar[str] = "message"
    connection_word: ClassVar[str] = "stream"
    first_message: ClassVar[str] = "start message"
    """The message that begins a call, for the log."""
    never_began: ClassVar[str] = "no_start"
    """The label under which connections count that end before their call begins; empty if they are not counted."""
    batched: ClassVar[bool] = False
    """Whether messages in STREAMING are audio that needs no response and may be passed in batches."""
    silent_s: float = 60.0
    """The longest silence of a peer in STREAMING; 0 for no limit."""
    max_waiting: ClassVar[int] = MAX_WAITING
    """The most messages that may wait to be sent, not counting partials."""
    linger_s: ClassVar[float | None] = LINGER_S
    """The time that a peer has to read the last outputs; None if the connection itself limits it."""

    _rows: ClassVar[Mapping[SessionState, Mapping[Kind, Handler]]] = {state: {} for state in SessionState}

    def __init_subclass__(cls) -> None:
        # Hashing an Enum member costs a Python call, so the row is looked up once per state, not once per message.
        cls._rows = {
            state: {kind: handler for (at, kind), handler in cls.table.items() if at is state} for state in SessionState
        }

    def __init__(
        self,
        now: float,
        start_timeout_s: float,
        *,
        counters: C | None = None,
        on_problem: Callable[[str, str], None] = lambda problem, detail: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = SessionState.WAITING
        self.call: Call | None = None
        self.outbox = SessionOutbox(self.max_waiting)
        self.counters = counters if counters is not None else cast(C, self.new_counters())
        self._legs: tuple[str, ...] = ()
        self._audio: AudioIntake | None = None
        self._row = self._rows[self.state]
        self._on_problem, self._on_lost = on_problem, on_lost
        self._lost = False
        self._start_timeout_s = start_timeout_s
        self._now = self._active_s = now
        """`_now` is the time of the latest input; `_active_s` is when the peer last gave a sign of life."""
        self._until_s: float | None = now + start_timeout_s
        """The deadline in every state but STREAMING."""
        self._digit_rate = DigitRate()

    # -- for the shell ------------------------------------------------------------------------------------------------

    @property
    def call_id(self) -> str | None:
        """The call's id; None before there is a call."""
        return self.call.id if self.call is not None else None

    @property
    def closed(self) -> bool:
        return self.state is SessionState.CLOSED

    @property
    def streaming(self) -> bool:
        """Whether messages are audio that needs no response, and may be passed in batches."""
        return self.batched and self.state is SessionState.STREAMING

    @property
    def deadline(self) -> float | None:
        """When to call `expire`. If it has moved later by then, `expire` does nothing."""
        if self.state is not SessionState.STREAMING:
            return self._until_s
        return self._active_s + self.silent_s if self.silent_s else None

    def is_ahead(self) -> bool:
        """Whether more audio has arrived than the legs accept now, so that the shell must stop reading."""
        if self.state is not SessionState.STREAMING or self._audio is None or self.call is None or self.call.ending:
            return False
        if ahead := self._audio.advance() or self._is_overdue():
            for leg in self._legs:
                self.call.defer(leg)
        return ahead

    def receive(self, message: str | bytes, now: float) -> None:
        """Handle one message."""
        self._now = now
        if self._row:
            try:
                typed = self.read(message)
            except MalformedMessage as error:
                self._on_malformed(error)
            except UnknownMessage as error:
                self._on_unknown(error)
            else:
                self._handle(type(typed), typed)

    def resume(self, now: float) -> None:
        """Handle messages that were kept while the peer was ahead; most dialects keep none."""

    def expire(self, now: float) -> None:
        """Act on the deadline, unless it has moved meanwhile."""
        self._now = now
        if self.is_ahead():
            self._on_unread()
        deadline = self.deadline
        if deadline is None or now < deadline:
            return
        match self.state:
            case SessionState.WAITING:
                self._on_start_timeout()
            case SessionState.STREAMING:
                self._on_silent()
            case SessionState.FINISHING:
                self._on_unfinished()
            case SessionState.CLOSED:
                self._set_deadline(self.linger_s)
                self.outbox.abort()

    def connection_lost(self, now: float, *, broken: bool = False) -> None:
        """End the session after the loss of its connection. Idempotent.

        `broken`: the connection was lost by an error, and not closed by the peer.
        """
        if self._lost:
            return
        self._lost, self._now = True, now
        if self.state is SessionState.STREAMING:
            reason = self._disconnected(broken)
            self._finish_audio()
            self._end(reason)
        elif self.state is SessionState.WAITING and self.never_began:
            self.counters.refuse(self.never_began)
        self._change(SessionChange.CLOSE)
        self._set_deadline(None)
        self.outbox.discard()
        self._on_lost()

    # -- what a dialect defines ---------------------------------------------------------------------------------------

    def read(self, message: str | bytes) -> object:
        """Parse a message into a type of `table`. Raises MalformedMessage or UnknownMessage, and nothing else."""
        raise NotImplementedError

    def _disconnected(self, broken: bool) -> str:
        """Count the loss of a connection in STREAMING, and return the reason for `call.ended`."""
        return "disconnected"

    def _send_goodbye(self) -> None:
        """Send the dialect's message for a hang-up by the worker; the close follows."""

    def _is_overdue(self) -> bool:
        """Whether the engine is too far behind for further audio."""
        return False

    def _named(self, word: str) -> str:
        return self.naming.format(word)

    # -- the beginning of a call --------------------------------------------------------------------------------------

    def try_open(self, open_call: Callable[[], T]) -> T | None:
        """The result of `open_call`, or None if the call is refused, which also refuses the connection."""
        try:
            return open_call()
        except CallRefused as refused:
            self.refuse_call(refused)
            return None

    def begin(self, call: Call, legs: tuple[str, ...], form: AudioForm | None = None) -> None:
        """Begin to stream into an open call. `form` is that of the audio; None if the dialect feeds the legs itself."""
        self.call, self._legs = call, legs
        if form is not None:
            self._audio = AudioIntake(call, legs, form)
        self._change(SessionChange.OPEN)
        self._active_s = self._now
        self.counters.started += 1

    # -- within a call ------------------------------------------------------------------------------------------------

    def _handle(self, kind: Kind, message: Any) -> None:
        handler = self._row.get(kind)
        if handler is not None:
            handler(self, message)
        else:
            self._unexpected(str(getattr(kind, "__name__", kind)))

    def _on_malformed(self, error: MalformedMessage) -> None:
        self.counters.malformed += 1
        self._on_problem(f"malformed {self._named(self.message_word)}", str(error))

    def _on_unknown(self, error: UnknownMessage) -> None:
        self.counters.unknown += 1
        self._on_problem(f"unknown {self._named(self.message_word)}", str(error))

    def _unexpected(self, detail: str) -> None:
        self.counters.unexpected += 1
        self._on_problem(f"unexpected {self._named(self.message_word)}", detail)

    def receive_audio(self, data: bytes) -> None:
        assert self._audio is not None
        self._audio.receive(data, self._now)

    def _receive_digit(self, leg: str, digit: str) -> bool:
        """Pass a digit to a leg; returns False if it is no digit, or came too fast. Digits are never logged."""
        assert self.call is not None
        if digit not in DIGITS:
            self.counters.malformed += 1
            self._on_problem(f"malformed {self._named('digit')}", f"{len(digit)} characters")
        elif not self._digit_rate.allow(self._now):
            self.counters.implausible += 1
            self._on_problem(f"{self._named('digits')} faster than any phone", leg)
        else:
            self.call.dtmf(leg, digit, 0)
            return True
        return False

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _set_deadline(self, after_s: float | None) -> None:
        """Set the deadline of a state other than STREAMING."""
        self._until_s = None if after_s is None else self._now + after_s

    def _on_unread(self) -> None:
        """Count the peer as active: it is held back, so its silence is ours."""
        self._active_s = self._now

    def _on_start_timeout(self) -> None:
        self.refuse("start_timeout", POLICY, f"no {self.first_message} within {self._start_timeout_s:g} s")

    def _on_silent(self) -> None:
        self.counters.silent += 1
        self.leave("media_timeout", GOING_AWAY, f"no message for {self.silent_s:g} s")

    def _on_unfinished(self) -> None:
        self.close(NORMAL, "")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """End the connection because the worker ends the call; the open utterance still gets its final."""
        if self.state is SessionState.STREAMING:
            self._finish_audio()
            self._send_goodbye()
            self.close(NORMAL, "call ended by the worker")

    def refuse(self, why: str, code: int, reason: str) -> None:
        """Refuse a connection that cannot become a call. `why` is the label under which it is counted."""
        self.counters.refuse(why)
        self._on_problem(f"{self._named(self.connection_word)} refused", reason)
        self.close(code, reason)

    def refuse_call(self, refused: CallRefused) -> None:
        # A retry helps with a full or draining worker, but not after a 403.
        self.refuse("capacity", POLICY if refused.status == 403 else TRY_LATER, refused.reason)

    def leave(self, reason: str, code: int, why: str) -> None:
        """End the call with this reason, and the connection."""
        self._finish_audio()
        self._end(reason)
        self.close(code, why)

    def _end(self, reason: str) -> None:
        """End the call; a dialect with shared calls ends it only with its last connection."""
        assert self.call is not None
        self.call.on_hangup = None
        self.call.end(reason)

    def close(self, code: int, reason: str) -> None:
        """Close the connection once all queued output has been sent."""
        self._change(SessionChange.CLOSE)
        self._set_deadline(self.linger_s)
        self.outbox.close(code, reason)

    def _finish_audio(self) -> None:
        if self._audio is not None:
            self._audio.finish(self._now)

    def _change(self, change: SessionChange) -> None:
        assert (self.state, change) in TRANSITIONS, f"{change.name} in {self.state.name}"
        self.state = TRANSITIONS[self.state, change]
        self._row = self._rows[self.state]
