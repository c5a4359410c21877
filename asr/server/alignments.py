"""The inference process's alignments: the audio of utterances whose words may get times, and the aligner's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from asr.engines.aligner import TOGETHER, Aligner, AlignRequest
from asr.engines.interface import first_line
from asr.messages import Align
from asr.server.scheduler import Lane, Request, Scheduler
from asr.utterance import BYTES_PER_S, Alignment, TimedWord, Utterance

log = structlog.get_logger("asr")


@dataclass(slots=True)
class _Kept:
    utterance: Utterance
    audio: bytearray = field(default_factory=bytearray)
    align: Align | None = None


class Alignments:
    """See the module. Without an aligner nothing is kept, and every answer is that there is none."""

    def __init__(self, aligner: Aligner | None) -> None:
        self._aligner = aligner
        self._kept: dict[str, _Kept] = {}

    @property
    def languages(self) -> tuple[str, ...]:
        return self._aligner.languages if self._aligner is not None else ()

    def open(self, utterance: Utterance) -> None:
        if utterance.words:
            self._kept[utterance.id] = _Kept(utterance)

    def append(self, utterance_id: str, audio: bytes) -> None:
        if self._aligner is not None and (kept := self._kept.get(utterance_id)) is not None:
            kept.audio += audio

    def ask(self, message: Align) -> None:
        self._kept[message.utterance_id].align = message

    def close(self, utterance_id: str) -> None:
        self._kept.pop(utterance_id, None)

    def take(self, scheduler: Scheduler, *lanes: Lane) -> list[Request]:
        """As many requests of these lanes as are aligned together, and at least one."""
        room_s, empty = self._aligner.together_s if self._aligner is not None else 0.0, True

        def fits(request: Request) -> bool:
            nonlocal room_s, empty
            if not request.align:
                return False
            room_s -= (seconds := request.end / BYTES_PER_S[self._kept[request.utterance_id].utterance.format])
            if room_s < 0 and not empty:
                room_s += seconds
                return False
            empty = False
            return True

        return scheduler.take(TOGETHER, lanes=lanes, runnable=fits)

    def answer(self, requests: Sequence[Request]) -> list[Alignment]:
        """One for each, with words or without."""
        spoken = [self._spoken(request) for request in requests]
        refused = [self._refusal(each) for each in spoken]
        told = iter(self._align([each for each, why in zip(spoken, refused, strict=True) if why is None]))
        answers = [next(told) if why is None else ((), why) for why in refused]
        return [
            Alignment(request.utterance_id, request.revision, words, error)
            for request, (words, error) in zip(requests, answers, strict=True)
        ]

    def _align(self, spoken: list[AlignRequest]) -> list[tuple[tuple[TimedWord, ...], str | None]]:
        """Words, or why there are none. Those that fail together are tried one by one: one may be at fault, or all of
        them too much for the memory."""
        if not spoken:
            return []
        assert self._aligner is not None
        try:
            return [(words, None) for words in self._aligner.align(spoken)]
        except Exception as failure:  # the finals have been told: a call goes on without the times
            if len(spoken) > 1:
                return [answer for each in spoken for answer in self._align([each])]
            log.exception("words could not be aligned", seconds=spoken[0].seconds, language=spoken[0].language)
            return [((), first_line(failure))]

    def _spoken(self, request: Request) -> AlignRequest:
        kept = self._kept[request.utterance_id]
        assert kept.align is not None
        return AlignRequest(
            kept.utterance.format, bytes(kept.audio[: request.end]), kept.align.text, kept.align.language
        )

    def _refusal(self, spoken: AlignRequest) -> str | None:
        if self._aligner is None:
            return "there is no aligner"
        if spoken.language not in self._aligner.languages:
            return f"the aligner does not know the language {spoken.language!r}"
        if spoken.seconds > self._aligner.longest_s:
            return f"the aligner takes {self._aligner.longest_s:g} s"
        return None
