"""The open utterances at the engine, the checks on their requests, and the sums that load reports and metrics show.

No I/O and no clock. The engine's own session is the only other record of an utterance in this process.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from asr.counters import RecognizerCounters
from asr.errors import AsrError
from asr.messages import Align, Answered, FinalRequest, FromEngine, Heard, PartialRequest, Usage
from asr.samples import Loudness
from asr.scheduling.request import Lane, Request
from asr.utterance import BYTES_PER_S, Alignment, Hypothesis, Utterance

DELAY_S = 2.0
"""The time constant of the average delay of requests."""
EngineRequest = PartialRequest | FinalRequest | Align


class ProtocolError(AsrError):
    """A worker has sent an invalid message. The error's text is for the worker's log; only its link is closed."""


@dataclass(slots=True)
class ServedUtterance:
    """One open utterance, from its `Open` until its last answer or `CloseUtterance`."""

    utterance: Utterance
    loudness: Loudness
    longest: int
    """The most bytes of audio that the engine accepts for one utterance."""
    suspect: bool = False
    """See `messages.Open`; cleared by the first answer."""
    received: int = 0
    """The bytes of audio received."""
    revision: int = -1
    """The revision of the newest request."""
    at_engine: bool = True
    """Whether the engine has a session for it."""
    asked_s: float = 0.0
    """When the waiting request arrived, or the partial request that it replaced."""
    final_asked_s: float = 0.0
    """When the newest final was requested."""
    begun: int = -1
    """The revision of the newest request that the engine has begun, after a wait of `queue_s`."""
    queue_s: float = 0.0
    shown: str = ""
    """The text of the latest hypothesis."""
    answered: bool = False
    """Whether it has had a hypothesis: the next partial is then a refresh."""
    audio: bytearray = field(default_factory=bytearray)
    """All audio, if an alignment may be requested; otherwise empty."""
    align: Align | None = None
    """The request for its word timestamps, once the final has been accepted."""

    def check_audio(self, start: int) -> None:
        """Raises ProtocolError unless audio that begins at this byte follows the audio received so far."""
        if start != self.received:
            raise ProtocolError(f"audio from byte {start} on, after {self.received} bytes")

    def check(self, request: EngineRequest) -> None:
        """Raises ProtocolError for an invalid request, such as one about audio that has not arrived, or one after the
        end. In an engine server, a request must also cover all audio received, and be newer than the one before."""
        source, end, revision = self.utterance.source, request.end, request.revision
        if isinstance(request, Align):
            if not self.utterance.words:
                raise ProtocolError("times of words of an utterance that was opened without them")
            if self.align is not None:
                raise ProtocolError("times of words, twice")
        elif not self.at_engine:
            raise ProtocolError("a request for a text after the last final was taken")
        if end > self.received or (source and end != self.received):
            raise ProtocolError(f"a request for {end} bytes of audio, after {self.received} bytes")
        if source and revision <= self.revision:
            raise ProtocolError(f"revision {revision} after {self.revision}")
        self.revision = max(self.revision, revision)

    def lane(self, request: EngineRequest) -> Lane:
        if not self.utterance.live:
            return Lane.BATCH
        match request:
            case FinalRequest():
                return Lane.FINAL if request.commit else Lane.SPECULATIVE
            case Align():
                return Lane.WORDS
            case _:
                return Lane.PARTIAL if self.answered else Lane.FIRST_PARTIAL

    def request(self, message: EngineRequest, deadline_s: float) -> Request:
        """The request that waits for the engine, or for the aligner."""
        return Request(
            utterance_id=message.utterance_id,
            revision=message.revision,
            lane=self.lane(message),
            final=not isinstance(message, PartialRequest),
            end=message.end,
            deadline_s=deadline_s,
            stream=self.utterance.stream,
            synchronous=self.utterance.synchronous,
            commit=isinstance(message, FinalRequest) and message.commit,
            align=isinstance(message, Align),
            source=self.utterance.source,
        )

    def too_long(self, engine: str, end: int) -> str:
        """Return the reason why there is no text for the first `end` bytes, which are more than `longest`."""
        profile = "<profile>" if self.utterance.live else "files"
        rate = BYTES_PER_S[self.utterance.format]
        return (
            f"the engine {engine} takes {self.longest / rate:g} s of audio, and the utterance has "
            f"{end / rate:.2f} s: lower endpointing.{profile}.max_utterance_s"
        )


class Delay:
    """An exponentially weighted average of how long requests have waited. Times are those of one monotonic clock."""

    def __init__(self) -> None:
        self._value_s, self._at_s = 0.0, 0.0

    def record(self, waited_s: float, now_s: float) -> None:
        keep = math.exp(-max(0.0, now_s - self._at_s) / DELAY_S) * 0.9
        self._value_s, self._at_s = keep * self._value_s + (1.0 - keep) * waited_s, now_s

    def ms(self, now_s: float) -> int:
        """The delay in steps of 10 ms. Without the steps it would change, and be sent again, with every answer."""
        return round(100 * self._value_s * math.exp(-max(0.0, now_s - self._at_s) / DELAY_S)) * 10


class EngineUsage:
    """The sums over all open utterances, by `Utterance.source` where each worker needs its own."""

    def __init__(self) -> None:
        self.counters = RecognizerCounters()
        self.utterances, self.files = Counter[str](), Counter[str]()
        """The number of open utterances, and of those among them that belong to files."""
        self.audio = Counter[str]()
        """The bytes of audio of open utterances. A source without any has no entry, so `len` counts the sharers."""
        self.delay = Delay()
        """How long requests of calls have lately waited before the engine began them."""

    def on_open(self, served: ServedUtterance) -> None:
        self.counters.utterances += 1
        self._count(served, 1)

    def on_audio(self, served: ServedUtterance, size: int) -> None:
        self.audio[served.utterance.source] += size

    def on_close(self, served: ServedUtterance) -> None:
        source = served.utterance.source
        self._count(served, -1)
        self.audio[source] -= served.received
        if not self.audio[source]:
            del self.audio[source]

    def refuses_partial(self, served: ServedUtterance, max_bytes: float) -> bool:
        """Whether there is more audio than `max_bytes`, and this utterance's source has more than its share of it.

        A source that is alone may fill all of `max_bytes`. While others have audio too, each may fill an equal share,
        so that no worker's partials are refused because of another worker's audio.
        """
        share = max_bytes / max(1, len(self.audio))
        refused = self.audio.total() > max_bytes and self.audio[served.utterance.source] > share
        self.counters.refused_partials += refused
        return refused

    def sum(self, now_s: float) -> Usage:
        """Return the sums over all sources. The fields that only `ServedLinks` knows are filled in there."""
        return Usage(
            open_utterances=self.utterances.total(),
            files=self.files.total(),
            audio_bytes=self.audio.total(),
            delay_ms=self.delay.ms(now_s),
            counters=replace(self.counters),
        )

    def on_hypothesis(self, served: ServedUtterance, hypothesis: Hypothesis, now_s: float) -> list[FromEngine]:
        """Count the hypothesis and return the messages with it. For a final that a connected worker traces, an
        `Answered` with its times follows."""
        if hypothesis.final:
            self.counters.finals += 1
            self.counters.errors += hypothesis.error is not None
        else:
            self.counters.partials += 1
        if served.utterance.live:
            self.delay.record(hypothesis.queue_s, now_s)
        source, span = served.utterance.source, served.utterance.traceparent
        if not (source and span and hypothesis.final):
            return [Heard(hypothesis)]
        failed = hypothesis.error is not None
        return [Heard(hypothesis), Answered(int(source), span, served.final_asked_s, hypothesis.queue_s, failed)]

    def on_alignment(self, alignment: Alignment) -> None:
        self.counters.on_alignment(alignment)

    def _count(self, served: ServedUtterance, change: int) -> None:
        self.utterances[served.utterance.source] += change
        self.files[served.utterance.source] += 0 if served.utterance.live else change
