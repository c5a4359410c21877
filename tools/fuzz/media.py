"""Targets with calls in them: datagrams and messages of streams beside a call whose audio must stay exact."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from asr.utterance import Hypothesis, Utterance
from audio import Codec, Detector, RtpPacket, TelephoneEvent
from audio.codecs.opus import OpusEncoder, OpusError, OpusPacket, OpusWindows
from audio.fast_path import MAX_BYTES, Datagrams
from config import Endpointing, Settings
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRegistry
from mediaworker.events import schema as events
from mediaworker.events.frame import encode, printable
from mediaworker.ingress.asterisk.calls import AsteriskCalls
from mediaworker.ingress.asterisk.session import AsteriskSession
from mediaworker.ingress.audiosocket.messages import DTMF, ERROR, HANGUP, RATES_HZ, UUID, Frame
from mediaworker.ingress.audiosocket.session import AudioSocketSession
from mediaworker.ingress.session import Session
from mediaworker.ingress.twilio.calls import TwilioCalls
from mediaworker.ingress.twilio.session import TwilioSession
from mediaworker.ingress.websocket.asr import AsrSession
from mediaworker.ingress.websocket.limits import StreamEngine, StreamPolicy
from mediaworker.ingress.websocket.transcribe import TranscribeSession

PTIME_S, SIZE, EVENT = 0.020, 160, 101
PER_TICK = 40
"""Inputs in each 20 ms."""
_ONE, _ROW = np.zeros(1, np.intp), np.zeros(1, np.intp)


class Victim:
    """A leg that gets a packet every 20 ms and reads back what it was sent."""

    def __init__(self, detector: Detector) -> None:
        self._leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp", telephone_event=EVENT)
        self._codes = np.random.default_rng(7).integers(0, 0x7E, 1 << 16, np.uint8).tobytes()
        self._number = self._checked = 0

    def speak(self, now: float) -> None:
        at = self._number * SIZE % len(self._codes)
        payload = (self._codes + self._codes)[at : at + SIZE]
        self._leg.receive_rtp(bytes(RtpPacket(0, self._number & 0xFFFF, self._number * SIZE, 99, payload)), now)
        self._number += 1

    def check(self) -> None:
        """Everything consumed since the last look is what was sent, and none of it lost."""
        start, end = self._checked, self._leg.position
        at = start % len(self._codes)
        wanted = (self._codes * (2 + (end - start) // len(self._codes)))[at : at + end - start]
        assert self._leg.read(start, end) == wanted, "the audio of another leg has changed"
        assert self._leg.lost(start, end) == 0 and self._leg.discarded == 0
        self._checked = end


class Rtp:
    """Datagrams at a leg. The first byte of an input says what is made right about the rest, so that it gets deep."""

    def __init__(self, *, digits: bool = False) -> None:
        self._detector, self._now, self._count, self._digits = Detector(), 100.0, 0, digits
        self._victim = Victim(self._detector)
        self._room = Datagrams(1)
        self._open()

    def _open(self) -> None:
        codec = (Codec.PCMU, Codec.PCMA, Codec.G722, Codec.OPUS)[self._count // 4096 % 4]
        self._leg = self._detector.open(codec, Endpointing(), transport="rtp", telephone_event=EVENT)
        self._type, self._sequence, self._timestamp = codec.payload_type, 0, 0
        self._size = SIZE * codec.clock_rate_hz // 8000

    def __call__(self, data: bytes) -> None:
        datagram = self._prepared(data)
        if len(datagram) <= MAX_BYTES:  # as the sockets' reader has it: the plain ones at once, the others one by one
            self._room.store(0, datagram, self._now)
            _ROW[0] = self._leg.index
            taken = bool(self._detector.receive(self._room, _ONE, _ROW)[0])
        else:
            taken = False
        if not taken:
            self._leg.receive_rtp(datagram, self._now)
        self._count += 1
        if self._count % PER_TICK == 0:
            self._tick()
        if self._count % 4096 == 0:
            self._detector.finish(self._leg, "hangup")
            self._detector.close(self._leg)
            self._open()

    def _prepared(self, data: bytes) -> bytes:
        how = data[0] if data else 0
        body = bytearray(data[1:])
        if how & 1 and len(body) >= 12:  # the next packet of the stream
            self._sequence = self._sequence + (how >> 4 & 3) & 0xFFFF
            self._timestamp = self._timestamp + self._size * (how >> 4 & 3) & 0xFFFFFFFF
            kind = EVENT if self._digits else self._type
            struct.pack_into("!BBHII", body, 0, body[0] if how & 2 else 0x80, kind, self._sequence, self._timestamp, 7)
        return bytes(body)

    def _tick(self) -> None:
        self._now += PTIME_S
        self._victim.speak(self._now)
        for detections in self._detector.step(self._now):
            for detection in detections:
                assert detection.leg is self._leg or not self._digits or detection.leg is not None
        self._victim.check()
        leg = self._leg
        assert 0 <= leg.position <= (self._now - 100.0) * 8000 + 320_000
        leg.read(max(0, leg.position - 800), leg.position)
        leg.lost(0, leg.position)


class Engine:
    """Answers every final at once, as a recognizer would."""

    def __init__(self) -> None:
        self._open: dict[str, Callable[[Hypothesis], None]] = {}

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        self._open[utterance.id] = on_hypothesis

    def append(self, utterance_id: str, audio: bytes) -> None: ...

    def partial(self, utterance_id: str, revision: int) -> None: ...

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self._open[utterance_id](Hypothesis(utterance_id, revision, "x", "en", 1, True))

    def withdraw(self, utterance_id: str) -> None: ...
    def release(self, stream: str) -> None: ...

    def commit(self, utterance_id: str) -> None:
        self._open.pop(utterance_id, None)

    def cancel(self, utterance_id: str) -> None:
        self._open.pop(utterance_id, None)


class Sessions:
    """Messages, one on a line, to a session with a real registry behind it; every event must encode."""

    LINES = 20

    def __init__(self) -> None:
        self._now, self._count, self._row = 100.0, 0, 0
        self._detector = Detector()
        self._victim = Victim(self._detector)
        self._registry = CallRegistry(
            Settings(),
            TranscriberParts(Engine(), lambda: self._now),
            detector=self._detector,
            publish=self._publish,
        )
        self._media = MediaLoop(self._registry)

    def _publish(self, call_id: str, at_ms: int, body: events.EventBody) -> None:
        self._row += 1
        try:
            frame = encode(events.Event(f"a:{self._row}", call_id, 1, at_ms, "", body))
        except UnicodeEncodeError:
            frame = encode(events.Event(f"a:{self._row}", call_id, 1, at_ms, "", printable(body)))
        json.loads(frame)

    def _session(self, data: bytes) -> Session[Any]:
        raise NotImplementedError

    def _message(self, line: bytes) -> str | bytes:
        return line

    def __call__(self, data: bytes) -> None:
        session = self._session(data)
        for line in data.split(b"\n")[: self.LINES]:
            session.receive(self._message(line), self._now)
            session.is_ahead()
        self._tick_now_and_then()
        session.expire(self._now + 100.0)
        session.connection_lost(self._now)
        if self._count % PER_TICK == 0:
            self._tick()
            assert len(self._registry) <= PER_TICK + 1, "calls stay"

    def _tick_now_and_then(self) -> None:
        self._count += 1
        if self._count % PER_TICK == 0:
            self._now += PTIME_S
            self._victim.speak(self._now)
            self._tick()
            self._victim.check()

    def _tick(self) -> None:
        tick = self._media.tick(self._now)
        with contextlib.suppress(StopIteration):
            while True:  # it only lets the loop breathe, and there is none
                tick.send(None)


class Twilio(Sessions):
    def _session(self, data: bytes) -> Session[Any]:
        calls = TwilioCalls(self._registry)
        return TwilioSession(Settings(), calls, self._now, check_token=lambda token, call, stream: token == "right")


class Streams(Sessions):
    """`/ws/asr`, or `/ws/transcribe` where the first line has an `action`. What is no object is audio."""

    def _session(self, data: bytes) -> Session[Any]:
        kind = TranscribeSession if b"action" in data.partition(b"\n")[0] else AsrSession
        policy = StreamPolicy("s", "fuzz", 5.0, 60.0, 14400.0, StreamEngine(lambda: False), lambda: 0.0)
        return kind(policy, self._registry, self._now)

    def _message(self, line: bytes) -> str | bytes:
        return line.decode(errors="surrogateescape") if line.startswith(b"{") else line


class Asterisk(Sessions):
    """Two channels that may share a call, one line each in turn. What is no text of theirs is audio."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = AsteriskCalls(self._registry)

    def _session(self, data: bytes) -> Session[Any]:
        return AsteriskSession(Settings(), "fuzz", self._calls, self._now)

    def _message(self, line: bytes) -> str | bytes:
        is_text = line[:1] == b"{" or line[:1].isupper()
        return line.decode(errors="surrogateescape") if is_text else line

    def __call__(self, data: bytes) -> None:
        first, _, rest = data.partition(b"\n\n")
        other = self._session(first)
        for line in first.split(b"\n")[: self.LINES]:
            other.receive(self._message(line), self._now)
        super().__call__(rest)
        other.connection_lost(self._now)
        assert not len(self._calls), "calls stay"


class AudioSocket(Sessions):
    """A connection, read in pieces whose sizes the first byte of the input chooses."""

    def __call__(self, data: bytes) -> None:
        session = AudioSocketSession(Settings(), self._registry, self._now)
        size = 1 + (data[0] if data else 0) * 8
        for at in range(1, len(data), size):
            session.receive(data[at : at + size], self._now)
            session.silence(self._now)
        self._tick_now_and_then()
        session.receive(b"", self._now)
        session.expire(self._now + 100.0)
        session.connection_lost(self._now, broken=size > 1000)
        assert session.closed and len(self._registry) <= PER_TICK + 1


def rtp_seeds(folder: Path) -> list[bytes]:
    packets = [path.read_bytes() for path in sorted((folder / "rtp").glob("*.bin"))]
    return [bytes([how]) + packet for packet in packets for how in (0, 0x11, 0x13, 0x21)]


def event_seeds() -> list[bytes]:
    made = []
    for how in (0x01, 0x11):
        for event in (0, 5, 11, 15, 16, 255):
            payload = bytes(TelephoneEvent(event, 800, end=event % 2 == 0))
            made.append(bytes([how]) + bytes(RtpPacket(EVENT, 1, 160, 7, payload)))
    return made


def stream_seeds() -> list[bytes]:
    audio = bytes(range(11, 251)) * 4
    made = []
    for field in (b"type", b"action"):
        last = [b'{"%s":"%s"}' % (field, kind) for kind in (b"flush", b"reset", b"finalize")]
        for form in (b"", b',"encoding":"mulaw","sample_rate":8000', b',"encoding":"pcm_f32le","sample_rate":44100'):
            vad = b',"vad":{"threshold":0.3,"min_silence_ms":200},"language":"en","context":"x","profile":"bot"'
            for more in (b"", vad, b',"vad":false'):
                made.append(b"\n".join([b'{"%s":"config"%s%s}' % (field, form, more), audio, audio[:401], *last]))
    return made


def asterisk_seeds() -> list[bytes]:
    audio = bytes(range(11, 251)) * 2
    last = [b"DTMF_END digit:5 channel_id:1.2", b"STATUS queue_length:0", b"MEDIA_XOFF", b"ERROR error_text:x y"]
    made = []
    for codec in (b"ulaw", b"alaw", b"slin", b"slin16", b"slin44", b"opus"):
        plain = b"MEDIA_START connection_id:m channel:WebSocket/m/0x1 channel_id:1.2 format:%s ptime:20" % codec
        json = (
            b'{"event":"MEDIA_START","connection_id":"m","channel":"WebSocket/m/0x1","channel_id":"1.2","format":"%s",'
            b'"ptime":20,"channel_variables":{"MEDIAWORKER_CALL":"c","MEDIAWORKER_ROLE":"agent"}}' % codec
        )
        digit = b'{"event":"DTMF_END","digit":"5"}'
        made.append(b"\n".join([plain, audio, audio[:101], *last]))
        made.append(b"\n".join([audio, json, audio, digit]) + b"\n\n" + b"\n".join([json, audio, digit]))
    return made


def audiosocket_seeds() -> list[bytes]:
    hello, end = bytes(Frame(UUID, bytes(range(16)))), bytes(Frame(HANGUP))
    made = [b"\xff" + hello + end, b"\0" + hello[:10], b"\5" + bytes(Frame(ERROR, b"\1"))]
    for kind in RATES_HZ:
        frames = bytes(Frame(kind, bytes(range(160)) * 2)) * 4 + bytes(Frame(DTMF, b"5"))
        made.append(bytes([kind]) + hello + frames + end)
    return made


def twilio_seeds(folder: Path) -> list[bytes]:
    made: list[bytes] = []
    for name in ("golden", "connect", "reordered", "missing"):
        lines = (folder / f"twilio/{name}.jsonl").read_text(encoding="utf-8").splitlines()
        made += ["\n".join(lines[at : at + 6]).encode() for at in (0, 1, len(lines) // 2, len(lines) - 6)]
        made.append("\n".join(lines[1:4] + lines[-3:]).encode())
    for name in ("hostile", "malformed"):
        for line in (folder / f"twilio/{name}.jsonl").read_text(encoding="utf-8").splitlines():
            case: dict[str, Any] = json.loads(line)
            made.append("\n".join(case.get("messages") or [case["text"]]).encode(errors="replace"))
    return made


class Opus:
    """Payloads where they may come, and windows taken out of them: never too few samples, never more kept than came."""

    def __init__(self) -> None:
        self._windows, self._start, self._window = OpusWindows(), 0, np.zeros(512, np.int16)

    def __call__(self, data: bytes) -> None:
        try:
            packet = OpusPacket(data[1:])
        except OpusError:
            return
        self._windows.insert(self._start + (data[0] - 64) * 20, packet)
        self._window[:] = 0
        self._windows.fill(self._start, self._start + 256, self._window)
        self._start += 256
        assert len(self._windows._waiting) < 200 and len(self._windows._rest) < 2 * 8000


def opus_seeds() -> list[bytes]:
    encoder = OpusEncoder()
    said = (8000 * np.sin(np.arange(1600) * 0.2)).astype(np.int16)
    return [bytes([64 + at]) + encoder.encode(said[320 * at : 320 * at + 320]) for at in range(5)]
