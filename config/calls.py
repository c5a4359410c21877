"""What becomes of a call: where utterances end, which route it takes, and what is taken out of its texts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.errors import ConfigError
from config.section import Millis, Name, Probability, Role, Seconds, Section


class Endpointing(Section, frozen=True, kw_only=True):
    """Turns speech probabilities into utterances. A window is 32 ms."""

    enter: Probability = 0.5
    exit: Probability = 0.35
    min_speech_ms: Millis = 120
    min_silence_ms: Millis = 500
    pre_roll_ms: Annotated[int, Meta(ge=0, le=1000)] = 300
    speculate_ms: Annotated[int, Meta(ge=32)] = 160
    max_utterance_s: Annotated[float, Meta(ge=1, le=30)] = 30.0

    def check(self, key: str) -> None:
        if self.exit > self.enter:
            raise ConfigError(f"{key}.exit", self.exit, f"must not be above {key}.enter ({self.enter})")
        if self.speculate_ms > self.min_silence_ms:
            limit = f"must not be above {key}.min_silence_ms ({self.min_silence_ms})"
            raise ConfigError(f"{key}.speculate_ms", self.speculate_ms, limit)


class BotEndpointing(Endpointing, frozen=True, kw_only=True):
    min_silence_ms: Millis = 320


class DictationEndpointing(Endpointing, frozen=True, kw_only=True):
    min_silence_ms: Millis = 1000


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
    calling: str = ""
    called: str = ""
    account: str = ""
    participant: str = ""
    """SIPREC: somebody in the metadata of the INVITE has this URI (`sip:1001@pbx.example`), user part or name."""
    headers: dict[str, str] = {}
    """SIP: the INVITE has each of these headers with such a value; repeated headers are joined by commas."""
    profile: Literal["bot", "assist", "dictation"] = "assist"
    language: str = ""
    """ISO 639-1 code forced on these calls. With one that the engine does not know they get finals without text, whose
    `error` says so, and the worker warns at its start."""
    context: str = ""
    roles: dict[str, Role] = {}
    """leg → role; legs are `inbound` and `outbound` for Twilio, `main` for a SIP call and for AudioSocket."""
    names: dict[str, str] = {}


class PrivacyPattern(Section, frozen=True, kw_only=True):
    """What it matches is replaced by its name in brackets."""

    name: Name
    pattern: Annotated[str, Meta(min_length=1)]
    """A regular expression (of the library `regex`), letters in any case."""


class Privacy(Section, frozen=True, kw_only=True):
    """What is taken out of texts and digits before anybody sees them and before they are stored."""

    cards: bool = True
    """Numbers of payment cards, written or spoken, become `[card]`. A partial shows six digits of what may be one."""
    patterns: tuple[PrivacyPattern, ...] = ()
    dtmf: Literal["show", "mask"] = "show"
    """`mask`: no digit that is keyed in is shown; who, when and how long still is."""
    mask_after_digits: tuple[str, ...] = ()
    """Sequences of keys (`*9`) after which digits are masked, keyed or spoken."""
    mask_after_phrases: tuple[str, ...] = ()
    """Phrases ("card number") that do the same when anybody says them."""
    unmask_after_digits: tuple[str, ...] = ()
    unmask_after_phrases: tuple[str, ...] = ()
    mask_s: Seconds = 60.0
    """Masking ends after so long; 0: with the call."""


class Alerts(Section, frozen=True, kw_only=True):
    """Rules that raise `alert` events."""

    file: str = ""
    """TOML file with `[[rules]]` (docs/alerts.md). It is read again whenever it changes."""
