"""The worker's end of a link to an engine: the greeting, the framing, and the watchdog that detects a hanging engine.

No I/O and no clock: `asr.client.engine_server` moves the bytes and begins one link after the other. The meaning of the
messages for utterances is in `asr.client.outstanding`.
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
"""Once this many bytes are encoded, they are written before the next message is chosen."""
CHECKS = 4
"""The number of watchdog checks within the time that an engine has for a sign of life.

The watchdog adds one period for each check without a sign of life, and does not subtract times. After the machine was
suspended, or the event loop stood still, the clock has moved on by much more than one period, while the engine had no
chance to answer. A single late check then counts once, and the engine still gets the rest of its time.
"""

log = structlog.get_logger("asr")


class EngineLink:
    """A link to an inference process of this machine, for one life of the process.

    The caller sends what `data_to_send` returns after each call, and calls `check` at `deadline`.

    Args:
        first: the first message.
        hang_s: how long a ready engine may be silent while somebody needs it.
        start_s: how long the engine may take to become ready.
    """

    what = "the inference process"
    """The subject of the sentences that give the reason of an end."""
    beginning = "starting the inference process"
    """The reason shown while the engine is warming up."""

    def __init__(self, first: ToEngine, *, hang_s: float, start_s: float) -> None:
        self.answered = False
        """The engine has answered a request."""
        self.ready_s: float | None = None
        """When the engine reported that it was ready; None before."""
        self.retired = False
        """The engine was asked to end, or has announced its end. Nothing more is sent, and the end is no crash."""
        self.unusable: str | None = None
        """Why a retry cannot succeed; None while it can."""
        self.rejected: str | None = None
        """Why the server does not serve this worker now. A later attempt may succeed, as during an upgrade."""
        self.hung: str | None = None
        """Why the watchdog has given the engine up; None while it shows signs of life."""
        self.raised: str | None = None
        """The error that the engine raised before it died."""
        self.deadline = inf
        """When the caller must call `check`, by the clock of every `now`."""
        self._hang_s, self._start_s, self._period_s = hang_s, start_s, min(hang_s, start_s) / CHECKS
        self._signs = self._seen = 0
        """The number of messages received, now and as of the last check. Each message is a sign of life."""
        self._waits, self._silent_s = True, 0.0
        """Whether the engine has owed a sign of life since the last check, and the sum of the silent periods."""
        self._frames = Frames()
        self._events: list[FromEngine] = []
        self._outgoing = bytearray(framing.encode(first))
        self._broken = False
        """The other end has sent bytes that are no message."""

    @property
    def had_engine(self) -> bool:
        """Whether an engine is lost with this link. An engine server that was never ready had none for this worker."""
        return True

    @property
    def over(self) -> bool:
        """Whether the link is of no use any more, so that the caller closes it at once."""
        return bool(self.unusable or self.rejected or self.hung) or self._broken

    @property
    def accepts_messages(self) -> bool:
        """Whether the caller may `send` the next message now."""
        return self.ready_s is not None and not (self.retired or self.over) and len(self._outgoing) < SEND_BYTES

    def begin(self, now: float) -> None:
        """The connection is open: the time for the first sign of life begins."""
        self.deadline = now + self._period_s

    def receive_data(self, data: bytes, now: float) -> None:
        """Decode bytes that were received at `now`."""
        try:
            for body in self._frames.feed(data):
                self._signs += 1
                if not self.over:
                    self._receive(messages.decode_from_engine(body), now)
        except FrameError as error:
            log.error("unreadable answer", error=str(error))
            self._broken = True

    def events_received(self) -> list[FromEngine]:
        """Return the messages received since the last call, in order."""
        events, self._events = self._events, []
        return events

    def send(self, message: ToEngine) -> None:
        self._outgoing += framing.encode(message)

    def data_to_send(self) -> bytes:
        """Return the bytes to send next; they count as sent."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return b"" if self.retired else data

    def check(self, now: float, *, needed: bool) -> None:
        """Check for signs of life, at `deadline` or later. `needed`: somebody waits for the engine.

        A ready engine that nobody needs is not expected to send anything, so it owes a sign of life only from the check
        after it was needed, when it has been sent a `Ping`. See `CHECKS` for why periods are counted.
        """
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
        """Return the reason why the link has ended. `how`: how the process ended."""
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

    With TLS, the server has already shown a certificate. Without it, the worker sends nothing confidential before the
    server has proved that it knows the token (`asr.greeting`). The watchdog runs from the beginning, and also while
    nobody needs the engine: a dead connection must be noticed before an utterance is placed on it.

    Args:
        asr: the settings that name the engine and model to expect, and how long the server may be silent.
        worker: this worker's name, for the server's log.
        engine: see `messages.WorkerHello`.
        token: the secret that both sides know where there is no TLS; empty with TLS.
    """

    what = "the engine server"
    beginning = "connecting to the engine server"

    def __init__(self, asr: Asr, *, worker: str, engine: int, token: str) -> None:
        self._version = messages.protocol(tls=not token)
        self._hello = messages.WorkerHello(self._version, worker, greeting.nonce() if token else b"", engine)
        super().__init__(self._hello, hang_s=asr.server_timeout_s, start_s=asr.server_timeout_s)
        self.ends: tuple[Sequence[Any], Sequence[Any]] = (), ()
        """Both ends of the connection, this worker's first, in the form of `getsockname`. The caller sets them before
        it passes received data."""
        self._asr, self._token = asr, token
        self._known = not token
        """The other end has proved that it is an engine server."""
        self._greeting: greeting.Greeting | None = None
        """The greeting, once the server has sent its nonce."""
        self._received = bytearray()
        """The beginning of a message from a server that has not proved itself yet."""
        self._draining = False

    @property
    def had_engine(self) -> bool:
        return self.ready_s is not None

    def receive_data(self, data: bytes, now: float) -> None:
        # Before the server has proved itself, its messages are read one at a time, and none may be longer than a
        # greeting: a stranger must not make this worker buffer or decode more.
        while not (self._known or self.over):
            self._received += data
            data = b""
            length = int.from_bytes(self._received[:4], "big")
            if len(self._received) >= 4 and not 0 < length <= greeting.MAX_BYTES:
                self._reject(f"the server does not answer the greeting (a frame of {length} bytes)")
            if self.over or len(self._received) < 4 or len(self._received) < 4 + length:
                return
            body = bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            self._signs += 1
            try:
                self._receive_greeting(messages.decode_from_engine(body), now)
            except FrameError as error:
                self._reject(f"the server does not answer the greeting ({error})")
        super().receive_data(bytes(self._received) + data, now)
        self._received.clear()

    def _receive_greeting(self, message: FromEngine, now: float) -> None:
        match message:
            case messages.Challenge() if self._greeting is None:
                self._greeting = greeting.Greeting(self._token, self._hello.nonce, message.nonce, *self.ends)
                self.send(messages.Proof(self._greeting.proof("worker")))
            case messages.Welcome() if self._greeting is not None:
                if not self._greeting.proves("server", message.proof):
                    self._reject("whoever listens there does not know cluster.token: it is told nothing")
                    return
                self._known = True
                self._receive(message, now)
            case messages.Refused():
                self._receive(message, now)
            case messages.Welcome() if message.version != self._version:
                self._receive(message, now)
            case _:
                self._reject("whoever listens there does not ask for a proof of cluster.token: it is told nothing")

    def _receive(self, message: FromEngine, now: float) -> None:
        match message:
            case messages.Welcome() if message.version != self._version:
                self._reject(
                    f"it speaks version {message.version} of the protocol between workers and engine servers, "
                    f"and this worker version {self._version}"
                )
            case messages.Welcome() if why := self._mismatch(message):
                self.unusable = why
            case messages.Refused(reason=reason) if self.ready_s is None:
                self._reject(f"it refuses this worker: {reason}")
            case messages.Refused(reason=reason):
                self.unusable = f"it refuses this worker: {reason}"
            case _:
                self._draining = self._draining or isinstance(message, messages.Draining)
                super()._receive(message, now)

    def _mismatch(self, welcome: messages.Welcome) -> str:
        """Why the server's engine does not fit the settings; empty if it does."""
        asr = self._asr
        if asr.engine not in ("auto", welcome.engine):
            return f"its engine is {welcome.engine}, and asr.engine asks for {asr.engine}"
        if asr.engine == "qwen" and asr.model != welcome.model:
            return f"its model is {welcome.model}, and asr.model asks for {asr.model}"
        return ""

    def _reject(self, why: str) -> None:
        self.rejected = self.rejected or why

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
            # With TLS 1.3 a client's handshake is over before the server has checked the client's certificate (RFC
            # 8446, section 2). A server that rejects it closes the connection, and the worker sees nothing else.
            closed += " without a word: it trusts neither certificate nor token"
        return self.unusable or self.rejected or self.hung or self.raised or closed
