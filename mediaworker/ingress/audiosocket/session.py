"""One AudioSocket connection as a state machine without I/O.

    WAITING ──UUID──▶ STREAMING ──hang-up, end of the stream, silent, hung up by us──▶ CLOSED
       └─ refused, too late ───────────────────────────────────────────────────────────┘

Its one rule: a wrong frame is counted and the call goes on; only a connection that cannot become a call is answered by
an error and closed. (Asterisk hangs up at every frame of ours but audio, an error included.)

The shell passes on received bytes, sends `data_to_send`, and closes the connection once the session is `closed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

from audio import Codec
from config.counters import counter, counter_by
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audio_intake import AudioForm, AudioIntake
from mediaworker.ingress.audio_session import AudioSession
from mediaworker.ingress.audiosocket import messages
from mediaworker.ingress.audiosocket.messages import Frame, FrameReader
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.interfaces import CallOpener

LEG = "main"
NO_AUDIO_S = 1.0
"""How long we wait for the peer's audio before we send 8 kHz: Asterisk's application gives up after two seconds."""


class AudioSocketState(Enum):
    WAITING = auto()
    """Connected; the UUID of the call has not arrived."""
    STREAMING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class AudioSocketCounters(IngressCounters):
    """Over all connections, since the start of the worker. Plain integers for `/metrics`."""

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


@dataclass(frozen=True, slots=True)
class AudioSocketPolicy:
    start_timeout_s: float
    silent_s: float
    """0: a peer may be silent for any time."""
    sends_silence: bool


class AudioSocketSession(AudioSession):
    """Calls `on_change` whenever there is something to send or the connection is to be closed."""

    def __init__(
        self,
        policy: AudioSocketPolicy,
        open_call: CallOpener,
        now: float,
        *,
        counters: AudioSocketCounters | None = None,
        on_problem: Callable[[str, str], None] = lambda problem, detail: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(now, on_problem)
        self.state = AudioSocketState.WAITING
        self._legs = (LEG,)
        self.counters = counters if counters is not None else AudioSocketCounters()
        self._policy, self._open_call, self._on_change = policy, open_call, on_change
        self._reader = FrameReader()
        self._kind: int | None = None
        """The kind of the peer's audio."""
        self._silence = messages.silence(messages.SLIN)
        self._begun_s = self._frame_s = now
        self._out = bytearray()

    @property
    def closed(self) -> bool:
        """The connection is to be closed once `data_to_send` has gone."""
        return self.state is AudioSocketState.CLOSED

    @property
    def deadline(self) -> float | None:
        """When `expire` wants to be called; it may move later without notice."""
        if self.state is AudioSocketState.WAITING:
            return self._begun_s + self._policy.start_timeout_s
        if self.state is AudioSocketState.CLOSED or not self._policy.silent_s:
            return None
        return self._frame_s + self._policy.silent_s

    def data_to_send(self) -> bytes:
        data = bytes(self._out)
        self._out.clear()
        return data

    def _is_streaming(self) -> bool:
        return self.state is AudioSocketState.STREAMING

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes. Frames wait inside while the session is ahead; call again when it no longer is."""
        self._now = now
        self._reader.feed(data)
        if self.state is AudioSocketState.WAITING:
            self._check_first(self._reader.head)
        while not self.closed and not self.is_ahead() and (frame := self._reader.next()) is not None:
            self.counters.frames += 1
            if self.state is AudioSocketState.WAITING:
                self._open(frame)
            else:
                self._on_frame(frame)

    def silence(self, now: float) -> bytes:
        """What is to be sent every 20 ms: nothing, or a frame of silence of the peer's kind."""
        known = self._kind is not None or now >= self._begun_s + NO_AUDIO_S
        speaks = self._policy.sends_silence and self.state is AudioSocketState.STREAMING and known
        return self._silence if speaks else b""

    def expire(self, now: float) -> None:
        """The deadline has passed; does nothing when it has moved meanwhile."""
        self._now = now
        if self.is_ahead():  # we do not read
            self._frame_s = now
        if self.deadline is None or now < self.deadline:
            return
        if self.state is AudioSocketState.WAITING:
            self._refuse("start_timeout", f"no UUID within {self._policy.start_timeout_s:g} s")
            return
        self.counters.silent += 1
        self._on_problem("AudioSocket peer is silent", f"nothing for {self._policy.silent_s:g} s")
        self._end("media_timeout")
        self._send(Frame(messages.ERROR))

    def connection_lost(self, now: float, *, broken: bool) -> None:
        """The connection is gone, which is a hang-up unless it is `broken`. Idempotent."""
        self._now = now
        while self.state is AudioSocketState.STREAMING and (frame := self._reader.next()) is not None:
            self._on_frame(frame)  # the last occasion: a leg has room for a second more
        if self.state is AudioSocketState.STREAMING:
            if broken:
                self.counters.disconnected += 1
            else:
                self.counters.hangups += 1
            self._end("disconnected" if broken else "hangup")
        elif self.state is AudioSocketState.WAITING:
            self.counters.refuse("no_uuid")
            self.state = AudioSocketState.CLOSED

    # -- frames of the peer -------------------------------------------------------------------------------------------

    def _check_first(self, head: tuple[int, int] | None) -> None:
        """Refuse a peer whose first frame is no UUID: it speaks another protocol."""
        if head is None or head == (messages.UUID, 16):
            return
        kind, length = head
        if kind == messages.HANGUP:
            self.counters.refuse("no_uuid")
            self.state = AudioSocketState.CLOSED
        else:
            self._refuse("first_frame", f"kind 0x{kind:02x} of {length} bytes, where the UUID comes")

    def _open(self, frame: Frame) -> None:
        uuid = str(UUID(bytes=frame.payload))
        try:
            spec = LegSpec(leg=LEG, codec=Codec.L16, transport="stream")
            self.call = self._open_call(source="audiosocket", legs=[spec], external_id=uuid)
        except CallRefused as refused:
            self.counters.refuse("capacity")
            self._on_problem("AudioSocket call refused", refused.reason)
            self.state = AudioSocketState.CLOSED
            return
        self.call.on_hangup = self._on_hangup
        self.state = AudioSocketState.STREAMING
        self.counters.started += 1
        self._begun_s = self._frame_s = self._now

    def _on_frame(self, frame: Frame) -> None:
        self._frame_s = self._now
        if frame.kind in messages.RATES_HZ:
            self._receive_audio(frame)
        elif frame.kind == messages.DTMF:
            digit = frame.payload.decode("latin-1").upper()
            problems = "malformed AudioSocket digit", "AudioSocket digits faster than any phone"
            self._receive_digit(digit, self.counters, *problems)
        elif frame.kind == messages.HANGUP:
            self.counters.hangups += 1
            self._end("hangup")
        elif frame.kind in (messages.UUID, messages.ERROR):
            self.counters.unexpected += 1
            self._on_problem("unexpected AudioSocket frame", f"kind 0x{frame.kind:02x} {frame.payload[:16].hex()}")
        else:
            self.counters.unknown += 1
            self._on_problem("unknown AudioSocket frame", f"kind 0x{frame.kind:02x} of {len(frame.payload)} bytes")

    def _receive_audio(self, frame: Frame) -> None:
        """Take this frame and those of its kind that arrived with it: a resampler takes them all at the cost of one."""
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

    def _on_hangup(self) -> None:
        """The worker ends the call: the open utterance still gets its final."""
        if self.state is not AudioSocketState.STREAMING:
            return
        self._finish_audio()
        self.state = AudioSocketState.CLOSED
        self._send(Frame(messages.HANGUP))

    def _refuse(self, why: str, reason: str) -> None:
        self.counters.refuse(why)
        self._on_problem("AudioSocket connection refused", reason)
        self.state = AudioSocketState.CLOSED
        self._send(Frame(messages.ERROR))

    def _end(self, reason: str) -> None:
        assert self.call is not None
        self._finish_audio()
        self.state = AudioSocketState.CLOSED
        self.call.on_hangup = None
        self.call.end(reason)

    def _send(self, frame: Frame) -> None:
        self._out += bytes(frame)
        self._on_change()
