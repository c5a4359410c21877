"""One AudioSocket connection as a state machine without I/O.

The UUID opens its call. An error is sent only to a connection that cannot become a call, and then the connection is
closed: Asterisk hangs up after every frame from us except audio, even after an error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Unpack
from uuid import UUID

from audio import Codec
from config import Settings
from config.metrics.counters import counter, counter_by
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.ingress.audio_intake import AudioForm, AudioIntake
from mediaworker.ingress.audiosocket import messages
from mediaworker.ingress.audiosocket.messages import Frame, FrameReader
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.outbox import GOING_AWAY, NORMAL, POLICY, TRY_LATER
from mediaworker.ingress.session import Hooks, Kind, Session, SessionState

LEG = "main"
SILENT_S = 3600.0
"""A call without a frame for this long is ended. Asterisk sends nothing while a caller is on hold."""
NO_AUDIO_S = 1.0
"""How long the session waits for the peer's first audio before it sends 8 kHz: Asterisk gives up after two seconds."""


@dataclass(slots=True)
class AudioSocketCounters(IngressCounters):
    """The totals over all connections since the start of the worker, for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Counts refused AudioSocket connections by reason.")
    frames: int = counter("Counts AudioSocket frames received.")
    started: int = counter("Counts AudioSocket connections that became a call.")
    hangups: int = counter("Counts AudioSocket calls that Asterisk hung up.")
    disconnected: int = counter("Counts AudioSocket calls whose connection broke.")
    silent: int = counter("Counts AudioSocket calls that were ended because no frames came.")
    malformed: int = counter("Counts AudioSocket frames with a wrong length for their kind or an invalid digit.")
    too_long: int = counter("Counts AudioSocket frames that held more than a second of audio.")
    unknown: int = counter("Counts AudioSocket frames of an unknown kind.")
    unexpected: int = counter("Counts AudioSocket frames in the wrong state and errors reported by Asterisk.")
    implausible: int = counter("Counts AudioSocket digits that came faster than any phone sends them.")
    silence: int = counter("Counts AudioSocket frames of silence sent.")
    withheld: int = counter("Counts AudioSocket frames of silence that were not sent because the peer did not read.")


class AudioSocketSession(Session[AudioSocketCounters]):
    """The session of one connection, whose messages are bytes cut anywhere.

    Frames wait inside the session while it is ahead of the VAD, and `resume` continues with them.
    """

    new_counters = AudioSocketCounters
    naming = "AudioSocket {}"
    message_word, connection_word = "frame", "connection"
    first_message, never_began = "UUID", "no_uuid"
    batched = True
    linger_s = None
    silent_s = SILENT_S

    def __init__(self, settings: Settings, registry: CallRegistry, now: float, **hooks: Unpack[Hooks]) -> None:
        super().__init__(now, settings.media.start_timeout_s, **hooks)
        self._registry, self._sends_silence = registry, settings.audiosocket.send_audio == "silence"
        self._reader = FrameReader()
        self._kind: int | None = None
        """The frame kind of the peer's audio; None before the first audio."""
        self._silence = messages.silence(messages.SLIN)
        self._begun_s = now

    def receive(self, message: str | bytes, now: float) -> None:
        assert isinstance(message, bytes)
        self._now = now
        self._reader.feed(message)
        if self.state is SessionState.WAITING:
            self._check_first(self._reader.head)
        while not self.closed and not self.is_ahead() and (frame := self._reader.next()) is not None:
            self.counters.frames += 1
            self._handle(frame.kind, frame)

    def resume(self, now: float) -> None:
        self.receive(b"", now)

    def silence(self, now: float) -> bytes:
        """The bytes to be sent every 20 ms: none, or a frame of silence of the peer's kind."""
        known = self._kind is not None or now >= self._begun_s + NO_AUDIO_S
        speaks = self._sends_silence and self.state is SessionState.STREAMING and known
        return self._silence if speaks else b""

    def connection_lost(self, now: float, *, broken: bool = False) -> None:
        self._now = now
        while self.state is SessionState.STREAMING and (frame := self._reader.next()) is not None:
            self._handle(frame.kind, frame)  # the last chance: a leg has room for another second
        super().connection_lost(now, broken=broken)

    # -- frames of the peer -------------------------------------------------------------------------------------------

    def _check_first(self, head: tuple[int, int] | None) -> None:
        """Refuse a peer whose first frame is not a UUID, since it uses another protocol."""
        if head is None or head == (messages.UUID, 16):
            return
        kind, length = head
        if kind == messages.HANGUP:
            self.counters.refuse(self.never_began)
            self.close(NORMAL, "")
        else:
            self.refuse("first_frame", POLICY, f"kind 0x{kind:02x} of {length} bytes, where the UUID comes")

    def _open(self, frame: Frame) -> None:
        spec = LegSpec(leg=LEG, codec=Codec.L16, transport="stream")
        uuid = str(UUID(bytes=frame.payload))
        call = self.try_open(lambda: self._registry.open(source="audiosocket", legs=[spec], external_id=uuid))
        if call is not None:
            call.on_hangup = self.hang_up
            self.begin(call, (LEG,))
            self._begun_s = self._now

    def _handle(self, kind: Kind, frame: Frame) -> None:
        self._active_s = self._now
        if kind in self._row:
            super()._handle(kind, frame)
        else:
            self.counters.unknown += 1
            self._on_problem("unknown AudioSocket frame", f"kind 0x{kind:02x} of {len(frame.payload)} bytes")

    def _digit(self, frame: Frame) -> None:
        self._receive_digit(LEG, frame.payload.decode("latin-1").upper())

    def _out_of_place(self, frame: Frame) -> None:
        self._unexpected(f"kind 0x{frame.kind:02x} {frame.payload[:16].hex()}")

    def _on_hangup(self, frame: Frame) -> None:
        self.counters.hangups += 1
        self.leave("hangup", NORMAL, "")

    def _audio_frame(self, frame: Frame) -> None:
        """Process this frame with those of its kind that arrived with it, which saves calls of the resampler."""
        assert self.call is not None
        kind = frame.kind
        if kind != self._kind:
            form = AudioForm("pcm_s16le", messages.RATES_HZ[kind])
            if self._audio is None:
                self._audio = AudioIntake(self.call, self._legs, form)
            else:
                self._audio.switch(form, self._now)
            self._kind, self._silence = kind, messages.silence(kind)
        assert self._audio is not None
        data, most = self._samples(frame), messages.RATES_HZ[kind] // 5
        while len(data) < most and (more := self._reader.next(kind)) is not None:
            self.counters.frames += 1
            data += self._samples(more)
        if data:
            self._audio.receive(data, self._now)

    def _samples(self, frame: Frame) -> bytes:
        """The frame's whole samples; a wrong length is counted."""
        payload = frame.payload
        if frame.too_long:
            self.counters.too_long += 1
            self._on_problem("AudioSocket frame too long", f"{len(payload)} bytes of 0x{frame.kind:02x}")
            return b""
        if len(payload) % 2 or not payload:
            # Half a sample must not shift the following audio by a byte.
            self.counters.malformed += 1
            self._on_problem("malformed AudioSocket frame", f"{len(payload)} bytes of samples of two")
            return payload[:-1]
        return payload

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _on_silent(self) -> None:
        self.counters.silent += 1
        self._on_problem("AudioSocket peer is silent", f"nothing for {self.silent_s:g} s")
        self._send(messages.ERROR)
        self.leave("media_timeout", GOING_AWAY, "")

    def _disconnected(self, broken: bool) -> str:
        if broken:
            self.counters.disconnected += 1
            return "disconnected"
        self.counters.hangups += 1
        return "hangup"

    def refuse(self, why: str, code: int, reason: str) -> None:
        self._send(messages.ERROR)
        super().refuse(why, code, reason)

    def refuse_call(self, refused: CallRefused) -> None:
        self.counters.refuse("capacity")
        self._on_problem("AudioSocket call refused", refused.reason)
        self.close(TRY_LATER, refused.reason)

    def _send_goodbye(self) -> None:
        self._send(messages.HANGUP)

    def _send(self, kind: int) -> None:
        self.outbox.send(bytes(Frame(kind)))

    table = {
        (SessionState.WAITING, messages.UUID): _open,
        (SessionState.STREAMING, messages.UUID): _out_of_place,
        (SessionState.STREAMING, messages.ERROR): _out_of_place,
        (SessionState.STREAMING, messages.DTMF): _digit,
        (SessionState.STREAMING, messages.HANGUP): _on_hangup,
    } | dict.fromkeys(((SessionState.STREAMING, kind) for kind in messages.RATES_HZ), _audio_frame)
