"""`WS /ws/transcribe`: PCM in, `{text, is_final, utterance_id, language}` out, and nothing has to be said first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mediaworker.events import schema as events
from mediaworker.ingress.websocket import messages
from mediaworker.ingress.websocket.audio import WIDE_HZ, AudioForm
from mediaworker.ingress.websocket.limits import NORMAL, StreamState
from mediaworker.ingress.websocket.session import StreamSession


class TranscribeSession(StreamSession):
    reader = messages.TRANSCRIBE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outbox.send(messages.Ready(WIDE_HZ, "pcm_s16le", self._policy.session_id).text())

    def _told(self, body: events.TranscriptPartial | events.TranscriptFinal) -> messages.Told:
        return messages.Text(
            text_=body.text,
            is_final=isinstance(body, events.TranscriptFinal),
            utterance_id=body.utterance_id,
            language=body.language,
            revision=body.revision,
            start_ms=body.start_ms,
            end_ms=body.end_ms,
            leg=body.leg,
        )

    def _begin(self, data: bytes) -> None:
        self._start(self._settings, AudioForm("pcm_s16le", WIDE_HZ))
        if self.state is StreamState.STREAMING:
            self._take(data)

    def _done(self, message: object = None) -> None:
        self._close(NORMAL, "")


TABLE: dict[tuple[StreamState, type], Callable[[Any, Any], None]] = {
    (StreamState.WAITING, bytes): TranscribeSession._begin,
    (StreamState.WAITING, messages.TranscribeConfig): TranscribeSession._configure,
    (StreamState.WAITING, messages.TranscribeFlush): TranscribeSession._ignore,
    (StreamState.WAITING, messages.TranscribeReset): TranscribeSession._ignore,
    (StreamState.WAITING, messages.TranscribeFinalize): TranscribeSession._done,
    (StreamState.STREAMING, bytes): TranscribeSession._take,
    (StreamState.STREAMING, messages.TranscribeConfig): TranscribeSession._configure,
    (StreamState.STREAMING, messages.TranscribeFlush): TranscribeSession._flush,
    (StreamState.STREAMING, messages.TranscribeReset): TranscribeSession._reset,
    (StreamState.STREAMING, messages.TranscribeFinalize): TranscribeSession._finalize,
}
"""In the other states nothing is taken any more."""
TranscribeSession.table = TABLE
