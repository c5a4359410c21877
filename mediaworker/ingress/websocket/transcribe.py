"""`WS /ws/transcribe`: PCM in, `{text, is_final, utterance_id, language}` out; it works without a configuration."""

from __future__ import annotations

from typing import Any

from mediaworker.events import schema as events
from mediaworker.ingress.audio_intake import WIDE_HZ, AudioForm
from mediaworker.ingress.outbox import NORMAL
from mediaworker.ingress.session import SessionState
from mediaworker.ingress.websocket import messages
from mediaworker.ingress.websocket.session import StreamSession
from mediaworker.ingress.websocket.texts import Transcript


class TranscribeSession(StreamSession):
    path = "/ws/transcribe"
    reader = messages.TRANSCRIBE

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outbox.send(messages.Ready(WIDE_HZ, "pcm_s16le", self._policy.session_id).text())

    def transcript_message(self, body: Transcript, flushed: bool) -> str:
        text = messages.Text(
            text_=body.text,
            is_final=isinstance(body, events.TranscriptFinal),
            utterance_id=body.utterance_id,
            language=body.language,
            revision=body.revision,
            start_ms=body.start_ms,
            end_ms=body.end_ms,
            leg=body.leg,
            flushed=flushed,
        )
        return text.text()

    def _first_audio(self, data: bytes) -> None:
        self.open_with(AudioForm("pcm_s16le", WIDE_HZ), data)

    def _nothing_to_flush(self, message: object = None) -> None:
        self._texts.answer_empty(self._legs[0])

    def _done(self, message: object = None) -> None:
        self.close(NORMAL, "")

    table = StreamSession.commands | {
        (SessionState.WAITING, bytes): _first_audio,
        (SessionState.WAITING, messages.StreamSettings): StreamSession.configure,
        (SessionState.WAITING, messages.Flush): _nothing_to_flush,
        (SessionState.WAITING, messages.Reset): StreamSession.ignore,
        (SessionState.WAITING, messages.Finalize): _done,
    }
