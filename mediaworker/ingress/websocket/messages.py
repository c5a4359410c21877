"""The messages of `WS /ws/asr` (by `type`) and `WS /ws/transcribe` (commands by `action`) as types.

Both have the same commands: config, flush, reset, finalize. A message with a forbidden value is answered by an error
and has no effect, and the session goes on. `/ws/asr` refuses unknown fields in the same way, while `/ws/transcribe`
ignores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from asr import languages
from config import Endpointing
from config.sections.section import Role
from mediaworker.ingress.audio_intake import G711, AudioForm, Encoding
from mediaworker.ingress.errors import MalformedMessage

Rate = Annotated[int, Meta(ge=8000, le=48000)]
EXIT_BELOW = 0.15
"""Speech that has begun lasts until its probability is this much below `threshold`, as in the profiles."""


class Vad(Struct, frozen=True, forbid_unknown_fields=True):
    """Values that replace those of the profile's endpointing; see `config.Endpointing`."""

    threshold: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_speech_ms: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    min_silence_ms: Annotated[int, Meta(ge=32, le=10_000)] | None = None
    pre_roll_ms: Annotated[int, Meta(ge=0, le=1000)] | None = None
    max_utterance_s: Annotated[float, Meta(ge=1, le=30)] | None = None

    def shape(self, profile: Endpointing) -> Endpointing:
        wanted = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if (enter := wanted.pop("threshold", None)) is not None:
            wanted |= {"enter": enter, "exit": max(0.0, enter - EXIT_BELOW)}
        known = {name: getattr(profile, name) for name in Endpointing.__struct_fields__} | wanted
        known["speculate_ms"] = min(known["speculate_ms"], known["min_silence_ms"])
        return Endpointing(**known)


ENDLESS_MS = 10**8


def everything(profile: Endpointing) -> Endpointing:
    """The endpointing for `vad: false`: all audio is one utterance, until the client ends it or it is too long."""
    return Endpointing(
        enter=0.0,
        exit=0.0,
        min_speech_ms=0,
        min_silence_ms=ENDLESS_MS,
        pre_roll_ms=0,
        speculate_ms=profile.speculate_ms,
        max_utterance_s=profile.max_utterance_s,
    )


class StreamSettings(Struct, frozen=True, kw_only=True):
    """The fields of a configuration. An absent field keeps its value, which at first is that of the route."""

    encoding: Encoding | UnsetType = UNSET
    sample_rate: Rate | UnsetType = UNSET
    channels: Literal[1, 2] | UnsetType = UNSET
    """2 for interleaved stereo with a speaker on each channel; only the first configuration may set it."""
    language: Annotated[str, Meta(pattern=r"^([A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8}){0,3})?\Z")] | UnsetType | None = UNSET
    """An ISO 639 code, whose region (`pt-BR`) is ignored. If it is empty or null, the engine detects the language,
    unless a route sets one."""
    context: Annotated[str, Meta(max_length=4000)] | UnsetType | None = UNSET
    vad: bool | Vad | UnsetType | None = UNSET
    profile: Literal["bot", "assist", "dictation"] | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    """Only the first configuration may set `role` and `name`."""
    name: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET

    def over(self, before: StreamSettings) -> StreamSettings:
        """This configuration, with absent fields filled from the previous one."""
        fields = {name: getattr(self, name) for name in StreamSettings.__struct_fields__}
        return StreamSettings(**{n: getattr(before, n) if value is UNSET else value for n, value in fields.items()})

    def overrides(self, leg: str) -> dict[str, str]:
        """The overrides for `mediaworker.calls.routing.plan`."""
        language = languages.base(self.language) if isinstance(self.language, str) else None
        given = {"language": language, "context": self.context, "profile": self.profile}
        given |= {f"role.{leg}": self.role, f"name.{leg}": self.name}
        return {key: value for key, value in given.items() if isinstance(value, str)}

    def shape(self, profile: Endpointing) -> Endpointing:
        if isinstance(self.vad, Vad):
            return self.vad.shape(profile)
        return everything(profile) if self.vad is False else profile


def form_of(config: StreamSettings, before: StreamSettings) -> AudioForm | str:
    """The audio's format under this configuration, or the reason why it is invalid."""
    after = config.over(before)
    encoding = after.encoding if isinstance(after.encoding, str) else "pcm_s16le"
    own_hz = 8000 if encoding in G711 else 16000
    given = config if isinstance(config.encoding, str) else after
    rate_hz = given.sample_rate if isinstance(given.sample_rate, int) else own_hz
    if encoding in G711 and rate_hz != 8000:
        return f"{encoding} has a sample_rate of 8000"
    return AudioForm(encoding, rate_hz, after.channels if isinstance(after.channels, int) else 1)


class Flush(Struct, frozen=True):
    """The command to end the open utterance."""


class Reset(Struct, frozen=True):
    """The command to discard the open utterance."""


class Finalize(Struct, frozen=True):
    """The command to send the last final and close."""


Command = StreamSettings | Flush | Reset | Finalize
COMMANDS: dict[object, type[Command]] = {
    "config": StreamSettings,
    "flush": Flush,
    "reset": Reset,
    "finalize": Finalize,
}


class StreamMalformed(MalformedMessage):
    """A message that is answered by an error. `code` is `bad_json`, `unknown_type` or `bad_value`."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


# Deep nesting raises RecursionError; lone surrogates raise UnicodeError (a ValueError).
_ERRORS = (ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class CommandReader:
    """Reads the commands of one protocol."""

    field: str
    """The field that names the kind of command."""
    strict: bool
    """Whether unknown fields are an error."""

    def read(self, text: str) -> Command:
        """Parse one message. Raises StreamMalformed, and nothing else."""
        try:
            message = msgspec.json.decode(text)
        except _ERRORS:
            raise StreamMalformed("bad_json", "not JSON") from None
        name = message.pop(self.field, None) if isinstance(message, dict) else None
        kind = COMMANDS.get(name) if isinstance(name, str) else None
        if kind is None:
            wanted = f"expected an object whose `{self.field}` is one of {sorted(map(str, COMMANDS))}"
            raise StreamMalformed("unknown_type", wanted)
        if self.strict and (unknown := message.keys() - set(kind.__struct_fields__)):
            raise StreamMalformed("bad_value", f"Object contains unknown field `{min(unknown)}`")
        try:
            return msgspec.convert(message, kind)
        except _ERRORS as error:
            raise StreamMalformed("bad_value", str(error)) from None


ASR, TRANSCRIBE = CommandReader("type", strict=True), CommandReader("action", strict=False)


class StreamMessage(Struct, frozen=True, omit_defaults=False):
    """The base of messages to the client."""

    def text(self) -> str:
        return _encoder.encode(self).decode()


_encoder = msgspec.json.Encoder()


class SessionCreated(StreamMessage, frozen=True, tag_field="type", tag="session_created"):
    session_id: str
    call_id: str
    """The session's call in `/v1/events` and `/v1/calls`."""
    encoding: Encoding
    sample_rate: int


class WarmingUp(StreamMessage, frozen=True, tag_field="type", tag="warming_up"):
    """The engine is loading its model; audio is kept until it can be recognised."""


class UtteranceText(StreamMessage, frozen=True, tag_field="type"):
    """The base of partials and finals. `start_ms` and `end_ms` are call time by the sample clock."""

    utterance_id: str
    revision: int
    text_: str = msgspec.field(name="text")
    language: str
    start_ms: int
    end_ms: int
    timestamp: str
    """The time of the message (RFC 3339)."""
    is_speech_final: bool
    leg: str
    """The leg: `main`, or with two channels `left` or `right`."""


class Partial(UtteranceText, frozen=True, tag="partial"): ...


class Final(UtteranceText, frozen=True, tag="final", omit_defaults=True):
    flushed: bool = False
    """Whether this final answers a flush: all audio before the flush has its finals."""


class Error(StreamMessage, frozen=True, tag_field="type", tag="error"):
    code: str
    message: str


class Ready(StreamMessage, frozen=True, tag_field="type", tag="ready"):
    """The first message of `/ws/transcribe`: the audio that it expects without a configuration."""

    sample_rate: int
    encoding: Encoding
    session_id: str


class Text(StreamMessage, frozen=True, omit_defaults=True):
    text_: str = msgspec.field(name="text")
    is_final: bool
    utterance_id: str
    language: str
    revision: int
    start_ms: int
    end_ms: int
    leg: str
    flushed: bool = False
    """Whether this final answers a flush."""
