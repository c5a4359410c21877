"""What the worker and the child that reads a file say to each other, framed as in `config.framing`.

The child sends no more chunks than it was granted, so what is decoded and not yet recognised stays small.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from config import Endpointing
from config.framing import FramedMessage

Fault = Literal[
    "empty", "unreadable", "no_audio", "too_long", "too_large", "stalled", "channels", "crashed", "internal"
]
"""Why there is no text of a file. `internal` is ours, `crashed` may be anybody's, the others are the file's."""
Channels = Literal["mix", "split"]


class Begin(FramedMessage, frozen=True):
    """The first message to the child; the file is the descriptor it was started with."""

    channels: Channels
    endpointing: Endpointing
    max_s: float
    """Longer files are refused."""
    memory_bytes: int
    cpu_s: int
    """Of processor time; a file that takes more is refused."""
    skip: tuple[int, ...] = ()
    """Chunks that are known: they come without their samples, and need no grant."""


class Grant(FramedMessage, frozen=True):
    """So many chunks more may be sent."""

    chunks: int


class Opened(FramedMessage, frozen=True):
    duration_s: float | None
    """As the file says; None when it does not."""
    channels: int
    """Of the result: 1, or with `split` those of the file."""


class Chunk(FramedMessage, frozen=True):
    """A stretch of speech. Times are positions: 8 kHz samples since the beginning of the source's timeline."""

    index: int
    """From 0, in the order in which they are found: the same in every reading of the same file."""
    channel: int
    start: int
    end: int
    audio_start: int
    audio: bytes
    """int16 little-endian at 16 kHz; empty when it was skipped."""
    torn: bool


class Progress(FramedMessage, frozen=True):
    """All speech before it has been sent."""

    position_s: float


class Ended(FramedMessage, frozen=True):
    duration_s: float
    damaged: int
    """Places at which something could not be decoded, or is missing: silence stands there."""
    jumps: int = 0
    """Times that the clock of the file was wrong or was set back."""


class Failed(FramedMessage, frozen=True):
    fault: Fault
    reason: str
    """A sentence for whoever has sent the file."""
    detail: str = ""
    """For the log: where our own code went wrong."""


ToReader = Begin | Grant
FromReader = Opened | Chunk | Progress | Ended | Failed

to_reader: msgspec.msgpack.Decoder[ToReader] = msgspec.msgpack.Decoder(ToReader)
from_reader: msgspec.msgpack.Decoder[FromReader] = msgspec.msgpack.Decoder(FromReader)
"""For `config.framing.decode`."""
