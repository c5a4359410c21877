"""Sends a call's transcripts to the peer of a stream session: of each utterance partials and a final, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mediaworker.events import schema as events
from mediaworker.ingress.outbox import Outbox
from mediaworker.ingress.websocket import messages

Transcript = events.TranscriptPartial | events.TranscriptFinal


class Texts:
    """`message` makes the message of a partial or final, `on_failed` takes the error of a failed final."""

    def __init__(
        self, outbox: Outbox, message: Callable[[Transcript], messages.StreamMessage], on_failed: Callable[[str], None]
    ) -> None:
        self.answered = False
        """A final has been sent to the peer."""
        self._outbox, self._message, self._on_failed = outbox, message, on_failed
        self._open: set[str] = set()
        """Utterances without their final."""
        self._hidden: set[str] = set()
        """Those of them that the peer has reset."""
        self._hiding = False

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Utterances that are open, or begin within, are not sent any more."""
        self._hiding = True
        try:
            yield
        finally:
            self._hiding = False
        for utterance_id in self._open:
            self._outbox.drop_partial(utterance_id)
        self._hidden |= self._open

    def on_event(self, body: events.EventBody) -> None:
        match body:
            case events.SpeechStarted():
                self._open.add(body.utterance_id)
            case events.TranscriptPartial():
                if not self._hiding and body.utterance_id not in self._hidden:
                    self._outbox.send_partial(body.utterance_id, self._message(body).text())
            case events.TranscriptFinal():
                self._final(body)

    def _final(self, body: events.TranscriptFinal) -> None:
        self._open.discard(body.utterance_id)
        self._outbox.drop_partial(body.utterance_id)
        hidden = self._hiding or body.utterance_id in self._hidden
        self._hidden.discard(body.utterance_id)
        if hidden:
            return
        self.answered = True
        if body.error is not None:
            self._on_failed(body.error)
        self._outbox.send(self._message(body).text())
