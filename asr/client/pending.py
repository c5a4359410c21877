"""One open utterance: its audio, its newest request, and how much of them has been sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asr.client.spill import UtteranceAudio
from asr.messages import MAX_AUDIO_BYTES, Align, Append, FinalRequest, Open, PartialRequest, ToEngine, Withdraw
from asr.utterance import Alignment, Hypothesis, TimedWord, Utterance
from config.metrics.counters import counter

OnHypothesis = Callable[[Hypothesis], None]
OnAlignment = Callable[[Alignment], None]


@dataclass(slots=True)
class RecognizerCounters:
    """Plain integers for the metrics."""

    utterances: int = 0
    partials: int = 0
    """Delivered."""
    finals: int = 0
    """Delivered, speculative ones included."""
    errors: int = counter("Counts finals that the engine answered with an error.")
    alignments: int = counter("Counts utterances whose words were given times.")
    words: int = counter("Counts words that were given times.")
    failed_alignments: int = counter(
        "Counts utterances for which times of words were requested and could not be found."
    )
    refused_alignments: int = counter(
        "Counts utterances whose words were given no times because too much audio was waiting."
    )
    stale: int = counter("Counts answers of the engine that came too late to be used.")
    refused_partials: int = counter("Counts partials that were not requested because too much audio was waiting.")
    """More than `asr.max_backlog_mb`."""
    shed_partials: int = counter("Counts partials that the scheduler dropped under load.")
    exhausted_steps: int = counter(
        "Counts steps of the engine that ran out of memory and were repeated in smaller parts."
    )
    crashes: int = counter(
        "Counts inference processes that have died, and connections to engine servers that were lost."
    )
    hangs: int = counter("Counts inference processes that were killed because they had stopped answering.")
    spill_failures: int = counter(
        "Counts utterances that were given up because there was no room on disk for their audio."
    )
    replayed: int = counter("Counts utterances that were sent again after the inference process had ended.")


@dataclass(slots=True)
class PendingUtterance:
    utterance: Utterance
    on_hypothesis: OnHypothesis
    audio: UtteranceAudio
    """All of it, for a replay, until the utterance is over."""
    newest: int = -1
    """The highest revision that was requested."""
    delivered: int = -1
    request: PartialRequest | FinalRequest | Align | None = None
    """The newest request, until it is answered."""
    words: tuple[TimedWord, ...] = ()
    """Those of its newest final, from an engine that gives their times."""
    on_alignment: OnAlignment | None = None
    """Set with an `Align`, which is the last request."""
    opened: bool = False
    """`opened`, `sent` and `asked`: what has been sent to this life of the inference process."""
    sent: int = 0
    asked: bool = False
    withdrawn: bool = False
    """The request has been withdrawn, and the process has not been sent that."""
    begun_bytes: int = 0
    """How much of the audio is counted as being at the process."""
    unanswered_crashes: int = 0
    """How many processes have died over it since its last answer."""
    crashes_in_company: int = 0
    failed: str | None = None
    died: bool = False
    """It failed because the process died over it."""
    refused: bool = False
    """It failed because the engine does not know its language: see `Hypothesis.refused`."""

    def revise(self, revision: int) -> None:
        assert revision > self.newest, f"{self.utterance.id}: revision {revision} after {self.newest}"
        self.newest = revision

    def ask(self, request: PartialRequest | FinalRequest | Align) -> None:
        """Replace the previous request."""
        self.revise(request.revision)
        self.request, self.asked, self.withdrawn = request, False, False

    def next_message(self) -> ToEngine | None:
        """The next message to send; it counts as sent. Raises SpillError."""
        if not self.opened:
            self.opened = True
            return Open(self.utterance, suspect=self.unanswered_crashes > 0)
        if self.withdrawn:
            self.withdrawn = False
            if self.asked:
                return Withdraw(self.utterance.id)
            self.asked = True  # so this life of the process never gets the request
        request = None if self.asked else self.request
        # Audio that was appended after a request is sent after it, in a replay too.
        end = len(self.audio) if request is None else request.end
        if self.sent < end:
            start = self.sent
            audio = self.audio.read(start, min(end, start + MAX_AUDIO_BYTES))
            self.sent += len(audio)
            return Append(self.utterance.id, start, audio)
        if request is not None:
            self.asked = True
        return request

    def forget_process(self) -> None:
        """The process is gone, and the next one has been sent nothing."""
        self.opened, self.sent, self.asked, self.withdrawn, self.begun_bytes = False, 0, False, False, 0

    def waits_for(self, hypothesis: Hypothesis) -> bool:
        """Whether the hypothesis is still wanted."""
        if hypothesis.final:
            request = self.request
            return isinstance(request, FinalRequest) and request.revision == hypothesis.revision
        # A partial is still wanted after a newer request.
        return hypothesis.revision > self.delivered

    def ends_with(self, hypothesis: Hypothesis) -> bool:
        """Whether this answer ends the utterance."""
        request = self.request
        if not isinstance(request, FinalRequest) or not request.commit or request.revision != hypothesis.revision:
            return False
        return not self.utterance.words or hypothesis.error is not None
