"""The messages between the media process and the inference process, framed as in `config.process.framing`.

Each byte of audio is sent once, in the codec's own format. A worker and an engine server on another machine exchange
the same messages over TCP, after a greeting: the worker sends `WorkerHello` instead of `Configure`, and the server
responds with `Welcome` or `Refused`. Without certificates, both first prove that they know the token (`asr.greeting`);
the order is then `WorkerHello`, `Challenge`, `Proof`, `Welcome`.
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
"""The most audio in one `Append`: 8 s of wideband. A longer backlog is sent in several messages, so that messages of
other utterances can go in between."""


# -- media process → inference process ---------------------------------------------------------------------------------


class Configure(FramedMessage, frozen=True):
    """The first message to an inference process: the engine to load, and the settings for it."""

    engine: str
    asr: Asr
    qwen: Qwen
    log_level: str
    log_format: str


class WorkerHello(FramedMessage, frozen=True, tag="hello"):
    """A worker's first message to an engine server. With TLS, the server's certificate has been verified before."""

    version: int
    """The worker's `protocol`. If it differs from the server's, the server reads no other field."""
    worker: str = ""
    """The worker's name in the server's log and metrics."""
    nonce: bytes = b""
    """A random number where there are no certificates: see `asr.greeting`."""
    engine: int = 0
    """The number of the engine to which the worker wants a link; see `Welcome.engines`."""


class Proof(FramedMessage, frozen=True):
    """A worker's answer to `Challenge`."""

    proof: bytes


class Release(FramedMessage, frozen=True):
    """To an engine server: the leg is over, or is placed at another server from now on. Open utterances go on."""

    stream: str


class Open(FramedMessage, frozen=True):
    """Begins an utterance."""

    utterance: Utterance
    suspect: bool = False
    """Whether an inference process has died over the utterance, perhaps in a step with others. The engine processes it
    alone until it has answered it, so that the next death shows whether it is the cause."""


class Append(FramedMessage, frozen=True):
    """The next part of an utterance's audio."""

    utterance_id: str
    start: int
    """The byte offset of `audio` in the utterance. Parts must be contiguous, or the receiver raises ProtocolError."""
    audio: bytes


class PartialRequest(FramedMessage, frozen=True):
    """A request for a partial, in place of any earlier request of the utterance."""

    utterance_id: str
    revision: int
    end: int
    """The byte offset up to which the audio is used, so that a replayed request decodes the same samples."""


class FinalRequest(FramedMessage, frozen=True):
    """A request for a final. With `commit`, the answer ends the utterance."""

    utterance_id: str
    revision: int
    end: int
    commit: bool
    wanted_in_ms: int = 0
    """Nobody waits for the answer before this time: it is the earliest time of a speculative final's endpoint."""


class Withdraw(FramedMessage, frozen=True):
    """The speaker has gone on: the answer to a speculative final is not needed any more."""

    utterance_id: str


class Align(FramedMessage, frozen=True):
    """A request for the word timestamps of an accepted final, instead of `CloseUtterance`. The answer ends the
    utterance."""

    utterance_id: str
    revision: int
    text: str
    """The text of the final."""
    language: str
    end: int
    """The byte offset up to which the audio was used for the final."""


class CloseUtterance(FramedMessage, frozen=True):
    """The utterance is over: its final was accepted, or it was cancelled. It gets no more answers."""

    utterance_id: str


class Ping(FramedMessage, frozen=True):
    """Requests a `Pong`, which the engine sends between two steps. An engine that hangs does not send it."""


# -- inference process → media process ---------------------------------------------------------------------------------


class EngineReady(FramedMessage, frozen=True):
    """The engine is loaded and warm: it accepts utterances from now on."""

    engine: str
    words: tuple[str, ...]
    """The languages whose words the aligner can timestamp; empty if there is no aligner."""
    runtime: Runtime = Runtime()
    """The device and the libraries that the engine uses."""


class EngineFailed(FramedMessage, frozen=True):
    """Instead of `EngineReady`: the engine cannot be started and a retry is useless; the process ends."""

    reason: str


class EngineCrashed(FramedMessage, frozen=True):
    """The engine has raised an unexpected error; the process ends."""

    reason: str


class Working(FramedMessage, frozen=True):
    """The utterances of the step that the engine is about to begin, sent whenever they change. If the process dies, one
    of them may be the cause. An engine server sends this only after such a death, before `EngineCrashed`."""

    utterance_ids: tuple[str, ...]
    shared: bool = False
    """Whether the step also had utterances of other workers."""


class Heard(FramedMessage, frozen=True):
    """The answer to `PartialRequest` or `FinalRequest`."""

    hypothesis: Hypothesis


class Words(FramedMessage, frozen=True):
    """The answer to `Align`."""

    alignment: Alignment


class Dropped(FramedMessage, frozen=True):
    """Counts since the last such message."""

    partials: int
    """The number of partials that were shed because too many requests waited or memory was short."""
    exhausted: int = 0
    """The number of steps that ran out of memory and were repeated with fewer requests."""


class Pong(FramedMessage, frozen=True):
    """The answer to `Ping`. From an inference process it shows that the engine does not hang. From an engine server it
    shows only that the connection works."""


class Welcome(FramedMessage, frozen=True):
    """An engine server's answer to `WorkerHello`. `EngineReady` follows as soon as its engine is ready."""

    version: int
    server: str
    """The server's name, for the worker's log."""
    engine: str
    model: str
    """The server's `asr.model`; empty if the engine has only one model."""
    languages: tuple[str, ...]
    proof: bytes = b""
    """The proof that the server knows the token as well; empty where there are certificates."""
    engines: int = 1
    """The number of the server's inference processes. A worker opens a connection for each, and names the number of the
    process in `WorkerHello`."""


class Challenge(FramedMessage, frozen=True):
    """An engine server's answer to the `WorkerHello` of a worker without a certificate."""

    nonce: bytes


class Refused(FramedMessage, frozen=True):
    """An engine server's last message to a worker: the reason why it does not serve the worker."""

    reason: str


class ServerLoad(FramedMessage, frozen=True, tag="load"):
    """The load of an engine server, sent with its answers and at intervals if it has changed."""

    legs: int = 0
    """The number of other workers' legs that are placed at the server."""
    files: int = 0
    """The number of other workers' open utterances of files."""
    delay_ms: int = 0
    """How long requests of calls have lately waited before the engine began them."""
    max_bytes: int = 0
    """The worker opens no further utterance while the server holds this much of its audio; 0 sets no limit beyond the
    worker's own."""


class Draining(FramedMessage, frozen=True):
    """The engine server is about to end: it answers the open utterances, and accepts no further ones."""


# -- inference process ↔ its parent, which relays for the workers of an engine server ---------------------------------


class Attach(FramedMessage, frozen=True):
    """To the inference process, together with the descriptor of a socket: one more link."""

    link: int
    """The link's number, which is never used again."""
    worker: str
    """The name of the worker at its other end."""


class LinkClosed(FramedMessage, frozen=True):
    """The inference process has closed a worker's link by itself."""

    link: int
    reason: str
    slow: bool = False
    """Whether the worker did not read its answers. Otherwise it sent an invalid message, and was sent `Refused`."""


class Answered(FramedMessage, frozen=True):
    """The times of a traced utterance's final, by the machine's monotonic clock."""

    link: int
    traceparent: str
    asked_s: float
    queue_s: float
    failed: bool


class Usage(FramedMessage, frozen=True):
    """The sums over all workers of an engine; sent when they have changed."""

    open_utterances: int = 0
    legs: int = 0
    files: int = 0
    """The number of open utterances of files."""
    audio_bytes: int = 0
    """The audio of open utterances."""
    delay_ms: int = 0
    """How long requests of calls have lately waited before the engine began them."""
    dropped_partials: int = 0
    """The number of partials since the process began that were not sent because a worker was slow to read."""
    counters: RecognizerCounters = RecognizerCounters()
    """The counts since the process began."""


PROTOCOL = 2
"""The version of the messages between a worker and an engine server with TLS. Each change that the other side must know
of raises it by one."""
TOKEN_PROTOCOL = 3
"""The same version without certificates. In version 1 the worker sent the token itself to any peer at the address."""


def protocol(*, tls: bool) -> int:
    return PROTOCOL if tls else TOKEN_PROTOCOL


OfUtterance = Open | Append | PartialRequest | FinalRequest | Withdraw | Align | CloseUtterance
ToEngine = Configure | WorkerHello | Proof | Release | OfUtterance | Ping
FromEngine = (
    EngineReady | EngineFailed | EngineCrashed | Working | Heard | Words | Dropped | Pong | Welcome | Refused
    | ServerLoad | Draining | Challenge | LinkClosed | Answered | Usage
)  # fmt: skip


class _AnyHello(msgspec.Struct, frozen=True, tag_field="type", tag="hello"):
    """The part of `WorkerHello` that is the same in every version."""

    version: int


_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(
    ToEngine, dec_hook=lambda kind, value: kind(value)
)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
# Each decodes the body of a frame, and raises FrameError.
decode_to_engine = partial(decode, _to_engine)
decode_from_engine = partial(decode, _from_engine)
decode_attach = partial(decode, msgspec.msgpack.Decoder(Attach))
decode_hello = partial(decode, msgspec.msgpack.Decoder(_AnyHello))
