"""Qwen3-ASR as an engine that can be chosen; see `asr.engines.plugin`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from asr.engines import weights
from asr.engines.interface import EngineUnusable
from asr.languages import QWEN3_ASR
from config.settings import Asr, Qwen

if TYPE_CHECKING:
    from asr.engines.aligner import Aligner
    from asr.engines.interface import Engine

languages = tuple(QWEN3_ASR)
words = False


def about(asr: Asr) -> str:
    partials = f"; partials by {asr.partials_model}" if asr.partials_model else ""
    return f"{weights.find(asr.model)}{partials}"


def missing(asr: Asr) -> str | None:
    """The packages that are missing; `asr.engines.selection` checks the weights."""
    lacking = [name for name in ("torch", "transformers") if find_spec(name) is None]
    return f"{' and '.join(lacking)} not installed: pip install 'mediaworker[qwen]'" if lacking else None


def create(asr: Asr, qwen: Qwen) -> Engine:
    from asr.engines.qwen.build import build

    return build(asr, qwen)


def create_aligner(asr: Asr, qwen: Qwen) -> Aligner:
    """The aligner Qwen3-ForcedAligner. Raises EngineUnusable."""
    try:
        from asr.engines.qwen.aligner import build
    except ImportError as error:
        raise EngineUnusable(f"the aligner needs the extra `qwen`: pip install 'mediaworker[qwen]' ({error})") from None
    return build(asr, qwen)
