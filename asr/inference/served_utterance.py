"""One open utterance at the engine: the only record of it between its link and the engine's own session."""

from __future__ import annotations

from dataclasses import dataclass, field

from asr.errors import AsrError
from asr.messages import Align, FinalRequest, PartialRequest
from asr.samples import Loudness
from asr.scheduling.request import Lane
from asr.utterance import BYTES_PER_S, Utterance

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
