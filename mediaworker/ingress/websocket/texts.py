"""The transcripts of a call for the peer of a stream session: partials and a final of each utterance, or nothing.

A flush is always answered: by the last final of the utterances that were open when it arrived, or by an empty final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mediaworker.events import schema as events
from mediaworker.ingress.outbox import SessionOutbox

Transcript = events.TranscriptPartial | events.TranscriptFinal


@dataclass(slots=True)
class _Flush:
    """One or more flushes of a leg that wait for the same finals."""

    leg: str
    awaited: set[str]
    """The utterances whose finals are still to come."""
    count: int = 1


class Texts:
    """Sends transcripts and answers flushes.

    Args:
        message: builds the message of a partial or final; its second argument says whether it answers a flush.
        empty: builds an empty final for a leg.
        on_failed: called with the error of a failed final.
    """

    def __init__(
        self,
        outbox: SessionOutbox,
        message: Callable[[Transcript, bool], str | bytes],
        empty: Callable[[str], events.TranscriptFinal],
        on_failed: Callable[[str], None],
    ) -> None:
        self.answered = False
        """Whether a final has been sent to the peer."""
        self._outbox, self._message, self._empty, self._on_failed = outbox, message, empty, on_failed
        self._open: dict[str, str] = {}
        """Utterance without a final → its leg."""
        self._hidden: set[str] = set()
        """The open utterances that the peer has reset."""
        self._hiding = False
        self._flushes: list[_Flush] = []
        """The flushes without an answer, in order."""
        self._held: list[events.TranscriptFinal] | None = None
        """Finals that arrived during a flush."""

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Hide utterances that are open, or begin within the block: they are not sent any more."""
        self._hiding = True
        try:
            yield
        finally:
            self._hiding = False
        for utterance_id, leg in self._open.items():
            self._outbox.drop_partial(utterance_id)
            self._hidden.add(utterance_id)
            self.answer_empty(leg, self._answered_by(utterance_id))

    @contextmanager
    def flushing(self, legs: Sequence[str]) -> Iterator[None]:
        """Register flushes of these legs, whose utterances the block ends."""
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            for leg in legs:
                self._await_finals(leg)
            for final in held:
                self._final(final)

    def on_event(self, body: events.EventBody) -> None:
        match body:
            case events.SpeechStarted():
                self._open[body.utterance_id] = body.leg
            case events.TranscriptPartial():
                if not self._hiding and body.utterance_id not in self._hidden:
                    self._outbox.send_partial(body.utterance_id, self._message(body, False))
            case events.TranscriptFinal():
                if self._held is None:
                    self._final(body)
                else:
                    self._held.append(body)

    def _final(self, body: events.TranscriptFinal) -> None:
        self._open.pop(body.utterance_id, None)
        self._outbox.drop_partial(body.utterance_id)
        hidden = self._hiding or body.utterance_id in self._hidden
        self._hidden.discard(body.utterance_id)
        if hidden:
            return
        if body.error is not None:
            self._on_failed(body.error)
        flushes = self._answered_by(body.utterance_id)
        self._send(body, flushed=flushes > 0)
        self.answer_empty(body.leg, flushes - 1)

    def _send(self, body: events.TranscriptFinal, *, flushed: bool) -> None:
        self.answered = True
        self._outbox.send(self._message(body, flushed))

    def _await_finals(self, leg: str) -> None:
        awaited = {each for each, of in self._open.items() if of == leg and each not in self._hidden}
        before = next((flush for flush in reversed(self._flushes) if flush.leg == leg), None)
        if not awaited:
            self.answer_empty(leg)
        elif before is not None and before.awaited == awaited:
            before.count += 1
        else:
            self._flushes.append(_Flush(leg, awaited))

    def _answered_by(self, utterance_id: str) -> int:
        """The number of flushes for which the final of this utterance was the last one outstanding."""
        for flush in self._flushes:
            flush.awaited.discard(utterance_id)
        answered = sum(flush.count for flush in self._flushes if not flush.awaited)
        self._flushes = [flush for flush in self._flushes if flush.awaited]
        return answered

    def answer_empty(self, leg: str, count: int = 1) -> None:
        """Answer flushes of a leg on which nothing is open."""
        for _ in range(count):
            self._send(self._empty(leg), flushed=True)
