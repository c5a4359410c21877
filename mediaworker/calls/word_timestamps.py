"""Word timestamps of a leg: each final's text is aligned with its audio, and the result is one further event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from asr.client.recognizer import Recognizer
from asr.languages import base
from asr.utterance import Alignment, TimedWord
from mediaworker.events import schema as events
from mediaworker.events.talk import placed
from mediaworker.tracing.latency import LatencyParts

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
    """The call time of the first byte that the engine received."""
    end_s: float
    """The end of the utterance's speech, in seconds of the loop's clock."""
    published: bool = False
    words: tuple[TimedWord, ...] | None = None
    asked_s: float = 0.0


class LegWordTimestamps:
    """The word timestamps of one leg. An utterance waits until its words have been published or have failed.

    Args:
        publish: takes (at_ms, event body).
        done: called whenever an utterance no longer waits.
    """

    def __init__(
        self,
        aligner: Recognizer,
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
        """How many utterances wait for their words."""
        return len(self._waiting)

    @property
    def wanted(self) -> bool:
        """Whether the engine must keep the audio of utterances for alignment."""
        return bool(self._aligner.words)

    def align(self, final: FinalText) -> bool:
        """Request the alignment of an utterance that was opened with `words`.

        Returns False if it has no words, or if the aligner does not know its language.
        """
        language = base(final.language)
        if not final.text or language not in self._aligner.words:
            return False
        final.asked_s = self._clock()
        self._waiting[final.utterance_id] = final
        self._aligner.align(final.engine_id, final.text, language, lambda result: self._on_alignment(final, result))
        return True

    def on_final_published(self, utterance_id: str) -> None:
        """Publish the words if they are known already: they must not precede the final."""
        if (final := self._waiting.get(utterance_id)) is not None:
            final.published = True
            self._publish_words(final)

    def give_up(self) -> None:
        """Stop waiting for words, and cancel the requests."""
        waiting, self._waiting = self._waiting, {}
        for final in waiting.values():
            self._aligner.cancel(final.engine_id)

    def _on_alignment(self, final: FinalText, alignment: Alignment) -> None:
        if self._waiting.get(final.utterance_id) is not final:
            return
        if alignment.error is not None:
            log.info("no times of words", utterance_id=final.utterance_id, reason=alignment.error)
        self._latency.words_queue.observe(alignment.queue_s)
        self._latency.words.observe(max(0.0, self._clock() - final.asked_s))
        final.words = alignment.words
        self._publish_words(final)

    def _publish_words(self, final: FinalText) -> None:
        if final.words is None or not final.published:
            return
        del self._waiting[final.utterance_id]
        if final.words:
            late_ms = round(1000 * max(0.0, self._clock() - final.end_s))
            words = placed(final.words, final.audio_ms, final.start_ms, final.end_ms)
            self._publish(final.end_ms + late_ms, events.TranscriptWords(final.utterance_id, words))
        self._done()
