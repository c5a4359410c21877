"""The open utterances at the engine: the only record of each between its link and the engine's own session, and what
all of them together have there: files, audio, and how long they wait. No I/O and no clock."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from asr.counters import RecognizerCounters
from asr.errors import AsrError
from asr.messages import Align, Answered, FinalRequest, FromEngine, Heard, PartialRequest, Usage
from asr.samples import Loudness
from asr.scheduling.request import Lane
from asr.utterance import BYTES_PER_S, Alignment, Hypothesis, Utterance

DELAY_S = 2.0
"""Over about so long the delay of requests is averaged."""
EngineRequest = PartialRequest | FinalRequest | Align


class ProtocolError(AsrError):
    """A worker has sent what makes no sense. The message is for its log; its link is closed, and no other."""


@dataclass(slots=True)
class ServedUtterance:
    utterance: Utterance
    loudness: Loudness
    longest: int
    """Bytes of audio that the engine takes."""
    suspect: bool = False
    """See `messages.Open`; until it has been answered."""
    received: int = 0
    """Bytes of audio."""
    revision: int = -1
    """The revision of its newest request."""
    at_engine: bool = True
    """The engine has a session for it."""
    asked_s: float = 0.0
    """When the request came that waits, or the one that it has taken the place of."""
    final_asked_s: float = 0.0
    """When the newest final was requested."""
    begun: int = -1
    """Revision of the newest request that the engine has begun with, after a wait of `queue_s`."""
    queue_s: float = 0.0
    shown: str = ""
    """Text of the last hypothesis."""
    answered: bool = False
    """It has had a partial: the next one is a refresh."""
    audio: bytearray = field(default_factory=bytearray)
    """All of it, if an aligner may be asked for the times of its words."""
    align: Align | None = None
    """Its final is taken, and the times of its words are wanted."""

    def check_audio(self, start: int) -> None:
        """Raises ProtocolError unless audio that begins at this byte follows what has come."""
        if start != self.received:
            raise ProtocolError(f"audio from byte {start} on, after {self.received} bytes")

    def check(self, request: EngineRequest) -> None:
        """Raises ProtocolError for a request that makes no sense: about audio that has not come, or after the end. One
        to an engine that several workers share is about all audio, and newer than the one before."""
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

    def too_long(self, engine: str, end: int) -> str:
        """Why there is no text for its first `end` bytes, which are more than `longest`."""
        profile = "<profile>" if self.utterance.live else "files"
        rate = BYTES_PER_S[self.utterance.format]
        return (
            f"the engine {engine} takes {self.longest / rate:g} s of audio, and the utterance has "
            f"{end / rate:.2f} s: lower endpointing.{profile}.max_utterance_s"
        )


class Delay:
    """How long requests have lately waited: an average that forgets. Time in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._value_s, self._at_s = 0.0, 0.0

    def record(self, waited_s: float, now_s: float) -> None:
        keep = math.exp(-max(0.0, now_s - self._at_s) / DELAY_S) * 0.9
        self._value_s, self._at_s = keep * self._value_s + (1.0 - keep) * waited_s, now_s

    def ms(self, now_s: float) -> int:
        """The delay in steps of 10 ms, so that it is not sent anew with every answer."""
        return round(100 * self._value_s * math.exp(-max(0.0, now_s - self._at_s) / DELAY_S)) * 10


class EngineUsage:
    """The sums, by `Utterance.source` where it matters whose they are."""

    def __init__(self) -> None:
        self.counters = RecognizerCounters()
        self.utterances, self.files = Counter[str](), Counter[str]()
        """Open ones, and those of them that are files."""
        self.audio = Counter[str]()
        """Bytes of open utterances, of the sources that have some."""
        self.delay = Delay()
        """How long requests of calls have lately waited before the engine began with them."""

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
        """Whether there is more audio than this, and its source has more than its share of it.

        A source may fill all of the room while it is alone, and an equal share while others have audio there: nobody
        is refused anything for what another one has sent.
        """
        share = max_bytes / max(1, len(self.audio))
        refused = self.audio.total() > max_bytes and self.audio[served.utterance.source] > share
        self.counters.refused_partials += refused
        return refused

    def sum(self, now_s: float) -> Usage:
        """The sums over all sources. What the links know is added there."""
        return Usage(
            open_utterances=self.utterances.total(),
            files=self.files.total(),
            audio_bytes=self.audio.total(),
            delay_ms=self.delay.ms(now_s),
            counters=replace(self.counters),
        )

    def on_hypothesis(self, served: ServedUtterance, hypothesis: Hypothesis, now_s: float) -> list[FromEngine]:
        """-> the message with it, and behind it what a trace is to say of a final that a worker elsewhere traces."""
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
        self.counters.alignments += bool(alignment.words)
        self.counters.words += len(alignment.words)
        self.counters.failed_alignments += alignment.error is not None

    def _count(self, served: ServedUtterance, change: int) -> None:
        self.utterances[served.utterance.source] += change
        self.files[served.utterance.source] += 0 if served.utterance.live else change
