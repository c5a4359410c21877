"""The framing of messages between parent and child process: a 4-byte big-endian length, then one struct in msgpack.

`encode` and `Frames` + `decode` are inverses. No I/O.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from config.sections.section import Secret

MAX_FRAME_BYTES = 4 * 1024 * 1024

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder(enc_hook=Secret.reveal)
"""The encoder writes secrets unmasked, since the child process needs their values."""


class FrameError(Exception):
    """The other process wrote bytes that are no message: a bug or corrupt memory. The connection is closed."""


class FramedMessage(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """Base of all messages; the tag is the class name in lower case."""


def encode(message: FramedMessage) -> bytes:
    """The message as one frame."""
    body = _encoder.encode(message)
    assert len(body) <= MAX_FRAME_BYTES, "the sender splits what is longer"
    return frame(body)


def frame(body: bytes) -> bytes:
    """The frame with this body, as `Frames.feed` has returned it."""
    return len(body).to_bytes(4, "big") + body


def decode(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    """The body of a frame as a message of the decoder's kinds. Raises FrameError."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from None


class Frames:
    """Cuts a byte stream into frames."""

    __slots__ = ("_buffer", "limit")

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self.limit = limit
        """The most bytes of a frame."""

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that `data` completes. Raises FrameError for a length that no message can have."""
        buffer = self._buffer
        buffer += data
        bodies: list[bytes] = []
        at = 0
        while len(buffer) - at >= 4:
            length = int.from_bytes(buffer[at : at + 4], "big")
            if not 0 < length <= self.limit:
                raise FrameError(f"frame of {length} bytes")
            if len(buffer) - at - 4 < length:
                break
            bodies.append(bytes(buffer[at + 4 : at + 4 + length]))
            at += 4 + length
        del buffer[:at]
        return bodies
