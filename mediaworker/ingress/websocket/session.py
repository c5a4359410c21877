"""The session of a client that sends audio and receives text, without I/O: the base of `/ws/asr` and `/ws/transcribe`.

One rule holds: a wrong message is answered by an error, and the session goes on. However a session ends, its call ends
with all its finals, and a peer that still reads gets them first. `finalize`, silence, the maximum duration and a
hang-up lead to FINISHING, and only `call.ended` closes the connection. The table of each protocol contains every pair
of state and command.

A session is a call with one leg, or with two if the client sends two channels. Its events reach `/v1/events` and the
store like those of any other call, and the session gets them from its call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from asr import languages
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.events import schema as events
from mediaworker.ingress.audio_intake import AudioForm
from mediaworker.ingress.errors import MalformedMessage, UnknownMessage
from mediaworker.ingress.outbox import GOING_AWAY, INTERNAL, NORMAL, POLICY, TRY_LATER
from mediaworker.ingress.session import Handler, Hooks, Kind, Session, SessionChange, SessionState
from mediaworker.ingress.websocket import messages
from mediaworker.ingress.websocket.limits import (
    FINISH_S,
    MAX_AWAITED,
    MAX_ERRORS,
    StreamCounters,
    StreamPolicy,
)
from mediaworker.ingress.websocket.texts import Texts, Transcript

LEGS = {1: ("main",), 2: ("left", "right")}
"""The number of channels → the legs."""


class StreamSession(Session[StreamCounters]):
    """The base of a protocol's session. `settle` calls its argument once all published events are stored."""

    path: ClassVar[str]
    subprotocols: ClassVar[tuple[str, ...]] = ()
    """The dialect's subprotocols, in addition to the pair that carries a browser's key."""
    source: ClassVar[str] = "websocket"
    """The `source` in `call.started`."""
    reader: ClassVar[messages.CommandReader]
    """The reader of commands; a dialect with other messages overrides `read` instead."""
    new_counters = StreamCounters
    never_began = ""

    def __init__(
        self,
        policy: StreamPolicy,
        registry: CallRegistry,
        now: float,
        *,
        settle: Callable[[Callable[[], None]], None] = lambda done: done(),
        **hooks: Unpack[Hooks],
    ) -> None:
        super().__init__(now, policy.start_timeout_s, **hooks)
        self._policy, self._registry, self._settle = policy, registry, settle
        self._settings = messages.StreamSettings()
        self._legs = LEGS[1]
        self._begun_s = now
        self._wrong = 0
        """The number of errors in a row."""
        self._texts = Texts(self.outbox, self.transcript_message, self._nothing_flushed, self._recognition_failed)
        self._empty_flushes = 0
        """The number of flushes of a leg without an open utterance."""
        self._code, self._reason = NORMAL, ""
        """The code and the reason of the close after the last final."""
        self.counters.sessions += 1

    # -- for the shell ------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        if self.state in (SessionState.FINISHING, SessionState.CLOSED):
            return super().deadline
        return min(self._begun_s + self._policy.max_s, self._quiet_until_s)

    @property
    def _quiet_until_s(self) -> float:
        return self._active_s + self._policy.idle_s

    def _is_overdue(self) -> bool:
        return self.call is not None and self.call.awaited_finals > MAX_AWAITED

    def receive(self, message: str | bytes, now: float) -> None:
        """Handle one message, audio as bytes or a command as text. Responses go to the outbox."""
        super().receive(message, now)
        self._check_outbox()

    def expire(self, now: float) -> None:
        """Act on the deadline, unless it has moved meanwhile."""
        super().expire(now)
        self._check_outbox()

    def connection_lost(self, now: float, *, broken: bool = False) -> None:
        if self._lost:
            return
        super().connection_lost(now, broken=broken)
        if self.call is not None:
            self.call.on_event = self.call.on_hangup = None
        if self._audio is not None:
            self.counters.nonfinite += self._audio.nonfinite

    # -- messages of the peer -----------------------------------------------------------------------------------------

    def read(self, message: str | bytes) -> object:
        return message if isinstance(message, bytes) else self.reader.read(message)

    def _on_malformed(self, error: MalformedMessage) -> None:
        self.error(error.code if isinstance(error, messages.StreamMalformed) else "bad_value", str(error))
        self._active_s = self._now

    def _on_unknown(self, error: UnknownMessage) -> None:
        self.error("unknown_type", str(error))
        self._active_s = self._now

    def _unexpected(self, detail: str) -> None:
        self.error("unexpected", f"{detail} is not taken now")

    def _handle(self, kind: Kind, message: object) -> None:
        wrong = self._wrong
        self._active_s = self._now
        super()._handle(kind, message)
        if self._wrong == wrong:
            self._wrong = 0

    def configure(self, config: messages.StreamSettings) -> None:
        """Apply a configuration: the first one opens the call, and a later one changes the audio that follows."""
        if isinstance(config.language, str) and (wrong := self._unknown_language(config.language)):
            self.error("bad_value", wrong)
            return
        settings = config.over(self._settings)
        form = messages.form_of(config, self._settings)
        if isinstance(form, str):
            self.error("bad_value", form)
            return
        settings = messages.StreamSettings(encoding=form.encoding, sample_rate=form.rate_hz).over(settings)
        if self.call is None:
            self.open(form, settings)
            return
        assert self._audio is not None
        if form.channels != self._audio.form.channels:
            self.error("bad_value", "channels are those of the first configuration")
            return
        self._settings = settings
        if form != self._audio.form:
            self._audio.switch(form, self._now)
        self.call.retune(settings.overrides(self._legs[0]), settings.shape)

    def _unknown_language(self, code: str) -> str:
        """Why the language cannot be recognised; empty if it can, or if the engine detects it."""
        known = self._policy.engine.languages()
        if not code or languages.base(code) in known:
            return ""
        return f"the engine does not know the language {code!r}; it knows {', '.join(sorted(known))}"

    def open(self, form: AudioForm, settings: messages.StreamSettings | None = None) -> None:
        """Open the call, with audio of this form."""
        settings = self._settings if settings is None else settings
        warming_up = not self._policy.engine.ready()
        legs = self._legs = LEGS[form.channels]
        overrides = settings.overrides(legs[0])
        call = self.try_open(
            lambda: self._registry.open(
                source=self.source,
                legs=[LegSpec(leg=leg, codec=form.codec, transport="stream") for leg in legs],
                external_id=self._policy.session_id,
                from_=self._policy.caller,
                direction="inbound",
                overrides=overrides,
            )
        )
        if call is None:
            return
        self._settings = settings
        self.begin(call, legs, form)
        call.on_event, call.on_hangup = self._on_event, self.hang_up
        call.retune(overrides, settings.shape)
        self.on_opened(form, warming_up)

    def open_with(self, form: AudioForm, data: bytes) -> None:
        """Open the call with this audio as its beginning."""
        self.open(form)
        if self.state is SessionState.STREAMING:  # it was not refused
            self.receive_audio(data)

    def refuse_call(self, refused: CallRefused) -> None:
        self.counters.refuse("capacity")
        self.error("capacity", refused.reason)
        self.close(TRY_LATER, refused.reason)

    def on_opened(self, form: AudioForm, warming_up: bool) -> None:
        """Called when the call has been opened."""

    def flush(self, message: object = None) -> None:
        with self._texts.flushing(self._legs):
            self._end_utterances()

    def _end_utterances(self) -> None:
        assert self.call is not None
        self._finish_audio()
        for leg in self._legs:
            self.call.flush(leg)

    def reset(self, message: object = None) -> None:
        assert self.call is not None
        with self._texts.hiding():
            self._end_utterances()
        self.call.retune(self._settings.overrides(self._legs[0]), self._settings.shape)

    def finalize(self, message: object = None) -> None:
        self._end_utterances()
        self.leave("hangup", NORMAL, "finalized")

    def ignore(self, message: object = None) -> None:
        """Ignore a command, because there is no open utterance."""

    commands: ClassVar[dict[tuple[SessionState, Any], Handler]] = {
        (SessionState.STREAMING, bytes): Session.receive_audio,
        (SessionState.STREAMING, messages.StreamSettings): configure,
        (SessionState.STREAMING, messages.Flush): flush,
        (SessionState.STREAMING, messages.Reset): reset,
        (SessionState.STREAMING, messages.Finalize): finalize,
    }
    """The handlers of a `reader`'s commands during a call. After the call, messages are ignored."""

    # -- events of the call -------------------------------------------------------------------------------------------

    def _on_event(self, at_ms: int, body: events.EventBody) -> None:
        self._texts.on_event(body)
        if isinstance(body, events.AudioSuspect):
            self._send_error("audio_suspect", body.detail)
        elif isinstance(body, events.CallEnded):
            self._ended(at_ms, body)
        self._check_outbox()

    def _ended(self, at_ms: int, body: events.CallEnded) -> None:
        """Close the connection after the last final."""
        if self.closed:
            return
        if not self._texts.answered:
            self._texts.on_event(self._empty_final(self._legs[0], "0", at_ms))
        code, reason = GOING_AWAY if body.reason == "shutdown" else self._code, self._reason or body.reason

        def close() -> None:
            if not self.closed:
                self.close(code, reason)

        self._settle(close)  # a transcript requested after the close is complete

    def transcript_message(self, body: Transcript, flushed: bool) -> str | bytes:
        """The message for a partial or final. `flushed`: the final answers a flush."""
        raise NotImplementedError

    def error_message(self, code: str, why: str) -> str | bytes:
        """The message for an error."""
        return messages.Error(code, why).text()

    def _recognition_failed(self, why: str) -> None:
        self._send_error("recognition_failed", why)

    def _nothing_flushed(self, leg: str) -> events.TranscriptFinal:
        """An empty final at the leg's present position, which answers a flush without an open utterance."""
        self._empty_flushes += 1
        at_ms = 0
        if self.call is not None:
            audio = self.call.legs[leg]
            at_ms = self.call.leg_ms(audio, audio.position)
        return self._empty_final(leg, f"flush-{self._empty_flushes}", at_ms)

    def _empty_final(self, leg: str, name: str, at_ms: int) -> events.TranscriptFinal:
        """A final without text, for a response without an utterance."""
        utterance_id = f"{self.call_id or self._policy.session_id}/{leg}/{name}"
        return events.TranscriptFinal(leg, "unknown", utterance_id, 1, at_ms, at_ms, "", 0, "", 0, 0, "flush")

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _on_start_timeout(self) -> None:
        self._on_silent()

    def _on_silent(self) -> None:
        if self._now >= self._begun_s + self._policy.max_s:
            self.error("session_expired", f"a session lasts at most {self._policy.max_s:g} s")
            self.leave("expired", NORMAL, "session expired")
        else:
            self._idle()

    def _on_unfinished(self) -> None:
        self.close(INTERNAL, f"finals did not come within {FINISH_S:g} s")

    def _idle(self) -> None:
        self.error("idle_timeout", f"neither audio nor a command for {self._policy.idle_s:g} s")
        self.leave("idle_timeout", NORMAL, "idle")

    def hang_up(self) -> None:
        """Finish because the worker ends the call; the open utterance still gets its final."""
        if self.state is SessionState.STREAMING:
            self._finish_audio()
            self._wind_up()

    def leave(self, reason: str, code: int, why: str) -> None:
        """End the call, if any; the close follows the last final."""
        if self.call is None:
            self.close(code, why)
            return
        self._code, self._reason = code, why
        self._wind_up()
        self._end(reason)

    def _wind_up(self) -> None:
        self._change(SessionChange.FINISH)
        if not self.closed:
            self._set_deadline(FINISH_S)

    def _end(self, reason: str) -> None:
        assert self.call is not None
        self.call.end(reason)

    def error(self, code: str, message: str) -> None:
        self._wrong += 1
        self._send_error(code, message)
        if self._wrong > MAX_ERRORS:
            self.leave("too_many_errors", POLICY, "too many errors in a row")

    def _send_error(self, code: str, message: str) -> None:
        self.counters.error(code)
        self._on_problem(f"stream: {code}", message)
        self.outbox.send(self.error_message(code, message[:500]))

    def _check_outbox(self) -> None:
        """Disconnect a peer that does not read; events and the store still have everything."""
        if not self.outbox.overrun or self.closed:
            return
        self.counters.slow += 1
        streamed = self.state is SessionState.STREAMING
        self._change(SessionChange.CLOSE)
        self._set_deadline(self.linger_s)
        self.outbox.abort()
        if streamed:
            self._end("slow_client")
