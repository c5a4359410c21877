"""Which engine serves, why, and how to get another. The only place that knows all engines; imports none until asked.

An engine is added with a line in `LANGUAGES`, a branch in `create`, and, if `auto` may choose it, one in `select`.
"""

from __future__ import annotations

from dataclasses import dataclass

from asr.engine import Engine
from config.settings import Asr

LANGUAGES: dict[str, tuple[str, ...]] = {"pocketsphinx": ("en",)}
"""By engine, known before it is loaded."""


@dataclass(frozen=True, slots=True)
class Selection:
    engine: str
    reason: str
    """One line for the log and the person who starts the worker."""


def select(settings: Asr) -> Selection:
    """The engine that `asr.engine` means on this machine. `auto` looks at what is installed and never downloads."""
    weakness = (
        "PocketSphinx: English only, meant for trying the path out; on 8 kHz telephone audio two words of three are"
        " wrong, on G.722 one of four"
    )
    if settings.engine == "auto":
        return Selection("pocketsphinx", f"auto: this version has no other engine (Qwen3-ASR comes next). {weakness}")
    return Selection(settings.engine, f"asr.engine = {settings.engine!r}. {weakness}")


def create(engine: str, *, decoders: int) -> Engine:
    """Build an engine; in the inference process only, since importing one may take seconds and hundreds of MB."""
    if engine == "pocketsphinx":
        from asr.pocketsphinx import PocketSphinxEngine

        return PocketSphinxEngine(decoders)
    raise ValueError(f"no engine {engine!r}")
