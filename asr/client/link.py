"""The recognizer's end of a link to an engine: greeting, sending, watching, and what is known of the engine's life.

No I/O and no clock: `asr.client.link_shell` and `asr.client.link_shell` move the bytes, and
`asr.client.engine_server`, which begins one link after the other, knows what the messages mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf
from typing import Any, Protocol

import structlog

from asr import greeting, messages
from asr.messages import FromEngine, ToEngine
from config import framing
from config.framing import FrameError, Frames

SEND_BYTES = 64 * 1024
"""About so much is sent at a time."""
CHECKS = 4
"""How many checks are made within the time that the process has for an answer."""

log = structlog.get_logger("asr")


class WatchdogVerdict(Enum):
    FINE = auto()
    ASK = auto()
    """Ask it for a sign of life."""
    HUNG = auto()


class Watchdog:
    """Watches one life of the process: check every `period_s`.

    It counts checks, not seconds, so the process gets its full time after the machine was suspended.

    Args:
        hang_s: how long a process may give no sign of life before it counts as hung.
        start_s: how long it may take to get ready.
    """

    def __init__(self, *, hang_s: float, start_s: float) -> None:
        self.period_s = min(hang_s, start_s) / CHECKS
        self._hang_s, self._start_s = hang_s, start_s
        self._seen, self._asked, self._silent_s = 0, True, 0.0

    def check(self, signs: int, *, ready: bool, needed: bool) -> WatchdogVerdict:
        """`signs`: how many messages it has sent so far. A process that is not ready is always needed."""
        self._silent_s = self._silent_s + self.period_s if self._asked and signs == self._seen else 0.0
        self._seen, self._asked = signs, needed or not ready
        if self._silent_s >= (self._hang_s if ready else self._start_s):
            return WatchdogVerdict.HUNG
        return WatchdogVerdict.ASK if ready and needed and not self._silent_s else WatchdogVerdict.FINE

    def reason(self, *, ready: bool) -> str:
        """The reason for the verdict HUNG."""
        return f"did not answer for {self._hang_s:g} s" if ready else f"was not ready within {self._start_s:g} s"


class LinkOwner(Protocol):
    """What is sent over a link, and whether anybody waits for it."""

    def next_message(self) -> ToEngine | None:
        """The next message to send, or None if there is none just now."""

    @property
    def needed(self) -> bool:
        """Whether anybody waits for the engine."""


class ClientLink:
    """A link to an inference process of this machine, for one life of it.

    `data_to_send` is to be asked after each call that changes something, and when the owner has something to send.
    `check` is to be called at `deadline`.

    Args:
        first: the first message.
    """

    what = "the inference process"
    """It, in the reasons of its end."""
    beginning = "starting the inference process"
    """What is done until it is ready."""

    def __init__(self, owner: LinkOwner, first: ToEngine, watchdog: Watchdog) -> None:
        self.answered = False
        """The engine has answered a request."""
        self.ready_s: float | None = None
        """When it reported that it was ready."""
        self.retired = False
        """It has been asked to end, or has said that it will: nothing more is sent, and its end is no crash."""
        self.unusable: str | None = None
        """Why no attempt can give an engine."""
        self.turned_away: str | None = None
        """Why it does not serve this worker now, although it may soon: it is being upgraded."""
        self.hung: str | None = None
        """Why the watchdog ended it."""
        self.raised: str | None = None
        """The error that its engine raised."""
        self.deadline = inf
        """When to call `check`, in seconds of the clock that every `now` is of."""
        self.due = True
        """There is something to send that does not come from the owner."""
        self._owner, self._watchdog = owner, watchdog
        self._frames, self._signs = Frames(), 0
        self._events: list[FromEngine] = []
        self._outgoing = framing.encode(first)
        self._known = True
        """The other end has shown that it is an engine."""
        self._broken = False
        """The other end has sent what is no message."""

    @property
    def had_engine(self) -> bool:
        """An engine ends with it: a server that was not reached has none, as far as this worker knows."""
        return True

    @property
    def over(self) -> bool:
        """The link is of no use any more: it is to be closed at once."""
        return bool(self.unusable or self.turned_away or self.hung) or self._broken

    def begin(self, now: float) -> None:
        """The bytes can be moved from now on."""
        self.deadline = now + self._watchdog.period_s

    def receive_data(self, data: bytes, now: float) -> None:
        """Bytes have come at `now`."""
        try:
            for body in self._frames.feed(data):
                self._signs += 1
                if not self.over:
                    self._receive(messages.decode_from_engine(body), now)
        except FrameError as error:
            log.error("unreadable answer", error=str(error))
            self._broken = True

    def events_received(self) -> list[FromEngine]:
        """What has come and means something to the owner, in its order."""
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> bytes:
        """What is to be sent next; it counts as sent. Empty: nothing until something has happened."""
        out, self._outgoing, self.due = bytearray(self._outgoing), b"", False
        while self.ready_s is not None and not (self.retired or self.over) and len(out) < SEND_BYTES:
            if (message := self._owner.next_message()) is None:
                break
            out += framing.encode(message)
        return bytes(out)

    def check(self, now: float) -> None:
        """It is `deadline`, or later: see whether the other end still lives."""
        self.deadline = now + self._watchdog.period_s
        match self._verdict():
            case WatchdogVerdict.ASK if self._known:
                self._add(messages.Ping())
            case WatchdogVerdict.HUNG:
                self.hung = f"{self.what} {self._watchdog.reason(ready=self.ready_s is not None)}"

    def end(self, how: str) -> str:
        """The link is closed. `how`: how the process ended. -> the reason of the end."""
        return self.unusable or self.hung or f"the inference process died ({self.raised or how})"

    def _add(self, message: ToEngine) -> None:
        self._outgoing += framing.encode(message)
        self.due = True

    def _verdict(self) -> WatchdogVerdict:
        return self._watchdog.check(self._signs, ready=self.ready_s is not None, needed=self._owner.needed)

    def _receive(self, message: FromEngine, now: float) -> None:
        """What a message says about this life is kept, and the rest is the owner's."""
        match message:
            case messages.EngineReady():
                self.ready_s = now
            case messages.EngineFailed():
                self.unusable = message.reason
            case messages.EngineCrashed():
                self.raised = message.reason
            case messages.Heard() | messages.Words():
                self.answered = True
            case messages.Usage(counters=counters) if counters.partials or counters.finals:
                self.answered = True
        self._events.append(message)


class RemoteLink(ClientLink):
    """A link to an engine server: one connection, which begins with a greeting.

    Behind TLS it has shown a certificate already. Otherwise nothing that matters is sent before it has proved that it
    knows the token (`asr.greeting`).

    Args:
        worker: our name, for the server's log.
        engine: see `messages.Hello`.
        token: what both sides know where there is no TLS; empty with TLS.
        accepts: says why the server's welcome is of no use, or "".
    """

    what = "the engine server"
    beginning = "connecting to the engine server"

    def __init__(
        self,
        owner: LinkOwner,
        watchdog: Watchdog,
        *,
        worker: str,
        engine: int,
        token: str,
        accepts: Callable[[messages.Welcome], str],
    ) -> None:
        self._version = messages.protocol(tls=not token)
        self._hello = messages.Hello(self._version, worker, greeting.nonce() if token else b"", engine)
        super().__init__(owner, self._hello, watchdog)
        self.ends: tuple[Sequence[Any], Sequence[Any]] = (), ()
        """Both ends of the connection, ours first, as `getsockname` has them. Set before anything is received."""
        self._token, self._accepts = token, accepts
        self._known = not token
        self._greeting: greeting.Greeting | None = None
        """Of a server that has sent its nonce."""
        self._received = bytearray()
        """What has come before the server is known, and makes no whole message."""
        self._draining = False

    @property
    def had_engine(self) -> bool:
        return self.ready_s is not None

    def receive_data(self, data: bytes, now: float) -> None:
        # Of a stranger one message is read at a time, and none that is longer than a greeting.
        while not (self._known or self.over):
            self._received += data
            data = b""
            length = int.from_bytes(self._received[:4], "big")
            if len(self._received) >= 4 and not 0 < length <= greeting.MAX_BYTES:
                self._turn_away(f"the server does not answer the greeting (a frame of {length} bytes)")
            if self.over or len(self._received) < 4 or len(self._received) < 4 + length:
                return
            body = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            self._signs += 1
            try:
                self._receive_greeting(messages.decode_from_engine(body), now)
            except FrameError as error:
                self._turn_away(f"the server does not answer the greeting ({error})")
        super().receive_data(bytes(self._received) + data, now)
        self._received.clear()

    def _receive_greeting(self, message: FromEngine, now: float) -> None:
        match message:
            case messages.Challenge() if self._greeting is None:
                self._greeting = greeting.Greeting(self._token, self._hello.nonce, message.nonce, *self.ends)
                self._add(messages.Proof(self._greeting.proof("worker")))
            case messages.Welcome() if self._greeting is not None:
                if not self._greeting.proves("server", message.proof):
                    self._turn_away("whoever listens there does not know cluster.token: it is told nothing")
                    return
                self._known = self.due = True
                self._receive(message, now)
            case messages.Refused():
                self._receive(message, now)
            case messages.Welcome() if message.version != self._version:
                self._receive(message, now)
            case _:
                self._turn_away("whoever listens there does not ask for a proof of cluster.token: it is told nothing")

    def _receive(self, message: FromEngine, now: float) -> None:
        match message:
            case messages.Welcome() if message.version != self._version:
                self._turn_away(
                    f"it speaks version {message.version} of the protocol between workers and engine servers, "
                    f"and this worker version {self._version}"
                )
            case messages.Welcome() if why := self._accepts(message):
                self.unusable = why
            case messages.Refused(reason=reason) if self.ready_s is None:
                self._turn_away(f"it refuses this worker: {reason}")
            case messages.Refused(reason=reason):
                self.unusable = f"it refuses this worker: {reason}"
            case messages.Draining():
                self._draining = True
                super()._receive(message, now)
            case _:
                super()._receive(message, now)

    def _turn_away(self, why: str) -> None:
        self.turned_away = self.turned_away or why

    def _verdict(self) -> WatchdogVerdict:
        """A server says something from the beginning, and whether it is needed or not: a connection that leads
        nowhere any more takes no utterances."""
        return self._watchdog.check(self._signs, ready=True, needed=True)

    def end(self, how: str = "") -> str:
        self.retired = self.retired or self._draining
        if self.hung and not self._known:
            return "the server does not answer the greeting (it says nothing)"
        closed = "the server has closed the connection"
        if not (self._signs and self._known):
            # With TLS 1.3 the server reads our certificate after the handshake, and says nothing if it is no good.
            closed += " without a word: it trusts neither certificate nor token"
        return self.unusable or self.turned_away or self.hung or self.raised or closed
