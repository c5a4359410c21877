"""What the media process and the inference process say to each other.

A frame is a 4-byte big-endian length and a msgpack map of one of the tagged structs below. Audio crosses once, as
deltas in the codec's own bytes. `encode` and `Frames` + `decode_*` are inverses.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from asr.engines.runtime import Runtime
from asr.utterance import Alignment, Hypothesis, Utterance
from config.settings import Asr, Qwen

MAX_FRAME_BYTES = 4 * 1024 * 1024
MAX_AUDIO_BYTES = 256 * 1024
"""Audio in one `Append`: 8 s of wideband. A longer backlog is several messages, so that a request can go in between."""


T = TypeVar("T")


class FrameError(Exception):
    """The peer process wrote something that is no message: a bug, or memory gone wrong. The connection is closed."""


class EngineMessage(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """Base of all messages; the tag is the class name in lower case."""


# -- media process → inference process ---------------------------------------------------------------------------------


class Configure(EngineMessage, frozen=True):
    """The first message."""

    engine: str
    asr: Asr
    qwen: Qwen
    log_level: str
    log_format: str


class Open(EngineMessage, frozen=True):
    utterance: Utterance
    suspect: bool = False
    """An inference process has died over it, perhaps in the company of others. It gets steps of its own until the
    engine has answered it, so that the next death says whose fault it is."""


class Append(EngineMessage, frozen=True):
    utterance_id: str
    start: int
    """Byte offset of `audio` in the utterance: deltas are contiguous, and the receiver asserts it."""
    audio: bytes


class PartialRequest(EngineMessage, frozen=True):
    utterance_id: str
    revision: int
    end: int
    """Byte offset up to which the answer may have heard, so that a replayed request decodes the same samples."""


class FinalRequest(EngineMessage, frozen=True):
    utterance_id: str
    revision: int
    end: int
    commit: bool
    wanted_in_ms: int = 0
    """Before that nobody waits for the answer: a speculative final's endpoint fires then at the earliest."""


class Withdraw(EngineMessage, frozen=True):
    """The speaker has gone on: the answer to a speculative final is not wanted any more."""

    utterance_id: str


class Align(EngineMessage, frozen=True):
    """Instead of `CloseUtterance`, for an utterance with `words`: its final is taken, and the times of its words are
    wanted. It is done with the answer."""

    utterance_id: str
    revision: int
    text: str
    """Of the final."""
    language: str
    end: int
    """Byte offset up to which the final has heard."""


class CloseUtterance(EngineMessage, frozen=True):
    """The utterance is done (its final is taken, or it was cancelled); nothing more is answered for it."""

    utterance_id: str


class Ping(EngineMessage, frozen=True):
    """Answered with `Pong` between two steps of the engine: one that hangs does not answer."""


# -- inference process → media process ---------------------------------------------------------------------------------


class EngineReady(EngineMessage, frozen=True):
    engine: str
    words: tuple[str, ...]
    """Languages whose words the aligner gives times; empty: there is no aligner."""
    runtime: Runtime = Runtime()
    """Where the engine computes."""


class EngineFailed(EngineMessage, frozen=True):
    """Instead of `EngineReady`: there will be no engine, whatever is tried; the process ends."""

    reason: str


class EngineCrashed(EngineMessage, frozen=True):
    """The engine has raised what it may not; the process ends."""

    reason: str


class Working(EngineMessage, frozen=True):
    """Sent before the engine touches other utterances than last time: whoever is named here when the process dies may
    be what killed it."""

    utterance_ids: tuple[str, ...]


class Heard(EngineMessage, frozen=True):
    hypothesis: Hypothesis


class Words(EngineMessage, frozen=True):
    """The answer to `Align`."""

    alignment: Alignment


class Dropped(EngineMessage, frozen=True):
    """Since the last such message."""

    partials: int
    """Shed, because too many requests waited or memory was short."""
    exhausted: int = 0
    """Steps that needed more memory than there was, and were done again with less in them."""


class Pong(EngineMessage, frozen=True):
    """The engine is between two steps."""


ToEngine = Configure | Open | Append | PartialRequest | FinalRequest | Withdraw | Align | CloseUtterance | Ping
FromEngine = EngineReady | EngineFailed | EngineCrashed | Working | Heard | Words | Dropped | Pong

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: EngineMessage) -> bytes:
    """The message as one frame."""
    body = _encoder.encode(message)
    assert len(body) <= MAX_FRAME_BYTES, "split the audio"
    return len(body).to_bytes(4, "big") + body


def decode_to_engine(body: bytes) -> ToEngine:
    """Raises FrameError."""
    return decode(_to_engine, body)


def decode_from_engine(body: bytes) -> FromEngine:
    """Raises FrameError."""
    return decode(_from_engine, body)


def decode(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    """A message of the decoder's kinds. Raises FrameError."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from None


class Frames:
    """Cuts a byte stream into frames."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completes. Raises FrameError on a length that no message has."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(buffer) - at >= 4:
            length = int.from_bytes(buffer[at : at + 4], "big")
            if not 0 < length <= MAX_FRAME_BYTES:
                raise FrameError(f"frame of {length} bytes")
            if len(buffer) - at - 4 < length:
                break
            bodies.append(bytes(buffer[at + 4 : at + 4 + length]))
            at += 4 + length
        del buffer[:at]
        return bodies

    @property
    def buffered_bytes(self) -> int:
        """Of a frame that is not complete yet."""
        return len(self._buffer)
