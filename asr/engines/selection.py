"""Selects the engine that serves, with the reason and the way to another. No engine is loaded: `asr.engines.plugin`
finds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asr import languages
from asr.engines import plugin, weights
from config import ConfigError
from config.settings import Asr

QWEN_ALIGNER = "Qwen/Qwen3-ForcedAligner-0.6B"
DETECTING = ("mixed", "whisper")
"""The engines that choose among `asr.languages`."""


@dataclass(frozen=True, slots=True)
class Selection:
    engine: str
    reason: str
    """One line for the log and the person who starts the worker."""


@dataclass(frozen=True, slots=True)
class Timing:
    languages: tuple[str, ...]
    """The languages in which the words of a final get times; empty when nothing times them."""
    reason: str
    """One line; empty when nobody asked."""
    aligner: str = ""
    """The aligner that times them: `qwen` or `whisper`; empty where the engine does it, and where nothing does."""


def select(settings: Asr) -> Selection:
    """The engine that `asr.engine` means on this machine. `auto` chooses from what is installed and never downloads.

    Raises ConfigError when there is no engine of that name, or when it cannot run here.
    """
    name = settings.engine
    if name != "auto":
        if (lacking := missing(name, settings)) is not None:
            raise lacking
        return _selected(name, settings, f"asr.engine = {name!r}: {plugin.about(name, settings)}")
    if weights.find(settings.model) is None:
        hub = weights.is_hub_name(settings.model)
        why = f"`mediaworker models pull {settings.model}`" if hub else weights.missing(settings.model)
    elif (lacking := _missing_weights(settings)) is not None:
        raise lacking  # the model is there, and the one for partials is not: somebody has asked for it by name
    elif packages := plugin.missing("qwen", settings):
        why = f"{settings.model} is here, but {packages}"
    else:
        return _selected("qwen", settings, f"auto: Qwen3-ASR in {plugin.about('qwen', settings)}")
    lacks = {name: plugin.missing(name, settings) for name in ("moonshine", "whisper")}
    if best := next((name for name in ("mixed", "moonshine", "whisper") if not plugin.missing(name, settings)), None):
        others = "".join(f". No {name.title()}: {lacking}" for name, lacking in lacks.items() if lacking)
        reason = f"auto: {plugin.about(best, settings)}{others}. For Qwen3-ASR: {why}"
        return _selected(best, settings, reason)
    if weights.find(settings.model) is None:
        why = weights.missing(settings.model)
    raise ConfigError(
        "asr.engine", "auto", f"no engine can run here: {'; '.join(map(str, lacks.values()))}; for Qwen3-ASR: {why}"
    )


def _selected(engine: str, settings: Asr, reason: str) -> Selection:
    known = plugin.find(engine).languages
    if why := unknown_language(settings.language, engine, known):
        raise ConfigError("asr.language", settings.language, f"{why} ({reason})")
    if engine in DETECTING:
        for code in settings.languages:
            if why := unknown_language(code, engine, known):
                raise ConfigError("asr.languages", code, why)
    return Selection(engine, reason)


def check(settings: Asr) -> None:
    """Refuse what is wrong on every machine with these packages, whatever else is on it. Raises ConfigError."""
    if (name := settings.engine) != "auto":
        _selected(name, settings, f"asr.engine = {name!r}")


def unknown_language(code: str, engine: str, known: Iterable[str]) -> str:
    """A sentence for somebody who asks the engine for a language that it does not know. Empty when it knows it, or when
    the code is empty, which leaves the language to the engine."""
    if not code or languages.base(code) in known:
        return ""
    return f"the engine {engine} does not know the language {code!r}; it knows {', '.join(sorted(known))}"


def missing(engine: str, settings: Asr) -> ConfigError | None:
    """The reason why the engine could not start now; only packages and files are checked, and nothing is loaded."""
    if engine == "qwen" and (lacking := _missing_weights(settings)) is not None:
        return lacking
    try:
        why = plugin.missing(engine, settings)
    except ConfigError as error:
        return error
    return ConfigError("asr.engine", engine, why) if why is not None else None


def _missing_weights(settings: Asr) -> ConfigError | None:
    for key, model in (("asr.model", settings.model), ("asr.partials_model", settings.partials_model)):
        if model and weights.find(model) is None:
            return ConfigError(key, model, weights.missing(model))
    return None


def qwen_aligner(settings: Asr) -> str:
    """The name or folder of Qwen's aligner that the settings mean, whether or not it is here."""
    return QWEN_ALIGNER if settings.aligner == "auto" else settings.aligner


def select_words(settings: Asr, engine: str = "") -> Timing:
    """The languages in which finals get word timestamps with this engine, and what times them.

    A Whisper that is loaded anyway does so for files whether or not `asr.word_timestamps` asks for the words of calls.
    Raises ConfigError when there is no such engine.
    """
    if not settings.word_timestamps and engine not in DETECTING:
        return Timing((), "")
    if engine and (chosen := plugin.find(engine)).words:
        return Timing(chosen.languages, f"the engine {engine} tells them")
    if not settings.word_timestamps:
        return Timing(plugin.find("whisper").languages, "Whisper times those of files", "whisper")
    model = qwen_aligner(settings)
    if settings.aligner != "whisper" and (folder := weights.find(model)) is not None:
        can = languages.alignable()
        lacking = [f"{code} (needs {package})" for code, package in languages.SPLITTERS.items() if code not in can]
        without = f"; not {', '.join(lacking)}" if lacking else ""
        return Timing(can, f"{model} is in {folder}, for {', '.join(can)}{without}", "qwen")
    if settings.aligner not in ("auto", "whisper"):
        return Timing((), f"asr.word_timestamps is on, and {weights.missing(model)}")
    if lacks := plugin.missing("whisper", settings):
        return Timing((), f"asr.word_timestamps is on, and {lacks}; {weights.missing(QWEN_ALIGNER)}")
    return Timing(plugin.find("whisper").languages, f"{plugin.about('whisper', settings)} times them", "whisper")
