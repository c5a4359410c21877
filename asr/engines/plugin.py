"""A plug-in describes an engine before it is loaded; this module finds the plug-ins.

The built-in engines and those of other packages have the same interface. A package offers its own under the entry point
group `mediaworker.engines`, by the name that `asr.engine` selects it with; docs/how-to/engines.md shows a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar

from asr import languages
from asr.engines.interface import Engine, described
from config import ConfigError
from config.settings import Asr, Qwen

GROUP = "mediaworker.engines"
Answer = TypeVar("Answer")
BUILT_IN = {name: f"asr.engines.{name}.plugin" for name in ("moonshine", "whisper", "mixed", "qwen", "openai")}


class Plugin(Protocol):
    """An engine that can be chosen: a module, as the built-in ones, or any other object. The media process imports its
    module, which therefore imports nothing heavy."""

    languages: tuple[str, ...]
    """ISO 639 codes that the engine can be asked for. A call or file in another language is refused."""
    words: bool
    """The engine's answers have the times of their words, so that `asr.word_timestamps` needs no aligner."""

    def about(self, asr: Asr) -> str:
        """A phrase for the log line that says which engine serves."""

    def missing(self, asr: Asr) -> str | None:
        """The reason why the engine cannot run on this machine, and what to do about it; None when it can. Only the
        installed packages and the file system are checked; nothing is loaded."""

    def create(self, asr: Asr, qwen: Qwen) -> Engine:
        """Build the engine, in the inference process: imports belong in here. `qwen` are the settings of the engine of
        that name. Raises `asr.engines.interface.EngineUnusable` when it cannot be built on this machine."""


_INTERFACE = ("languages", "words", "about", "missing", "create")


def names() -> list[str]:
    """The names of all engines that are installed here, the built-in ones first."""
    return [*BUILT_IN, *sorted(each.name for each in entry_points(group=GROUP) if each.name not in BUILT_IN)]


@cache
def find(name: str) -> Plugin:
    """The engine of this name. Raises ConfigError when there is none, or when its plug-in cannot be used."""
    if name in BUILT_IN:
        point = EntryPoint(name, BUILT_IN[name], GROUP)
    else:
        found = tuple(entry_points(group=GROUP, name=name))
        if not found:
            raise ConfigError("asr.engine", name, f"there is no engine of this name; there are {', '.join(names())}")
        point = found[0]
    try:
        plugin: Plugin = point.load()
    except Exception as error:  # somebody else's module: what it raises is not known
        why = f"its plug-in {point.value} cannot be imported ({described(error)})"
        raise ConfigError("asr.engine", name, why) from error
    if lacking := [each for each in _INTERFACE if not hasattr(plugin, each)]:
        why = f"its plug-in {point.value} has no {', '.join(lacking)}: see docs/how-to/engines.md"
        raise ConfigError("asr.engine", name, why)
    codes = plugin.languages
    if not codes or isinstance(codes, str) or [code for code in codes if languages.base(code) != code]:
        why = f"its plug-in {point.value} has {codes!r} for languages: they are ISO 639 codes, as in ('en', 'de')"
        raise ConfigError("asr.engine", name, why)
    return plugin


def about(name: str, asr: Asr) -> str:
    """The phrase of `Plugin.about`. Raises ConfigError when the plug-in fails."""
    return _ask(name, lambda plugin: plugin.about(asr))


def missing(name: str, asr: Asr) -> str | None:
    """The reason of `Plugin.missing`. Raises ConfigError when the plug-in fails."""
    return _ask(name, lambda plugin: plugin.missing(asr))


def partial_languages(name: str, asr: Asr) -> tuple[str, ...]:
    """The languages whose partials come as often as `asr.partial_ms` says: those of the optional method
    `partials(asr)` of a plug-in, and all languages of one without it, or of one that is not installed here."""
    with suppress(ConfigError):
        plugin = find(name)
        if (partials := getattr(plugin, "partials", None)) is not None:
            return tuple(partials(asr))
        return plugin.languages
    return ()


def _ask(name: str, question: Callable[[Plugin], Answer]) -> Answer:
    plugin = find(name)
    try:
        return question(plugin)
    except Exception as error:
        raise ConfigError("asr.engine", name, f"its plug-in has failed ({described(error)})") from error
