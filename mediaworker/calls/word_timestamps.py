"""A leg's words get their times: each final is sent back with the question, and what comes is one event behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from asr.client.interfaces import WordAligner
from asr.languages import base
from asr.utterance import Alignment, TimedWord
from mediaworker.events import schema as events
from mediaworker.ops.latency import LatencyParts

log = structlog.get_logger()


@dataclass(slots=True)
class FinalText:
    """An utterance whose final is known. Times in milliseconds are the call's."""

    utterance_id: str
    engine_id: str
    text: str
    language: str
    start_ms: int
    end_ms: int
    audio_ms: int
    """Of the first byte that the engine heard."""
    end_s: float
    """Of its speech, on the loop's clock."""
    shown: bool = False
    """Its final has been published."""
    words: tuple[TimedWord, ...] | None = None
    asked_s: float = 0.0


class LegWordTimestamps:
    """One leg's. An utterance is waited for until its words are published, or known not to come.

    Args:
        publish: takes (at_ms, event body).
        done: called whenever one is no longer waited for.
    """

    def __init__(
        self,
        aligner: WordAligner,
        *,
        publish: Callable[[int, events.EventBody], None],
        clock: Callable[[], float],
        done: Callable[[], None],
        latency: LatencyParts,
    ) -> None:
        self._aligner, self._publish, self._clock = aligner, publish, clock
        self._done, self._latency = done, latency
        self._waiting: dict[str, FinalText] = {}

    def __len__(self) -> int:
        """Utterances that are waited for."""
        return len(self._waiting)

    @property
    def wanted(self) -> bool:
        """Whether utterances are to be opened with `words`."""
        return bool(self._aligner.words)

    def ask(self, said: FinalText) -> bool:
        """Take over an utterance that was opened with `words`, to its end. False: it has none that could be timed."""
        language = base(said.language)
        if not said.text or language not in self._aligner.words:
            return False
        said.asked_s = self._clock()
        self._waiting[said.utterance_id] = said
        self._aligner.align(said.engine_id, said.text, language, lambda alignment: self._came(said, alignment))
        return True

    def shown(self, utterance_id: str) -> None:
        """The final has been published: its words may be."""
        if (said := self._waiting.get(utterance_id)) is not None:
            said.shown = True
            self._tell(said)

    def give_up(self) -> None:
        """Nobody waits any longer."""
        waiting, self._waiting = self._waiting, {}
        for said in waiting.values():
            self._aligner.cancel(said.engine_id)

    def _came(self, said: FinalText, alignment: Alignment) -> None:
        if self._waiting.get(said.utterance_id) is not said:
            return
        if alignment.error is not None:
            log.info("no times of words", utterance_id=said.utterance_id, reason=alignment.error)
        self._latency.words_queue.observe(alignment.queue_s)
        self._latency.words.observe(max(0.0, self._clock() - said.asked_s))
        said.words = alignment.words
        self._tell(said)

    def _tell(self, said: FinalText) -> None:
        if said.words is None or not said.shown:
            return
        del self._waiting[said.utterance_id]
        if said.words:
            late_ms = round(1000 * max(0.0, self._clock() - said.end_s))
            words = placed(said.words, said.audio_ms, said.start_ms, said.end_ms)
            self._publish(said.end_ms + late_ms, events.TranscriptWords(said.utterance_id, words))
        self._done()


def placed(words: Iterable[TimedWord], audio_ms: int, start_ms: int, end_ms: int) -> list[events.Word]:
    """Words of an utterance whose audio begins at `audio_ms`. The model may hear one in the silence around the speech;
    it was said between start and end."""

    def within(ms: int) -> int:
        return min(max(audio_ms + ms, start_ms), max(start_ms, end_ms))

    return [events.Word(each.word, within(each.start_ms), within(each.end_ms), each.confidence) for each in words]
