"""A dialect for mediaworker in which captions are lines of text: `WS /captions`.

A client sends 16-bit samples at 16 kHz as binary messages, and may send `language de` before them. `end` asks for the
last caption. The answers are `~ what may still change`, `= what stays` and `! what was wrong`.
"""

from dataclasses import dataclass

from mediaworker.events.schema import TranscriptFinal
from mediaworker.ingress.audio_intake import AudioForm
from mediaworker.ingress.errors import MalformedMessage, UnknownMessage
from mediaworker.ingress.outbox import NORMAL
from mediaworker.ingress.session import SessionState
from mediaworker.ingress.websocket.messages import StreamSettings
from mediaworker.ingress.websocket.session import StreamSession


@dataclass(frozen=True)
class Language:
    code: str


class End:
    """The client has sent all of its audio."""


class CaptionsSession(StreamSession):
    path = "/captions"
    subprotocols = ("captions",)

    # -- messages in ---------------------------------------------------------------------------------------------------

    def read(self, message):
        if isinstance(message, bytes):
            return message
        word, _, value = message.strip().partition(" ")
        if word == "end":
            return End()
        if word != "language":
            raise UnknownMessage(f"{word[:20]!r} is neither `language` nor `end`")
        if not value.isalpha():
            raise MalformedMessage("a language is a code such as `de`")
        return Language(value.lower())

    def _set_language(self, language):
        self.configure(StreamSettings(language=language.code))

    def _first_audio(self, data):
        self.open_with(AudioForm("pcm_s16le", 16000), data)

    def _end_early(self, end):
        self.close(NORMAL, "no audio came")

    table = {
        (SessionState.WAITING, Language): _set_language,
        (SessionState.WAITING, bytes): _first_audio,
        (SessionState.WAITING, End): _end_early,
        (SessionState.STREAMING, bytes): StreamSession.receive_audio,
        (SessionState.STREAMING, End): StreamSession.finalize,
    }

    # -- messages out --------------------------------------------------------------------------------------------------

    def transcript_message(self, body, flushed):
        return f"{'=' if isinstance(body, TranscriptFinal) else '~'} {body.text}"

    def error_message(self, code, why):
        return f"! {why}"
