"""The events that the worker publishes about calls: one struct per event type.

`docs/schemas/events.schema.json` is generated from these classes; `frame` encodes them as JSON and decodes them.

Fields may be added; none is renamed or removed while `VERSION` is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from mediaworker.errors import MediaworkerError

VERSION = 1
Text = Annotated[str, Meta(description="Unicode text; may be empty")]
CallMillis = Annotated[int, Meta(description="Milliseconds since the call started, from the sample clock")]
Millis = Annotated[int, Meta(description="A length in milliseconds")]
LegName = Annotated[str, Meta(description="The leg within its call: `main`, `inbound`, `outbound`, …")]
UtteranceId = Annotated[str, Meta(description="Unique over all calls")]
SpeakerName = Annotated[str, Meta(description="Who speaks, for display, as known then; absent: nobody was named")]
RoleName = Annotated[str, Meta(description="`agent`, `customer` or `unknown`: from the channel, never from the audio")]
SpeechReason = Literal["endpoint", "max_length", "hangup", "flush", "shutdown", "failed"]
EngineStatus = Literal["warming_up", "ready", "idle", "failed"]


class EventBody(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """Base of every event. A field with a default is optional on the wire and left out when it has it."""

    DURABLE: ClassVar[bool] = True
    """True when events of this type are stored and advance `seq` and `cursor`. `Metrics` are an exception, so callers
    use `is_durable`."""


class LegInfo(msgspec.Struct, frozen=True):
    leg: LegName
    role: RoleName
    label: Annotated[str, Meta(description="What the signalling calls the leg (SIPREC label, SDP label)")]
    name: Annotated[str, Meta(description="Who speaks, for display")]
    codec: Annotated[str, Meta(description="RTP encoding name: `PCMU`, `PCMA`, `G722`, `opus`, `L16`")]


class LegMedia(msgspec.Struct, frozen=True):
    """A leg's media account at the end of its call."""

    leg: LegName
    packets: int
    lost: int
    late: int
    jitter_ms: Annotated[float, Meta(description="Interarrival jitter, RFC 3550 appendix A.8")]


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    word: str
    start_ms: CallMillis
    end_ms: CallMillis
    confidence: float | None = None


class Redaction(msgspec.Struct, frozen=True):
    """A part of the speech that is left out of the text, which has `[kind]` in its place."""

    kind: Annotated[str, Meta(description="`card`, `digits`, or the name of a pattern of the configuration")]
    start_ms: CallMillis
    end_ms: CallMillis


class CallStarted(EventBody, frozen=True, tag="call.started"):
    """A call's first event."""

    source: Annotated[str, Meta(description="`sip`, `siprec`, `twilio`, `audiosocket`, `asterisk-ws`, `websocket`")]
    direction: Annotated[str, Meta(description="`inbound` or `outbound`, as the worker's peer sees it")]
    from_: Annotated[str, Meta(description="The calling number or URI")] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="The called number or URI")]
    external_id: Annotated[str, Meta(description="SIP Call-ID, Twilio CallSid")]
    legs: list[LegInfo]
    custom: Annotated[dict[str, str], Meta(description="Twilio parameters, SIP headers")]
    account: Annotated[str, Meta(description="The SIP account or user that the call comes by; empty for others")] = ""


class LegUpdated(EventBody, frozen=True, tag="leg.updated"):
    """A leg changed its role, name, label or codec, or has joined the call; all of them as they are now."""

    leg: LegName
    role: RoleName
    name: str
    label: str
    codec: str
    since_ms: CallMillis = 0
    """From this time on another speaker has the leg: role and name hold for speech that begins at or after it, and
    earlier speech stays with the previous speaker. Absent: they hold for all speech on the leg."""


class CallHeld(EventBody, frozen=True, tag="call.held"):
    """A leg was put on hold; without `leg`, the whole call."""

    leg: str | None = None
    left: bool = False
    """The leg's stream was removed from a recording session; `call.resumed` follows when it is back."""


class CallResumed(EventBody, frozen=True, tag="call.resumed"):
    """A leg was taken off hold; without `leg`, the whole call."""

    leg: str | None = None


class SpeechStarted(EventBody, frozen=True, tag="speech.started"):
    """Somebody speaks. Exactly one `transcript.final` with this `utterance_id` will follow."""

    leg: LegName
    utterance_id: UtteranceId
    start_ms: CallMillis


class SpeechEnded(EventBody, frozen=True, tag="speech.ended"):
    leg: LegName
    utterance_id: UtteranceId
    end_ms: CallMillis
    crosstalk: Annotated[str, Meta(description="The leg whose sound this was; its final is empty")] = ""


class TranscriptPartial(EventBody, frozen=True, tag="transcript.partial"):
    """The text so far. It replaces every earlier revision of the utterance."""

    DURABLE: ClassVar[bool] = False

    leg: LegName
    role: RoleName
    utterance_id: UtteranceId
    revision: Annotated[int, Meta(description="Increases within an utterance")]
    start_ms: CallMillis
    end_ms: CallMillis
    text: Text
    stable_chars: int
    """The number of leading code points, to the end of a word, that the previous partial has as well. The final may
    still change words among them, so no part of a partial may be stored."""
    language: Annotated[str, Meta(description="ISO 639-1 code (639-3 where there is none), empty when unknown")]
    name: SpeakerName = ""


class TranscriptFinal(EventBody, frozen=True, tag="transcript.final"):
    """The utterance's text. It comes exactly once and never changes."""

    leg: LegName
    role: RoleName
    utterance_id: UtteranceId
    revision: Annotated[int, Meta(description="Above that of every partial of the utterance")]
    start_ms: CallMillis
    end_ms: CallMillis
    text: Text
    stable_chars: int
    language: Annotated[str, Meta(description="ISO 639-1 code (639-3 where there is none), empty when unknown")]
    lost_ms: Annotated[int, Meta(description="Audio that was sent and did not come in time, by numbers or positions")]
    latency_ms: Annotated[int, Meta(description="From the true end of speech to this event")]
    reason: SpeechReason
    error: Annotated[str | None, Meta(description="Why there is no text, with reason `failed`")] = None
    redactions: list[Redaction] = []
    """The parts left out of the text, one entry per kind; the times are the utterance's."""
    crosstalk: str = ""
    """The leg whose sound this is: the speech is transcribed there, and the text here is empty."""
    name: SpeakerName = ""
    spoken: str = ""
    """The text as the engine wrote it, where `text` has digits instead (`text.numerals`); absent: as `text`."""


class TranscriptWords(EventBody, frozen=True, tag="transcript.words"):
    """Times of the final's words, after the final."""

    utterance_id: UtteranceId
    words: list[Word]
    redactions: Annotated[list[Redaction], Meta(description="What is not among the words, and when it was said")] = []


class Dtmf(EventBody, frozen=True, tag="dtmf"):
    leg: LegName
    digit: Annotated[str, Meta(description="0-9 * # A-D; `X` when it is masked")]
    duration_ms: Annotated[int, Meta(description="0 when the peer did not say")]
    masked: Annotated[bool, Meta(description="The digit is not shown, by configuration")] = False


PlayedMillis = Annotated[int, Meta(description="How much of this playback has been played, in milliseconds")]


class PlaybackStarted(EventBody, frozen=True, tag="playback.started"):
    """Sound is played to a leg that heard none before. Exactly one `playback.ended` follows, unless the call ends."""

    leg: LegName
    mark: Annotated[str, Meta(description="The name of the first sound's end")]
    position_ms: PlayedMillis


class PlaybackMarked(EventBody, frozen=True, tag="playback.marked"):
    leg: LegName
    mark: Annotated[str, Meta(description="The name that the sound's end was given")]
    position_ms: PlayedMillis


class PlaybackCleared(EventBody, frozen=True, tag="playback.cleared"):
    leg: LegName
    position_ms: PlayedMillis


class PlaybackEnded(EventBody, frozen=True, tag="playback.ended"):
    leg: LegName
    position_ms: PlayedMillis


class Alert(EventBody, frozen=True, tag="alert"):
    """A rule matched a final; or it has been silent, or loud on both sides, for too long."""

    rule: str
    leg: Annotated[str, Meta(description="Who said it, is silent, or talks over the other; empty: the whole call")]
    utterance_id: Annotated[str, Meta(description="Of the final; empty for silence and over-talk")]
    text: str
    """The text of the final, redacted as there, or of all finals of the turn in which the match lies; empty for silence
    and over-talk."""
    start_ms: CallMillis
    end_ms: CallMillis
    severity: Annotated[str, Meta(description="`info`, `warning` or `critical`")]
    match: Annotated[str, Meta(description="The words that matched")] = ""


class AudioSuspect(EventBody, frozen=True, tag="audio.suspect"):
    """A leg's audio is most likely not in the format that its sender declared. It is reported once per leg, and the
    worker goes on as before."""

    leg: LegName
    why: Annotated[Literal["format", "rate", "level"], Meta(description="What seems wrong")]
    detail: Annotated[str, Meta(description="A sentence: what was declared, and what the audio looks like")]


class Metrics(EventBody, frozen=True, tag="metrics"):
    """The talk times of the legs: sent from time to time while the call runs, and once, durably, before its end."""

    talk_ms: Annotated[dict[str, int], Meta(description="By leg")]
    overtalk_ms: Millis
    silence_ms: Millis
    hold_ms: Millis
    talk_ratio: Annotated[dict[str, float], Meta(description="By leg: its share of all talking")]
    durable: Annotated[bool, Meta(description="The call's totals: stored, sent once before `call.ended`")] = False


class CallEnded(EventBody, frozen=True, tag="call.ended"):
    """A call's last event, after all its finals."""

    reason: str
    """`hangup`, `cancelled`, `failed`, `timeout`, `media_timeout`, `api`, `shutdown`, `worker_restart`, `worker_lost`,
    …"""
    duration_ms: Millis
    legs: list[LegMedia]


class CallErased(EventBody, frozen=True, tag="call.erased"):
    """An ended call was erased by request. `call_id` names it, but the event belongs to the worker: it has the worker's
    `seq`, is sent to subscribers of all calls, and stays stored."""

    by: Annotated[str, Meta(description="The name of the API key; `loopback` or `page` without keys")]


class EngineState(EventBody, frozen=True, tag="engine.state"):
    """The recognition engine's state; belongs to no call (`call_id` null)."""

    state: EngineStatus
    engine: Annotated[str, Meta(description="The engine's name, once it is known")] = ""
    detail: Annotated[str, Meta(description="Why, when it failed")] = ""
    device: Annotated[str, Meta(description="Where it computes, when it is ready: `cpu`, `cuda`, `cuda:1`")] = ""


class Lagged(EventBody, frozen=True, tag="lagged"):
    """This connection was too slow: this number of partials (and periodic metrics) were dropped, and nothing else."""

    DURABLE: ClassVar[bool] = False

    dropped_partials: int


class Speech(msgspec.Struct, frozen=True):
    """Speech that has no final yet."""

    leg: LegName
    utterance_id: UtteranceId
    start_ms: CallMillis


class LastSaid(msgspec.Struct, frozen=True):
    """The latest final of a call that has text."""

    leg: LegName
    role: RoleName
    start_ms: CallMillis
    text: Annotated[str, Meta(description="Of its final, redacted as there; never empty")]


SEVERITIES = ("info", "warning", "critical")
"""The severities of alerts, from the mildest to the worst."""


class WorstAlert(msgspec.Struct, frozen=True):
    """The most severe alert of a call; of equally severe ones the latest."""

    rule: str
    severity: str
    count: Annotated[int, Meta(description="All alerts of the call, this one included")] = 1


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A call as `hello` and `/v1/calls` show it: what its durable events up to `seq` add up to."""

    call_id: str
    state: Literal["live", "held", "ended"]
    source: str
    direction: str
    from_: str = msgspec.field(name="from")
    to: str
    external_id: str
    account: Annotated[str, Meta(description="Of `call.started`")] = ""
    legs: list[LegInfo]
    custom: dict[str, str]
    started_at: Annotated[str, Meta(description="RFC 3339")]
    ended_at: str | None = None
    duration_ms: int | None = None
    reason: Annotated[str | None, Meta(description="Of `call.ended`")] = None
    held: Annotated[list[str], Meta(description="Legs on hold")] = []
    speaking: Annotated[list[Speech], Meta(description="Speech that has no final yet")] = []
    said: Annotated[LastSaid | None, Meta(description="What was said last, of all legs")] = None
    alert: Annotated[WorstAlert | None, Meta(description="The worst of its alerts so far, and their number")] = None
    seq: Annotated[int, Meta(description="Of the latest durable event in this record")]
    at_ms: Annotated[int, Meta(description="The latest call time in this record")]


class EngineInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    state: EngineStatus
    languages: list[str] = []
    """The languages that the engine can be asked for: ISO 639-1 codes, 639-3 where there is none."""
    partials: list[str] = []
    """Those of them in which partials come all the time that somebody speaks. In the others they come every 2 s, and
    only while the machine has room for them, or not at all."""


class Hello(EventBody, frozen=True, tag="hello"):
    """First on every connection: the live calls as of the envelope's `cursor`."""

    DURABLE: ClassVar[bool] = False

    server: Annotated[str, Meta(description="`mediaworker/<version>`")]
    engine: EngineInfo
    calls: list[CallRecord]


def tag_of(kind: type[EventBody]) -> str:
    """The type's name on the wire."""
    return str(kind.__struct_config__.tag)


CALL_ERASED = tag_of(CallErased)
BODIES = tuple(EventBody.__subclasses__())
TYPES = frozenset(tag_of(kind) for kind in BODIES)


class EventError(MediaworkerError, ValueError):
    """A frame or cursor of a peer that is malformed or of another version."""


@dataclass(frozen=True, slots=True)
class Event:
    """A body and where it belongs. Fields as in `frame.Envelope`."""

    cursor: str
    call_id: str | None
    seq: int
    at_ms: int
    time: str
    body: EventBody
    stored: bool = True


def type_of(body: EventBody) -> str:
    return tag_of(type(body))


def is_durable(body: EventBody) -> bool:
    return body.durable if isinstance(body, Metrics) else body.DURABLE
