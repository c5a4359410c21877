"""The base of all media sessions: what one connection is, whatever dialect its peer speaks. No I/O.

    WAITING ──a call is opened──▶ STREAMING ──the audio is over──▶ FINISHING ──▶ CLOSED
       └─ refused, too late ─────────┴─ lost, silent, hung up ────────┴────────────┘

A dialect is a subclass. It says what a message is (`read`), what each does in each state (`table`), and what it sends.
Its one rule: a wrong message is counted and the call goes on; only a connection that cannot become a call is closed.
The base has what no dialect may get wrong: the states, the deadlines, refusals, every way a call ends, and the counts.
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
    """Connected; there is no call yet."""
    STREAMING = auto()
    """The call takes audio."""
    FINISHING = auto()
    """The call takes no more audio; its finals, or the peer's close, are on their way."""
    CLOSED = auto()
    """Nothing is taken any more; what waits to be sent may still go."""


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
    # The error that tells of an end may be one too many, a session may be cut off while it flushes, and each is lost
    # after its close.
    (SessionState.FINISHING, SessionChange.FINISH): SessionState.FINISHING,
    (SessionState.CLOSED, SessionChange.FINISH): SessionState.CLOSED,
    (SessionState.CLOSED, SessionChange.CLOSE): SessionState.CLOSED,
}
"""Every change that can happen. Any other is a fault of ours."""

Kind = type | int
"""The type of a message, or its number where a protocol has numbers."""
Handler = Callable[..., None]
"""A method that takes the message, in the type of its key."""


class Hooks(TypedDict, total=False):
    """What an ingress gives its sessions; see the arguments of `Session`."""

    counters: Any
    on_problem: Callable[[str, str], None]
    on_lost: Callable[[], None]


class Session(Generic[C]):
    """One connection. No input raises: a wrong message is counted, answered, or ends the connection.

    Args:
        now: in seconds, on the clock of every later `now`.
        start_timeout_s: how long the peer may take to begin its call.
        counters: those of the dialect, which all its sessions share.
        on_problem: writes a log line about a problem, with a detail.
        on_lost: called once, when the connection is gone.
    """

    table: ClassVar[Mapping[tuple[SessionState, Any], Handler]] = {}
    """What each kind of message does in each state, by the type that `read` returns. In a state without any entry
    messages are ignored; in the others a kind without one is unexpected."""
    new_counters: ClassVar[type[IngressCounters]] = IngressCounters
    naming: ClassVar[str] = "{}"
    """Names a thing of the dialect in the log, such as "Twilio {}"."""
    message_word: ClassVar[str] = "message"
    connection_word: ClassVar[str] = "stream"
    first_message: ClassVar[str] = "start message"
    """The message that begins a call, for the log."""
    never_began: ClassVar[str] = "no_start"
    """The reason under which connections that end before it are counted; empty: they are not."""
    batched: ClassVar[bool] = False
    """While it streams, messages are audio that needs no answer and may come in batches."""
    silent_s: float = 60.0
    """How long a peer may send nothing while it streams; 0: for any time."""
    max_waiting: ClassVar[int] = MAX_WAITING
    """How many messages may wait to be sent, beside partials."""
    linger_s: ClassVar[float | None] = LINGER_S
    """How long a peer may take to read the last outputs; None: the connection itself bounds it."""

    _rows: ClassVar[Mapping[SessionState, Mapping[Kind, Handler]]] = {state: {} for state in SessionState}

    def __init_subclass__(cls) -> None:
        # Hashing an Enum member takes a Python call: the hot path looks up the row once per state, not per message.
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
        self._now = self._heard_s = now
        """`_now`: the time of the latest input; `_heard_s`: when the peer last showed that it is there."""
        self._until_s: float | None = now + start_timeout_s
        """The deadline in every state but STREAMING."""
        self._digit_rate = DigitRate()

    # -- for the shell ------------------------------------------------------------------------------------------------

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""
        return self.call.id if self.call is not None else None

    @property
    def closed(self) -> bool:
        return self.state is SessionState.CLOSED

    @property
    def streaming(self) -> bool:
        """Whether messages are audio that needs no answer, and may be passed in batches."""
        return self.batched and self.state is SessionState.STREAMING

    @property
    def deadline(self) -> float | None:
        """When to call `expire`. If it has moved later by then, `expire` does nothing."""
        if self.state is not SessionState.STREAMING:
            return self._until_s
        return self._heard_s + self.silent_s if self.silent_s else None

    def is_ahead(self) -> bool:
        """Whether more has arrived than the legs take for now: the shell reads no further."""
        if self.state is not SessionState.STREAMING or self._audio is None or self.call is None or self.call.ending:
            return False
        if ahead := self._audio.advance() or self._is_overdue():
            for leg in self._legs:
                self.call.defer(leg)
        return ahead

    def receive(self, message: str | bytes, now: float) -> None:
        """Take one message."""
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
        """The peer is no longer ahead: take what has been kept of its messages, which in most dialects is nothing."""

    def expire(self, now: float) -> None:
        """The deadline has passed; does nothing when it has moved meanwhile."""
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
        """The connection is gone; `broken`: by a fault, and not because the peer closed it. Idempotent."""
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

    # -- what a dialect says ------------------------------------------------------------------------------------------

    def read(self, message: str | bytes) -> object:
        """The message, in a type that `table` has. Raises MalformedMessage or UnknownMessage, and nothing else."""
        raise NotImplementedError

    def _disconnected(self, broken: bool) -> str:
        """Counts the loss of a connection that streamed, and returns the reason of `call.ended`."""
        return "disconnected"

    def _say_goodbye(self) -> None:
        """Send what the dialect says when the worker hangs up; the close follows."""

    def _is_overdue(self) -> bool:
        """Whether the engine is too far behind for further audio."""
        return False

    def _named(self, word: str) -> str:
        return self.naming.format(word)

    # -- the beginning of a call --------------------------------------------------------------------------------------

    def try_open(self, open_call: Callable[[], T]) -> T | None:
        """What `open_call` returns, or None when the call is refused, and with it the connection."""
        try:
            return open_call()
        except CallRefused as refused:
            self.refuse_call(refused)
            return None

    def begin(self, call: Call, legs: tuple[str, ...], form: AudioForm | None = None) -> None:
        """The call is open, and takes audio of this form; None: the dialect gives the legs their audio itself."""
        self.call, self._legs = call, legs
        if form is not None:
            self._audio = AudioIntake(call, legs, form)
        self._change(SessionChange.OPEN)
        self._heard_s = self._now
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
        """Give a digit to a leg; False: it is no digit, or comes too fast. The log never has the digit itself."""
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
        """The peer is held back: what it has sent waits for us, so that it cannot be called silent."""
        self._heard_s = self._now

    def _on_start_timeout(self) -> None:
        self.refuse("start_timeout", POLICY, f"no {self.first_message} within {self._start_timeout_s:g} s")

    def _on_silent(self) -> None:
        self.counters.silent += 1
        self.leave("media_timeout", GOING_AWAY, f"no message for {self.silent_s:g} s")

    def _on_unfinished(self) -> None:
        self.close(NORMAL, "")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def hang_up(self) -> None:
        """The worker ends the call: the open utterance still gets its final."""
        if self.state is SessionState.STREAMING:
            self._finish_audio()
            self._say_goodbye()
            self.close(NORMAL, "call ended by the worker")

    def refuse(self, why: str, code: int, reason: str) -> None:
        """The connection cannot become a call. `why` is the label under which it is counted."""
        self.counters.refuse(why)
        self._on_problem(f"{self._named(self.connection_word)} refused", reason)
        self.close(code, reason)

    def refuse_call(self, refused: CallRefused) -> None:
        # Waiting does not help against a 403, but against a full or draining worker it does.
        self.refuse("capacity", POLICY if refused.status == 403 else TRY_LATER, refused.reason)

    def leave(self, reason: str, code: int, why: str) -> None:
        """End the call with this reason, and the connection with it."""
        self._finish_audio()
        self._end(reason)
        self.close(code, why)

    def _end(self, reason: str) -> None:
        """End the call, in which the connection may have been the last of several."""
        assert self.call is not None
        self.call.on_hangup = None
        self.call.end(reason)

    def close(self, code: int, reason: str) -> None:
        """Close the connection once everything that waits has been sent."""
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
