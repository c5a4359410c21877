"""One AudioSocket connection as a state machine without I/O.

    WAITING ──UUID──▶ STREAMING ──hang-up, end of the stream, silent, hung up by us──▶ CLOSED
       └─ refused, too late ───────────────────────────────────────────────────────────┘

Its one rule: what a peer sends wrongly is counted and the call goes on; only a connection that cannot become a call is
answered by an error and closed. (To Asterisk every frame of ours but audio is the end, so an error is one as well.)

The shell gives it what has come, takes `data_to_send`, and closes once it is `closed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID

from audio import Codec
from audio.rtp.dtmf import DigitRate
from config.counters import counter, counter_by
from mediaworker.calls.call import Call
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audiosocket import messages
from mediaworker.ingress.audiosocket.messages import Frame, FrameReader
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.interfaces import CallOpener
from mediaworker.ingress.websocket.audio import AudioForm, AudioIntake

LEG = "main"
DIGITS = frozenset("0123456789ABCD*#")
UNSPOKEN_S = 1.0
"""After so long without audio from the peer we send 8 kHz: the application gives up after two seconds of nothing."""


class AudioSocketState(Enum):
    WAITING = auto()
    """Connected; nobody has said which call this is."""
    STREAMING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class AudioSocketCounters(IngressCounters):
    """Over all connections, since the start of the worker. Plain integers for `/metrics`."""

    refused: Counter[str] = counter_by("reason", "Connections refused by reason")
    frames: int = counter("Frames received")
    started: int = counter("Connections that became a call")
    hangups: int = counter("Calls hung up by Asterisk")
    disconnected: int = counter("Calls whose connection broke")
    silent: int = counter("Calls ended for lack of frames")
    malformed: int = counter("Frames with a wrong length for their kind, or with an invalid digit")
    too_long: int = counter("Frames of audio of more than a second")
    unknown: int = counter("Frames of an unknown kind")
    unexpected: int = counter("Frames in the wrong state, and errors that Asterisk reports")
    implausible: int = counter("Digits that came faster than any phone sends them")
    silence: int = counter("Frames of silence sent")
    withheld: int = counter("Frames of silence not sent because the peer did not read")


@dataclass(frozen=True, slots=True)
class AudioSocketPolicy:
    start_timeout_s: float
    silent_s: float
    """0: a peer may be silent for ever."""
    sends_silence: bool


class AudioSocketSession:
    """`on_problem(problem, detail)` is for the log, `on_change` says that there is something to send or to close."""

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
        self.state = AudioSocketState.WAITING
        self.call: Call | None = None
        self.counters = counters if counters is not None else AudioSocketCounters()
        self._policy, self._open_call = policy, open_call
        self._on_problem, self._on_change = on_problem, on_change
        self._reader, self._digits = FrameReader(), DigitRate()
        self._audio: AudioIntake | None = None
        self._kind: int | None = None
        """Of the audio that comes."""
        self._silence = messages.silence(messages.SLIN)
        self._begun_s = self._heard_s = self._now = now
        self._out = bytearray()

    @property
    def call_id(self) -> str | None:
        """None before there is a call."""
        return self.call.id if self.call is not None else None

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
        return self._heard_s + self._policy.silent_s

    def data_to_send(self) -> bytes:
        data = bytes(self._out)
        self._out.clear()
        return data

    def is_ahead(self) -> bool:
        """More has come than the leg takes for now: read no further."""
        if self.state is not AudioSocketState.STREAMING or self._audio is None or self.call is None or self.call.ending:
            return False
        if ahead := self._audio.advance():
            self.call.defer(LEG)
        return ahead

    def receive(self, data: bytes, now: float) -> None:
        """Take what has come. Frames wait inside while the session is ahead; call it again when it no longer is."""
        self._now = now
        self._reader.feed(data)
        if self.state is AudioSocketState.WAITING:
            self._look(self._reader.head)
        while not self.closed and not self.is_ahead() and (frame := self._reader.next()) is not None:
            self.counters.frames += 1
            if self.state is AudioSocketState.WAITING:
                self._open(frame)
            else:
                self._take(frame)

    def silence(self, now: float) -> bytes:
        """What is to be sent every 20 ms: nothing, or a frame of silence of the kind that comes."""
        known = self._kind is not None or now >= self._begun_s + UNSPOKEN_S
        speaks = self._policy.sends_silence and self.state is AudioSocketState.STREAMING and known
        return self._silence if speaks else b""

    def expire(self, now: float) -> None:
        """The deadline has passed; does nothing when it has moved meanwhile."""
        self._now = now
        if self.is_ahead():  # it is us who do not read
            self._heard_s = now
        if self.deadline is None or now < self.deadline:
            return
        if self.state is AudioSocketState.WAITING:
            self._refuse("start_timeout", f"no UUID within {self._policy.start_timeout_s:g} s")
            return
        self.counters.silent += 1
        self._on_problem("AudioSocket peer is silent", f"nothing for {self._policy.silent_s:g} s")
        self._end("media_timeout")
        self._say(Frame(messages.ERROR))

    def connection_lost(self, now: float, *, broken: bool) -> None:
        """The connection is gone. Its end is a hang-up as well; `broken`: it did not end, it was cut. Idempotent."""
        self._now = now
        while self.state is AudioSocketState.STREAMING and (frame := self._reader.next()) is not None:
            self._take(frame)  # there will be no other time: a leg has room for a second more
        if self.state is AudioSocketState.STREAMING:
            if broken:
                self.counters.disconnected += 1
            else:
                self.counters.hangups += 1
            self._end("disconnected" if broken else "hangup")
        elif self.state is AudioSocketState.WAITING:
            self.counters.refuse("no_uuid")
            self.state = AudioSocketState.CLOSED

    # -- what the peer says -------------------------------------------------------------------------------------------

    def _look(self, head: tuple[int, int] | None) -> None:
        """What speaks another protocol need not go on."""
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
        self.call.on_hangup = self._hung_up
        self.state = AudioSocketState.STREAMING
        self.counters.started += 1
        self._begun_s = self._heard_s = self._now

    def _take(self, frame: Frame) -> None:
        self._heard_s = self._now
        if frame.kind in messages.RATES_HZ:
            self._hear(frame)
        elif frame.kind == messages.DTMF:
            self._digit(frame.payload)
        elif frame.kind == messages.HANGUP:
            self.counters.hangups += 1
            self._end("hangup")
        elif frame.kind in (messages.UUID, messages.ERROR):
            self.counters.unexpected += 1
            self._on_problem("unexpected AudioSocket frame", f"kind 0x{frame.kind:02x} {frame.payload[:16].hex()}")
        else:
            self.counters.unknown += 1
            self._on_problem("unknown AudioSocket frame", f"kind 0x{frame.kind:02x} of {len(frame.payload)} bytes")

    def _hear(self, frame: Frame) -> None:
        """This frame, and those of its kind that have come with it: a resampler takes them all at the cost of one."""
        assert self.call is not None
        kind = frame.kind
        if kind != self._kind:
            form = AudioForm("pcm_s16le", messages.RATES_HZ[kind])
            if self._audio is None:
                self._audio = AudioIntake(self.call, (LEG,), form)
            else:
                self._audio.switch(form, self._now)
            self._kind, self._silence = kind, messages.silence(kind)
        assert self._audio is not None
        data, most = self._samples(frame), messages.RATES_HZ[kind] // 5
        while len(data) < most and (more := self._reader.next(kind)) is not None:
            self.counters.frames += 1
            data += self._samples(more)
        if data:
            self._audio.take(data, self._now)

    def _samples(self, frame: Frame) -> bytes:
        """Whole ones; what is wrong is counted."""
        payload = frame.payload
        if frame.too_long:
            self.counters.too_long += 1
            self._on_problem("AudioSocket frame too long", f"{len(payload)} bytes of 0x{frame.kind:02x}")
            return b""
        if len(payload) % 2 or not payload:
            # Half a sample must not move all that follows by a byte.
            self.counters.malformed += 1
            self._on_problem("malformed AudioSocket frame", f"{len(payload)} bytes of samples of two")
            return payload[:-1]
        return payload

    def _digit(self, payload: bytes) -> None:
        assert self.call is not None
        digit = payload.decode("latin-1").upper()
        if digit not in DIGITS:
            self.counters.malformed += 1
            self._on_problem("malformed AudioSocket digit", f"{len(payload)} bytes")  # what is keyed is never logged
        elif not self._digits.allow(self._now):
            self.counters.implausible += 1
            self._on_problem("AudioSocket digits faster than any phone", LEG)
        else:
            self.call.dtmf(LEG, digit, 0)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _hung_up(self) -> None:
        """The worker ends the call: what is said so far still gets its final."""
        if self.state is not AudioSocketState.STREAMING:
            return
        self._finish_audio()
        self.state = AudioSocketState.CLOSED
        self._say(Frame(messages.HANGUP))

    def _refuse(self, why: str, reason: str) -> None:
        self.counters.refuse(why)
        self._on_problem("AudioSocket connection refused", reason)
        self.state = AudioSocketState.CLOSED
        self._say(Frame(messages.ERROR))

    def _end(self, reason: str) -> None:
        assert self.call is not None
        self._finish_audio()
        self.state = AudioSocketState.CLOSED
        self.call.on_hangup = None
        self.call.end(reason)

    def _finish_audio(self) -> None:
        if self._audio is not None:
            self._audio.finish(self._now)

    def _say(self, frame: Frame) -> None:
        self._out += bytes(frame)
        self._on_change()
