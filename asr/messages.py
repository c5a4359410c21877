"""The messages between the media process and the inference process, framed as in `config.process.framing`.

Audio crosses once, as deltas in the codec's own bytes. A worker and an engine server on another machine exchange the
same messages over TCP, after a greeting: `WorkerHello` instead of `Configure`, answered with `Welcome` or `Refused`.
Without certificates both prove first that they know the token (`asr.greeting`): `WorkerHello`, `Challenge`, `Proof`,
`Welcome`.
"""

from __future__ import annotations

from functools import partial

import msgspec

from asr.counters import RecognizerCounters
from asr.runtime import Runtime
from asr.utterance import Alignment, Hypothesis, Utterance
from config.process.framing import FramedMessage, decode
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


class WorkerHello(FramedMessage, frozen=True, tag="hello"):
    """A worker's first message to an engine server. It has been shown no certificate that is not trusted."""

    version: int
    """`protocol` of the worker; of a message in another version nothing else is read."""
    worker: str = ""
    """Its name in the server's log and metrics."""
    nonce: bytes = b""
    """A random number where there are no certificates: see `asr.greeting`."""
    engine: int = 0
    """The one that it wants a link to; see `Welcome.engines`."""


class Proof(FramedMessage, frozen=True):
    """A worker's answer to `Challenge`."""

    proof: bytes


class Release(FramedMessage, frozen=True):
    """To an engine server: the leg has its place elsewhere from now on, or is over. Open utterances go on."""

    stream: str


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
    """The text of the final."""
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
    be what killed it. An engine server sends it only when that has happened, before `EngineCrashed`."""

    utterance_ids: tuple[str, ...]
    shared: bool = False
    """Utterances of other workers were among them."""


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
    """The engine is between two steps; from an engine server: the connection lives."""


class Welcome(FramedMessage, frozen=True):
    """An engine server's answer to `WorkerHello`. `EngineReady` follows when its engine is."""

    version: int
    server: str
    """Its name, for the worker's log."""
    engine: str
    model: str
    """As the server's `asr.model`; empty where the engine has only one."""
    languages: tuple[str, ...]
    proof: bytes = b""
    """Where there are no certificates: the server knows the token as well."""
    engines: int = 1
    """Inference processes of the server. A worker has a connection for each, and says in `WorkerHello` for which."""


class Challenge(FramedMessage, frozen=True):
    """An engine server's answer to the `WorkerHello` of a worker without a certificate."""

    nonce: bytes


class Refused(FramedMessage, frozen=True):
    """An engine server's last message to a worker: why it does not serve it."""

    reason: str


class ServerLoad(FramedMessage, frozen=True, tag="load"):
    """How busy an engine server is: sent with its answers, and when something has changed."""

    legs: int = 0
    """Legs of other workers that have their place there."""
    files: int = 0
    """Open utterances of files, of other workers."""
    delay_ms: int = 0
    """How long requests of calls have lately waited before the engine began with them."""
    max_bytes: int = 0
    """No further utterance of this worker is to be opened while the server holds so much of its audio;
    0: what the worker itself allows."""


class Draining(FramedMessage, frozen=True):
    """The engine server is about to end: it answers what it has, and takes no further utterances."""


# -- inference process ↔ its parent, which relays for the workers of an engine server ---------------------------------


class Attach(FramedMessage, frozen=True):
    """To the inference process, beside the descriptor of a socket: one more link."""

    link: int
    """Its number; no other link of this process has had it."""
    worker: str
    """The name of the worker at its other end."""


class LinkClosed(FramedMessage, frozen=True):
    """The inference process has closed a link that its worker had not."""

    link: int
    reason: str
    slow: bool = False
    """The worker has not read its answers; otherwise it has sent what makes no sense, and has been told so."""


class Answered(FramedMessage, frozen=True):
    """What a final of a traced utterance has taken. Times are those of the machine's monotonic clock."""

    link: int
    traceparent: str
    asked_s: float
    queue_s: float
    failed: bool


class Usage(FramedMessage, frozen=True):
    """What all workers together have at the engine; sent when it has changed."""

    open_utterances: int = 0
    legs: int = 0
    files: int = 0
    """Open utterances of files."""
    audio_bytes: int = 0
    """Audio of open utterances."""
    delay_ms: int = 0
    """How long requests of calls have lately waited before the engine began with them."""
    dropped_partials: int = 0
    """Partials that were not sent because a worker was slow to read, since the process began."""
    counters: RecognizerCounters = RecognizerCounters()
    """Counts since the process began."""


PROTOCOL = 2
"""Version of what a worker and an engine server tell each other, behind TLS: one more with each change that the other
side must know of."""
TOKEN_PROTOCOL = 3
"""The same without certificates. In version 1 the worker told the token to whoever listened at the address."""


def protocol(*, tls: bool) -> int:
    return PROTOCOL if tls else TOKEN_PROTOCOL


OfUtterance = Open | Append | PartialRequest | FinalRequest | Withdraw | Align | CloseUtterance
ToEngine = Configure | WorkerHello | Proof | Release | OfUtterance | Ping
FromEngine = (
    EngineReady | EngineFailed | EngineCrashed | Working | Heard | Words | Dropped | Pong | Welcome | Refused
    | ServerLoad | Draining | Challenge | LinkClosed | Answered | Usage
)  # fmt: skip


class _AnyHello(msgspec.Struct, frozen=True, tag_field="type", tag="hello"):
    """The part of `WorkerHello` that every version of it has."""

    version: int


_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(
    ToEngine, dec_hook=lambda kind, value: kind(value)
)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
# Each takes the body of a frame, and raises FrameError.
decode_to_engine = partial(decode, _to_engine)
decode_from_engine = partial(decode, _from_engine)
decode_attach = partial(decode, msgspec.msgpack.Decoder(Attach))
decode_hello = partial(decode, msgspec.msgpack.Decoder(_AnyHello))
