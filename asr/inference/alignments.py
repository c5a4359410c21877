"""The inference process's alignments: the audio of utterances whose words may get times, and the aligner's answers."""

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
    """The aligner, for utterances that `Inference` knows. Without one, no audio is to be kept for it, and every answer
    is that there is no aligner."""

    def __init__(self, aligner: Aligner | None, utterances: Mapping[str, ServedUtterance]) -> None:
        """`utterances`: the open ones by their ids, which may change."""
        self._aligner, self._utterances = aligner, utterances

    @property
    def languages(self) -> tuple[str, ...]:
        return self._aligner.languages if self._aligner is not None else ()

    def keeps(self, served: ServedUtterance) -> bool:
        """Whether the audio of this utterance is wanted."""
        return self._aligner is not None and served.utterance.words

    def choose(self, scheduler: Scheduler, *lanes: Lane) -> list[Request]:
        """As many requests of these lanes as are aligned together, and at least one if any waits."""
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
        """One alignment for each, with words or with the reason why there are none."""
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
        """Words, or why there are none. Those that fail together are tried one by one: one may be at fault, or all of
        them too much for the memory."""
        if not inputs:
            return []
        assert self._aligner is not None
        try:
            return [(words, None) for words in self._aligner.align(inputs)]
        except Exception as failure:  # the finals have been sent: a call goes on without the times
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
