"""Which engine serves, why, and how to get another. The only place that knows all engines; imports none until asked.

An engine is added with a line in `LANGUAGES`, a branch in `create`, and, if `auto` may choose it, one in `select`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from asr import languages, weights
from asr.aligner import Aligner
from asr.engine import Engine, EngineUnusable
from config import ConfigError
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
    """The engine that `asr.engine` means on this machine. `auto` looks at what is installed and never downloads.

    Raises ConfigError when the engine that is asked for by name cannot run here.
    """
    partials = f"; partials by {settings.partials_model}" if settings.partials_model else ""
    lacking = missing_files("qwen", settings)
    if settings.engine == "qwen":
        if lacking is not None:
            raise lacking
        if packages := _missing_packages():
            raise ConfigError("asr.engine", "qwen", packages)
        return Selection("qwen", f"asr.engine = 'qwen': {weights.find(settings.model)}{partials}")
    if settings.engine == "pocketsphinx":
        return Selection("pocketsphinx", f"asr.engine = 'pocketsphinx'. {_WEAKNESS}")
    if weights.find(settings.model) is None:
        return Selection("pocketsphinx", f"auto: {weights.missing(settings.model)}. Until then {_WEAKNESS}")
    if lacking is not None:  # the model is there, and the one for partials is not: somebody has asked for it by name
        raise lacking
    if packages := _missing_packages():
        return Selection("pocketsphinx", f"auto: {settings.model} is here, but {packages}. Until then {_WEAKNESS}")
    return Selection("qwen", f"auto: {settings.model} is in {weights.find(settings.model)}{partials}")


def missing_files(engine: str, settings: Asr) -> ConfigError | None:
    """What the engine would not find if it were started now: a look at the file system, nothing is loaded."""
    if engine != "qwen":
        return None
    for key, model in (("asr.model", settings.model), ("asr.partials_model", settings.partials_model)):
        if model and weights.find(model) is None:
            return ConfigError(key, model, weights.missing(model))
    return None


def _missing_packages() -> str:
    """A sentence when Qwen3-ASR's libraries are not installed; looks for them without loading them."""
    lacking = [name for name in ("torch", "transformers") if find_spec(name) is None]
    return f"{' and '.join(lacking)} not installed: pip install 'mediaworker[qwen]'" if lacking else ""


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
