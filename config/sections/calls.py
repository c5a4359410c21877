"""The settings of calls: where utterances end, which route applies, and what is masked in texts."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from config.errors import ConfigError
from config.sections.section import Millis, Name, Probability, Role, Seconds, Section

_TOKEN = r"[A-Za-z0-9.!%*_+`'~-]+"
_JOIN = rf"^({_TOKEN}(;{_TOKEN})?)?$"
"""A header's name, or the name of a header and of its parameter; both are tokens (RFC 3261 section 25.1)."""


class Endpointing(Section, frozen=True, kw_only=True):
    """Turns speech probabilities into utterances. A window is 32 ms."""

    enter: Probability = 0.5
    """A window counts as speech from this probability on; with 0 every window does."""
    exit: Probability = 0.35
    """Speech continues as long as the probability is at least this value, which must not exceed `enter`."""
    min_speech_ms: Millis = 120
    """An utterance begins after this many milliseconds of speech."""
    min_silence_ms: Millis = 500
    """An utterance ends after this many milliseconds of silence. While a sound may begin another word, the end waits
    for at most 192 ms."""
    pre_roll_ms: Annotated[int, Meta(ge=0, le=1000)] = 300
    """The engine also receives this many milliseconds of audio from before the speech."""
    speculate_ms: Annotated[int, Meta(ge=32)] = 160
    """The final is computed in advance after this many milliseconds of silence, which must not exceed
    `min_silence_ms`."""
    max_utterance_s: Annotated[float, Meta(ge=1, le=30)] = 30.0
    """An utterance that would last longer than this many seconds is split: in a call at the quietest point of its last
    half second, in a file of its last third."""

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
    """The endpointing of utterances by use: a bot must answer fast, an agent's screen shows whole sentences, and
    dictation has long pauses."""

    bot: BotEndpointing = BotEndpointing()
    assist: Endpointing = Endpointing()
    dictation: DictationEndpointing = DictationEndpointing()
    files: Endpointing = Endpointing()
    """Where files are cut."""


class Route(Section, frozen=True, kw_only=True):
    """Settings by call: the first route whose conditions all hold sets profile, language, context, roles, names and
    what joins SIP calls.

    `calling` and `called` match the number or user part exactly, or by prefix when they end in `*`. In `participant`
    and `headers`, `*` stands for anything, `?` for one character, `[0-9]` for one of these; letters match in any case.
    """

    source: Literal["", "sip", "siprec", "twilio", "audiosocket", "asterisk-ws", "websocket"] = ""
    """The route applies to calls from this source; if it is empty, to calls from every source."""
    calling: str = ""
    """The route applies if the calling number or user part equals this value or, if it ends in `*`, begins with it; an
    empty value matches everything."""
    called: str = ""
    """The route applies if the called number or user part equals this value or, if it ends in `*`, begins with it; an
    empty value matches everything."""
    account: str = ""
    """The route applies to calls through this SIP account or user; an empty value matches everything."""
    participant: str = ""
    """The route applies if a participant in the metadata of a SIPREC INVITE has this URI (`sip:1001@pbx.example`), user
    part or name."""
    headers: dict[str, str] = {}
    """The route applies if the SIP INVITE has each of these headers with a matching value; repeated headers are joined
    by commas."""
    profile: Literal["bot", "assist", "dictation"] = "assist"
    """This profile of `endpointing` decides where the utterances of these calls end."""
    language: str = ""
    """This ISO 639-1 code is forced on these calls. If the engine does not know the language, their finals have no text
    and an `error` that says so, and the worker warns when it starts."""
    context: str = ""
    """The engine is given this text with each utterance: names and terms that are likely to be said."""
    roles: dict[str, Role] = {}
    """Each leg is given the role listed for it here; legs are named `inbound` and `outbound` for Twilio, and `main` for
    a SIP call and for AudioSocket, `main-2` and so on for SIP calls that joined it."""
    names: dict[str, str] = {}
    """Each leg is shown under the name listed for it here."""
    join: Annotated[str, Meta(pattern=_JOIN)] = ""
    """A SIP call becomes a leg of an open call whose INVITE came from the same address, for the same account, and had
    the same value in this header (`X-Talk`, or `Session-ID` in either order) or header parameter (`From;x-refci`); if
    it is empty, it is a call of its own (docs/how-to/sip.md)."""


class PrivacyPattern(Section, frozen=True, kw_only=True):
    """A pattern whose matches are replaced by its name in brackets."""

    name: Name
    """This name, in brackets, replaces what the pattern matches."""
    pattern: Annotated[str, Meta(min_length=1)]
    """This regular expression (of the library `regex`) is matched in any case of letters."""


class Privacy(Section, frozen=True, kw_only=True):
    """Masking: these parts of texts and digits are removed before they are shown or stored."""

    cards: bool = True
    """Numbers of payment cards, written or spoken, are replaced by `[card]`; a partial shows at most six digits of what
    may become one."""
    patterns: tuple[PrivacyPattern, ...] = ()
    dtmf: Literal["show", "mask"] = "show"
    """With `mask`, keyed digits are hidden; who pressed a key, when and for how long is still shown."""
    mask_after_digits: tuple[str, ...] = ()
    """After one of these sequences of keys (`*9`), digits are masked, whether keyed or spoken."""
    mask_after_phrases: tuple[str, ...] = ()
    """After one of these phrases ("card number") has been said, digits are masked, whether keyed or spoken. A phrase
    may lie over a pause, and its numbers may be written in words or digits."""
    unmask_after_digits: tuple[str, ...] = ()
    """Masking ends after one of these sequences of keys."""
    unmask_after_phrases: tuple[str, ...] = ()
    """Masking ends after one of these phrases has been said, which are found like those of `mask_after_phrases`."""
    mask_s: Seconds = 60.0
    """Masking ends after this many seconds; 0 means that it lasts until the call ends."""


class Alerts(Section, frozen=True, kw_only=True):
    """Rules that raise `alert` events."""

    file: str = ""
    """Rules are read from this TOML file with `[[rules]]` (docs/how-to/alerts.md), and again whenever it changes."""
