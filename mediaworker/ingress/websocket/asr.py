"""`WS /ws/asr`: the client sends a configuration, then audio, and gets partials and finals with times and revisions."""

from __future__ import annotations

from typing import Any

from mediaworker.events import schema as events
from mediaworker.events.frame import timestamp
from mediaworker.ingress.audio_intake import AudioForm
from mediaworker.ingress.outbox import POLICY
from mediaworker.ingress.session import SessionState
from mediaworker.ingress.websocket import messages
from mediaworker.ingress.websocket.session import StreamSession
from mediaworker.ingress.websocket.texts import Transcript

CONFIG_FIRST = "config_first"


class AsrSession(StreamSession):
    path = "/ws/asr"
    reader = messages.ASR
    _audio_refused = False

    @property
    def _quiet_until_s(self) -> float:
        if self.state is SessionState.WAITING:
            return self._begun_s + self._policy.start_timeout_s
        return super()._quiet_until_s

    def on_opened(self, form: AudioForm, warming_up: bool) -> None:
        assert self.call is not None
        created = messages.SessionCreated(self._policy.session_id, self.call.id, form.encoding, form.rate_hz)
        self.outbox.send(created.text())
        if warming_up:
            self.outbox.send(messages.WarmingUp().text())

    def transcript_message(self, body: Transcript, flushed: bool) -> str:
        fields = self._fields(body)
        if isinstance(body, events.TranscriptFinal):
            return messages.Final(**fields, flushed=flushed).text()
        return messages.Partial(**fields).text()

    def _fields(self, body: Transcript) -> dict[str, Any]:
        return dict(
            utterance_id=body.utterance_id,
            revision=body.revision,
            text_=body.text,
            language=body.language,
            start_ms=body.start_ms,
            end_ms=body.end_ms,
            timestamp=timestamp(self._policy.unix_time()),
            # An utterance that was cut at the maximum length continues in the next one.
            is_speech_final=isinstance(body, events.TranscriptFinal) and body.reason != "max_length",
            leg=body.leg,
        )

    def _early_audio(self, data: bytes) -> None:
        """Report early audio once only: a client may send much before it reads the error."""
        if not self._audio_refused:
            self._audio_refused = True
            self.error(CONFIG_FIRST, "audio before config is not taken")

    def _early(self, message: object = None) -> None:
        self.error(CONFIG_FIRST, "config comes first")

    def _idle(self) -> None:
        if self.state is not SessionState.WAITING:
            super()._idle()
            return
        self.counters.refuse("no_config")
        self.error(CONFIG_FIRST, f"no config within {self._policy.start_timeout_s:g} s")
        self.close(POLICY, "config first")

    table = StreamSession.commands | {
        (SessionState.WAITING, bytes): _early_audio,
        (SessionState.WAITING, messages.StreamSettings): StreamSession.configure,
        (SessionState.WAITING, messages.Flush): _early,
        (SessionState.WAITING, messages.Reset): _early,
        (SessionState.WAITING, messages.Finalize): _early,
    }
