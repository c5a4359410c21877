"""What becomes of a call: where utterances end, which route it takes, and what is taken out of its texts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.errors import ConfigError
from config.sections.section import Millis, Name, Probability, Role, Seconds, Section


class Endpointing(Section, frozen=True, kw_only=True):
    """Turns speech probabilities into utterances. A window is 32 ms."""

    enter: Probability = 0.5
    """A window is speech from this probability on; with 0 everything is."""
    exit: Probability = 0.35
    """Speech goes on down to this probability, which is at most that of `enter`."""
    min_speech_ms: Millis = 120
    """An utterance begins once this many milliseconds of speech have been heard."""
    min_silence_ms: Millis = 500
    """An utterance ends after this many milliseconds of silence."""
    pre_roll_ms: Annotated[int, Meta(ge=0, le=1000)] = 300
    """The engine hears this many milliseconds before the speech as well."""
    speculate_ms: Annotated[int, Meta(ge=32)] = 160
    """The final is computed ahead after this many milliseconds of silence, at most those of `min_silence_ms`."""
    max_utterance_s: Annotated[float, Meta(ge=1, le=30)] = 30.0
    """An utterance that would last longer than this many seconds is split at its quietest spot."""

    def check(self, key: str) -> None:
        if self.exit > self.enter:
            raise ConfigError(f"{key}.exit", self.exit, f"must not be above {key}.enter ({self.enter})")
        if self.speculate_ms > self.min_silence_ms:
            limit = f"must not be above {key}.min_silence_ms ({self.min_silence_ms})"
            raise ConfigError(f"{key}.speculate_ms", self.speculate_ms, limit)


class BotEndpointing(Endpointing, frozen=True, kw_only=True):
    min_silence_ms: Millis = 320
    """An utterance ends after this many milliseconds of silence."""


class DictationEndpointing(Endpointing, frozen=True, kw_only=True):
    min_silence_ms: Millis = 1000
    """An utterance ends after this many milliseconds of silence."""


class Profiles(Section, frozen=True, kw_only=True):
    """Endpointing by use: a bot answers fast, an agent's screen wants whole sentences, dictation has long pauses."""

    bot: BotEndpointing = BotEndpointing()
    assist: Endpointing = Endpointing()
    dictation: DictationEndpointing = DictationEndpointing()
    files: Endpointing = Endpointing()
    """Where files are cut."""


class Route(Section, frozen=True, kw_only=True):
    """What a call is: the first route whose conditions all hold sets profile, language, context, roles and names.

    `calling` and `called` match the number or user part exactly, or by prefix when they end in `*`. In `participant`
    and `headers`, `*` stands for anything, `?` for one character, `[0-9]` for one of these; letters match in any case.
    """

    source: Literal["", "sip", "siprec", "twilio", "audiosocket", "asterisk-ws", "websocket"] = ""
    """The call comes from here; empty fits every source."""
    calling: str = ""
    """The calling number or user part is this, exactly, or begins with it when it ends in `*`; empty fits every one."""
    called: str = ""
    """The called number or user part is this, exactly, or begins with it when it ends in `*`; empty fits every one."""
    account: str = ""
    """The call comes by this SIP account or user; empty fits every one."""
    participant: str = ""
    """Somebody in the metadata of a SIPREC INVITE has this URI (`sip:1001@pbx.example`), user part or name."""
    headers: dict[str, str] = {}
    """The SIP INVITE has each of these headers with such a value; repeated headers are joined by commas."""
    profile: Literal["bot", "assist", "dictation"] = "assist"
    """Utterances of these calls end by this profile of `endpointing`."""
    language: str = ""
    """This ISO 639-1 code is forced on these calls. With one that the engine does not know they get finals without
    text, whose `error` says so, and the worker warns at its start."""
    context: str = ""
    """The engine is told this text before each utterance: names and terms that it is likely to hear."""
    roles: dict[str, Role] = {}
    """Each leg gets the role that it has here; legs are `inbound` and `outbound` for Twilio, `main` for a SIP call and
    for AudioSocket."""
    names: dict[str, str] = {}
    """Each leg is shown under the name that it has here."""


class PrivacyPattern(Section, frozen=True, kw_only=True):
    """What it matches is replaced by its name in brackets."""

    name: Name
    """This name, in brackets, replaces what the pattern matches."""
    pattern: Annotated[str, Meta(min_length=1)]
    """This regular expression (of the library `regex`) matches letters in any case."""


class Privacy(Section, frozen=True, kw_only=True):
    """What is taken out of texts and digits before anybody sees them and before they are stored."""

    cards: bool = True
    """Numbers of payment cards, written or spoken, become `[card]`; a partial shows six digits of what may be one."""
    patterns: tuple[PrivacyPattern, ...] = ()
    dtmf: Literal["show", "mask"] = "show"
    """`mask` shows no digit that is keyed in; who, when and how long still is shown."""
    mask_after_digits: tuple[str, ...] = ()
    """Digits are masked, keyed or spoken, after one of these sequences of keys (`*9`)."""
    mask_after_phrases: tuple[str, ...] = ()
    """Digits are masked, keyed or spoken, after anybody has said one of these phrases ("card number")."""
    unmask_after_digits: tuple[str, ...] = ()
    """Masking ends after one of these sequences of keys."""
    unmask_after_phrases: tuple[str, ...] = ()
    """Masking ends after anybody has said one of these phrases."""
    mask_s: Seconds = 60.0
    """Masking ends after this many seconds; 0 lets it last as long as the call."""


class Alerts(Section, frozen=True, kw_only=True):
    """Rules that raise `alert` events."""

    file: str = ""
    """Rules are read from this TOML file with `[[rules]]` (docs/alerts.md), and again whenever it changes."""
