"""Which engine serves, why, and how to get another. The only place that knows all engines; imports none until asked.

An engine is added with a line in `LANGUAGES`, a branch in `create`, and, if `auto` may choose it, one in `select`.
"""

from __future__ import annotations

from dataclasses import dataclass

from asr import languages, weights
from asr.aligner import Aligner
from asr.engine import Engine, EngineUnusable
from config.settings import Asr, Qwen

LANGUAGES: dict[str, tuple[str, ...]] = {"pocketsphinx": ("en",), "qwen": tuple(languages.QWEN3_ASR)}
"""By engine, known before it is loaded."""
_WEAKNESS = (
    "PocketSphinx: English only, meant for trying the path out; on 8 kHz telephone audio two words of three are"
    " wrong, on G.722 one of four"
)


@dataclass(frozen=True, slots=True)
class Selection:
    engine: str
    reason: str
    """One line for the log and the person who starts the worker."""


@dataclass(frozen=True, slots=True)
class Timing:
    languages: tuple[str, ...]
    """In which the words of a final get times; empty: there is no aligner."""
    reason: str
    """One line; empty when nobody asked."""


def select(settings: Asr) -> Selection:
    """The engine that `asr.engine` means on this machine. `auto` looks at what is installed and never downloads."""
    folder = weights.find(settings.model)
    partials = f"; partials by {settings.partials_model}" if settings.partials_model else ""
    if settings.engine == "qwen":
        where = str(folder) if folder is not None else weights.missing(settings.model)
        return Selection("qwen", f"asr.engine = 'qwen': {where}{partials}")
    if settings.engine == "pocketsphinx":
        return Selection("pocketsphinx", f"asr.engine = 'pocketsphinx'. {_WEAKNESS}")
    if folder is not None:
        return Selection("qwen", f"auto: {settings.model} is in {folder}{partials}")
    return Selection("pocketsphinx", f"auto: {weights.missing(settings.model)}. Until then {_WEAKNESS}")


def select_words(settings: Asr) -> Timing:
    """What `asr.words` means on this machine."""
    folder = weights.find(settings.aligner)
    if not settings.words or folder is None:
        return Timing((), f"asr.words is on, and {weights.missing(settings.aligner)}" if settings.words else "")
    can = languages.alignable()
    lacking = [f"{code} (needs {package})" for code, package in languages.SPLITTERS.items() if code not in can]
    without = f"; not {', '.join(lacking)}" if lacking else ""
    return Timing(can, f"{settings.aligner} is in {folder}, for {', '.join(can)}{without}")


def create(engine: str, asr: Asr, qwen: Qwen) -> Engine:
    """Build an engine; in the inference process only, since importing one may take seconds and hundreds of MB."""
    if engine == "pocketsphinx":
        from asr.pocketsphinx import PocketSphinxEngine

        return PocketSphinxEngine(asr.decoders)
    if engine == "qwen":
        from asr.qwen.build import build

        return build(asr, qwen)
    raise ValueError(f"no engine {engine!r}")


def create_aligner(asr: Asr, qwen: Qwen) -> Aligner | None:
    """Of `asr.words`; as `create`. Raises EngineUnusable."""
    if not select_words(asr).languages:
        return None
    try:
        from asr.qwen.aligner import build
    except ImportError as error:
        raise EngineUnusable(f"the aligner needs the extra `qwen`: pip install 'mediaworker[qwen]' ({error})") from None
    return build(asr, qwen)
