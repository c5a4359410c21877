"""Chooses which alignments are done together, runs the aligner, and answers for those that it cannot align."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from asr.engines.aligner import TOGETHER, Aligner, AlignRequest
from asr.engines.interface import first_line
from asr.inference.utterances import ServedUtterance
from asr.scheduling.request import Lane, Request
from asr.scheduling.scheduler import Scheduler
from asr.utterance import BYTES_PER_S, Alignment, TimedWord

log = structlog.get_logger("asr")


class Alignments:
    """The aligner, as `Inference` uses it. Without an aligner no audio is kept, and each alignment says that there is
    none."""

    def __init__(self, aligner: Aligner | None, utterances: Mapping[str, ServedUtterance]) -> None:
        """`utterances`: the open utterances by their ids; the owner changes the mapping."""
        self._aligner, self._utterances = aligner, utterances

    @property
    def languages(self) -> tuple[str, ...]:
        return self._aligner.languages if self._aligner is not None else ()

    def keeps(self, served: ServedUtterance) -> bool:
        """Whether the audio of this utterance must be kept for an alignment."""
        return self._aligner is not None and served.utterance.words

    def choose(self, scheduler: Scheduler, *lanes: Lane) -> list[Request]:
        """Take as many requests of these lanes as fit into one alignment, and at least one if any waits."""
        room_s, empty = self._aligner.together_s if self._aligner is not None else 0.0, True

        def fits(request: Request) -> bool:
            nonlocal room_s, empty
            if not request.align:
                return False
            room_s -= (seconds := request.end / BYTES_PER_S[self._utterances[request.utterance_id].utterance.format])
            if room_s < 0 and not empty:
                room_s += seconds
                return False
            empty = False
            return True

        return scheduler.take(TOGETHER, lanes=lanes, runnable=fits)

    def perform(self, requests: Sequence[Request]) -> list[Alignment]:
        """Return one alignment for each request, with words or with the reason why there are none."""
        inputs = [self._input(request) for request in requests]
        refusals = [self._refusal(each) for each in inputs]
        accepted = [each for each, refusal in zip(inputs, refusals, strict=True) if refusal is None]
        aligned = iter(self._align(accepted))
        answers = [next(aligned) if refusal is None else ((), refusal) for refusal in refusals]
        return [
            Alignment(request.utterance_id, request.revision, words, error)
            for request, (words, error) in zip(requests, answers, strict=True)
        ]

    def _align(self, inputs: list[AlignRequest]) -> list[tuple[tuple[TimedWord, ...], str | None]]:
        """Return words for each input, or the reason why there are none.

        Inputs that fail together are retried one by one: one of them may be the cause, or all of them may have needed
        too much memory.
        """
        if not inputs:
            return []
        assert self._aligner is not None
        try:
            return [(words, None) for words in self._aligner.align(inputs)]
        except Exception as failure:  # the finals have been sent, so the call goes on without word timestamps
            if len(inputs) > 1:
                return [answer for each in inputs for answer in self._align([each])]
            log.exception("words could not be aligned", seconds=inputs[0].seconds, language=inputs[0].language)
            return [((), first_line(failure))]

    def _input(self, request: Request) -> AlignRequest:
        served = self._utterances[request.utterance_id]
        assert served.align is not None
        audio = bytes(served.audio[: request.end])
        return AlignRequest(served.utterance.format, audio, served.align.text, served.align.language)

    def _refusal(self, align: AlignRequest) -> str | None:
        if self._aligner is None:
            return "there is no aligner"
        if align.language not in self._aligner.languages:
            return f"the aligner does not know the language {align.language!r}"
        if align.seconds > self._aligner.longest_s:
            return f"the aligner takes {self._aligner.longest_s:g} s"
        return None
