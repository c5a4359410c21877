"""The messages between the worker and the child process that decodes a file, framed as in `config.process.framing`.

The child sends no more chunks than it was granted, which bounds the audio that is decoded but not yet recognised.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from config import Endpointing
from config.process.framing import FramedMessage

Fault = Literal[
    "empty", "unreadable", "no_audio", "too_long", "too_large", "stalled", "channels", "crashed", "internal"
]
"""Why a file has no text. `internal` is a fault of the worker, `crashed` may be a fault of either side, and the others
are faults of the file."""
Channels = Literal["mix", "split"]


class Begin(FramedMessage, frozen=True):
    """The first message to the child, which has the file as a descriptor since its start."""

    channels: Channels
    endpointing: Endpointing
    max_s: float
    """The longest duration of a file; longer ones are refused."""
    memory_bytes: int
    cpu_s: int
    """The limit of processor time; a file that needs more is refused."""
    skip: tuple[int, ...] = ()
    """Indices of chunks that the worker knows already: they are sent without samples and need no grant."""


class Grant(FramedMessage, frozen=True):
    """Allows the child to send this many more chunks."""

    chunks: int


class Opened(FramedMessage, frozen=True):
    duration_s: float | None
    """The duration that the file declares; None when it declares none."""
    channels: int
    """The number of channels of the result: 1, or with `split` those of the file."""


class Chunk(FramedMessage, frozen=True):
    """A segment of speech. Times are positions: 8 kHz samples since the beginning of the source's timeline."""

    index: int
    """Counts from 0 in the order in which chunks are found, and is the same in every reading of the same file."""
    channel: int
    start: int
    end: int
    audio_start: int
    audio: bytes
    """int16 little-endian at 16 kHz; empty when it was skipped."""
    torn: bool


class Progress(FramedMessage, frozen=True):
    """All speech before this position has been sent."""

    position_s: float


class Ended(FramedMessage, frozen=True):
    duration_s: float
    damaged: int
    """The number of places where audio is missing or could not be decoded; silence stands there."""
    jumps: int = 0
    """How often the timestamps of the file were wrong or were set back."""


class Failed(FramedMessage, frozen=True):
    fault: Fault
    reason: str
    """A sentence for the client that sent the file."""
    detail: str = ""
    """The traceback of a fault of the worker, for its log."""


ToReader = Begin | Grant
FromReader = Opened | Chunk | Progress | Ended | Failed

to_reader: msgspec.msgpack.Decoder[ToReader] = msgspec.msgpack.Decoder(ToReader)
from_reader: msgspec.msgpack.Decoder[FromReader] = msgspec.msgpack.Decoder(FromReader)
"""The decoders that `config.process.framing.decode` is called with."""
