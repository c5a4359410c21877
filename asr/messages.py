"""The messages between the media process and the inference process, framed as in `config.framing`.

Audio crosses once, as deltas in the codec's own bytes.
"""

from __future__ import annotations

import msgspec

from asr.engines.runtime import Runtime
from asr.utterance import Alignment, Hypothesis, Utterance
from config.framing import FramedMessage, decode
from config.settings import Asr, Qwen

MAX_AUDIO_BYTES = 256 * 1024
"""Audio in one `Append`: 8 s of wideband. A longer backlog is several messages, so that a request can go in between."""


# -- media process → inference process ---------------------------------------------------------------------------------


class Configure(FramedMessage, frozen=True):
    """The first message."""

    engine: str
    asr: Asr
    qwen: Qwen
    log_level: str
    log_format: str


class Open(FramedMessage, frozen=True):
    utterance: Utterance
    suspect: bool = False
    """An inference process has died over it, perhaps in the company of others. It gets steps of its own until the
    engine has answered it, so that the next death says whose fault it is."""


class Append(FramedMessage, frozen=True):
    utterance_id: str
    start: int
    """Byte offset of `audio` in the utterance: deltas are contiguous, and the receiver asserts it."""
    audio: bytes


class PartialRequest(FramedMessage, frozen=True):
    utterance_id: str
    revision: int
    end: int
    """Byte offset up to which the answer may have heard, so that a replayed request decodes the same samples."""


class FinalRequest(FramedMessage, frozen=True):
    utterance_id: str
    revision: int
    end: int
    commit: bool
    wanted_in_ms: int = 0
    """Before that nobody waits for the answer: a speculative final's endpoint fires then at the earliest."""


class Withdraw(FramedMessage, frozen=True):
    """The speaker has gone on: the answer to a speculative final is not wanted any more."""

    utterance_id: str


class Align(FramedMessage, frozen=True):
    """Instead of `CloseUtterance`, for an utterance with `words`: its final is taken, and the times of its words are
    wanted. It is done with the answer."""

    utterance_id: str
    revision: int
    text: str
    """Of the final."""
    language: str
    end: int
    """Byte offset up to which the final has heard."""


class CloseUtterance(FramedMessage, frozen=True):
    """The utterance is done (its final is taken, or it was cancelled); nothing more is answered for it."""

    utterance_id: str


class Ping(FramedMessage, frozen=True):
    """Answered with `Pong` between two steps of the engine: one that hangs does not answer."""


# -- inference process → media process ---------------------------------------------------------------------------------


class EngineReady(FramedMessage, frozen=True):
    engine: str
    words: tuple[str, ...]
    """Languages whose words the aligner gives times; empty: there is no aligner."""
    runtime: Runtime = Runtime()
    """Where the engine computes."""


class EngineFailed(FramedMessage, frozen=True):
    """Instead of `EngineReady`: there will be no engine, whatever is tried; the process ends."""

    reason: str


class EngineCrashed(FramedMessage, frozen=True):
    """The engine has raised what it may not; the process ends."""

    reason: str


class Working(FramedMessage, frozen=True):
    """Sent before the engine touches other utterances than last time: whoever is named here when the process dies may
    be what killed it."""

    utterance_ids: tuple[str, ...]


class Heard(FramedMessage, frozen=True):
    hypothesis: Hypothesis


class Words(FramedMessage, frozen=True):
    """The answer to `Align`."""

    alignment: Alignment


class Dropped(FramedMessage, frozen=True):
    """Since the last such message."""

    partials: int
    """Shed, because too many requests waited or memory was short."""
    exhausted: int = 0
    """Steps that needed more memory than there was, and were done again with less in them."""


class Pong(FramedMessage, frozen=True):
    """The engine is between two steps."""


ToEngine = Configure | Open | Append | PartialRequest | FinalRequest | Withdraw | Align | CloseUtterance | Ping
FromEngine = EngineReady | EngineFailed | EngineCrashed | Working | Heard | Words | Dropped | Pong

_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def decode_to_engine(body: bytes) -> ToEngine:
    """Raises FrameError."""
    return decode(_to_engine, body)


def decode_from_engine(body: bytes) -> FromEngine:
    """Raises FrameError."""
    return decode(_from_engine, body)
