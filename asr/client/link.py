"""The worker's end of a link to an engine: greeting, sending, watching, and what is known of the engine's life.

No I/O and no clock: `asr.client.engine_server` moves the bytes, begins one link after the other, and knows what the
messages mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import structlog

from asr import greeting, messages
from asr.messages import FromEngine, ToEngine
from config.process import framing
from config.process.framing import FrameError, Frames
from config.settings import Asr

SEND_BYTES = 64 * 1024
"""About so much is sent at a time."""
CHECKS = 4
"""Checks within the time that an engine has for an answer. They are counted, not the seconds: an engine gets its full
time after the machine was suspended."""

log = structlog.get_logger("asr")


class EngineLink:
    """A link to an inference process of this machine, for one life of it.

    `data_to_send` is to be asked after each call, and `check` to be called at `deadline`.

    Args:
        first: the first message.
        hang_s: how long the engine may give no sign of life while somebody needs it.
        start_s: how long it may take to get ready.
    """

    what = "the inference process"
    """It, in the reasons of its end."""
    beginning = "starting the inference process"
    """What is done until it is ready."""

    def __init__(self, first: ToEngine, *, hang_s: float, start_s: float) -> None:
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
        """Why it was given up: it gave no sign of life."""
        self.raised: str | None = None
        """The error that its engine raised."""
        self.deadline = inf
        """When to call `check`, in seconds of the clock that every `now` is of."""
        self._hang_s, self._start_s, self._period_s = hang_s, start_s, min(hang_s, start_s) / CHECKS
        self._signs = self._seen = 0
        """Messages that have come, and those that had come at the last check."""
        self._waits, self._silent_s = True, 0.0
        """A sign of life was to be expected since the last check, and there has been none for so long."""
        self._frames = Frames()
        self._events: list[FromEngine] = []
        self._outgoing = bytearray(framing.encode(first))
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

    @property
    def takes_messages(self) -> bool:
        """Whether the next message is to be sent now."""
        return self.ready_s is not None and not (self.retired or self.over) and len(self._outgoing) < SEND_BYTES

    def begin(self, now: float) -> None:
        """The bytes can be moved from now on."""
        self.deadline = now + self._period_s

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
        """What has come and has not been dealt with here, in its order."""
        events, self._events = self._events, []
        return events

    def send(self, message: ToEngine) -> None:
        self._outgoing += framing.encode(message)

    def data_to_send(self) -> bytes:
        """What is to be sent next; it counts as sent."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return b"" if self.retired else data

    def check(self, now: float, *, needed: bool) -> None:
        """It is `deadline`, or later: see whether the engine still lives. `needed`: somebody waits for it."""
        self.deadline = now + self._period_s
        ready = self.ready_s is not None
        self._silent_s = self._silent_s + self._period_s if self._waits and self._signs == self._seen else 0.0
        self._seen, self._waits = self._signs, needed or not ready
        if self._silent_s >= (self._hang_s if ready else self._start_s):
            silent = f"did not answer for {self._hang_s:g} s" if ready else f"was not ready within {self._start_s:g} s"
            self.hung = f"{self.what} {silent}"
        elif needed and self._answers_pings and not self._silent_s:
            self.send(messages.Ping())

    @property
    def _answers_pings(self) -> bool:
        return self.ready_s is not None

    def end(self, how: str) -> str:
        """The link is closed. `how`: how the process ended. -> the reason of the end."""
        return self.unusable or self.hung or f"the inference process died ({self.raised or how})"

    def _receive(self, message: FromEngine, now: float) -> None:
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


class RemoteLink(EngineLink):
    """A link to an engine server: one connection, which begins with a greeting.

    Behind TLS it has shown a certificate already. Otherwise nothing that matters is sent before it has proved that it
    knows the token (`asr.greeting`). A server says something from the beginning, and whether it is needed or not: a
    connection that leads nowhere any more takes no utterances.

    Args:
        asr: which engine is asked for, and how long the server may give no sign of life.
        worker: our name, for the server's log.
        engine: see `messages.WorkerHello`.
        token: what both sides know where there is no TLS; empty with TLS.
    """

    what = "the engine server"
    beginning = "connecting to the engine server"

    def __init__(self, asr: Asr, *, worker: str, engine: int, token: str) -> None:
        self._version = messages.protocol(tls=not token)
        self._hello = messages.WorkerHello(self._version, worker, greeting.nonce() if token else b"", engine)
        super().__init__(self._hello, hang_s=asr.server_timeout_s, start_s=asr.server_timeout_s)
        self.ends: tuple[Sequence[Any], Sequence[Any]] = (), ()
        """Both ends of the connection, ours first, as `getsockname` has them. Set before anything is received."""
        self._asr, self._token = asr, token
        self._known = not token
        """The other end has shown that it is an engine server."""
        self._greeting: greeting.Greeting | None = None
        """The greeting, once the server has sent its nonce."""
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
                self.send(messages.Proof(self._greeting.proof("worker")))
            case messages.Welcome() if self._greeting is not None:
                if not self._greeting.proves("server", message.proof):
                    self._turn_away("whoever listens there does not know cluster.token: it is told nothing")
                    return
                self._known = True
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
            case messages.Welcome() if why := self._mismatch(message):
                self.unusable = why
            case messages.Refused(reason=reason) if self.ready_s is None:
                self._turn_away(f"it refuses this worker: {reason}")
            case messages.Refused(reason=reason):
                self.unusable = f"it refuses this worker: {reason}"
            case _:
                self._draining = self._draining or isinstance(message, messages.Draining)
                super()._receive(message, now)

    def _mismatch(self, welcome: messages.Welcome) -> str:
        """Why the server's engine is of no use; empty if it is the one that is asked for."""
        asr = self._asr
        if asr.engine not in ("auto", welcome.engine):
            return f"its engine is {welcome.engine}, and asr.engine asks for {asr.engine}"
        if asr.engine == "qwen" and asr.model != welcome.model:
            return f"its model is {welcome.model}, and asr.model asks for {asr.model}"
        return ""

    def _turn_away(self, why: str) -> None:
        self.turned_away = self.turned_away or why

    def check(self, now: float, *, needed: bool = True) -> None:
        super().check(now, needed=True)

    @property
    def _answers_pings(self) -> bool:
        return self._known

    def end(self, how: str = "") -> str:
        self.retired = self.retired or self._draining
        if self.hung and not self._known:
            return "the server does not answer the greeting (it says nothing)"
        closed = "the server has closed the connection"
        if not (self._signs and self._known):
            # With TLS 1.3 the server reads our certificate after the handshake, and says nothing if it is no good.
            closed += " without a word: it trusts neither certificate nor token"
        return self.unusable or self.turned_away or self.hung or self.raised or closed
