"""Whisper as an engine that can be chosen; see `asr.engines.plugin`."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from asr.engines.devices import gpus, usual_threads
from asr.engines.interface import EngineUnusable
from asr.engines.whisper import base
from config.settings import Asr, Qwen

if TYPE_CHECKING:
    from asr.engines.aligner import Aligner
    from asr.engines.interface import Engine
    from asr.engines.whisper.model import WhisperModel

log = structlog.get_logger("asr")
BASE = "base"
"""The value of `asr.whisper_model` that stands for the model that the setup brings."""
CODES = (
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fil fo fr gl gu ha haw he hi hr ht hu hy "
    "id is it ja jv ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa "
    "sd si sk sl sn so sq sr su sv sw ta te tg th tk tr tt uk ur uz vi yi yo zh"
)
languages = tuple(CODES.split())
words = False


def about(asr: Asr) -> str:
    return "Whisper base" if asr.whisper_model == BASE else f"Whisper in {asr.whisper_model}"


def missing(asr: Asr) -> str | None:
    if lacking := [name for name in ("ctranslate2", "tokenizers") if find_spec(name) is None]:
        return f"{' and '.join(lacking)} not installed: pip install 'mediaworker[whisper]'"
    if folder(asr) is None:
        if asr.whisper_model == BASE:
            return f"the model Whisper base is not on this machine: `mediaworker models pull {base.NAME}` downloads it"
        return f"asr.whisper_model: {asr.whisper_model} is no folder with a Whisper model for CTranslate2 (model.bin)"
    return None


def partials(asr: Asr) -> tuple[str, ...]:
    return ()


def create(asr: Asr, qwen: Qwen) -> Engine:
    from asr.engines.whisper.engine import WhisperEngine

    return WhisperEngine(load_model(asr), threads(asr), asr.languages)


def create_aligner(asr: Asr) -> Aligner:
    """The aligner, on the same model as an engine of this process. Raises EngineUnusable."""
    from asr.engines.whisper.aligner import WhisperAligner

    return WhisperAligner(load_model(asr))


def folder(asr: Asr) -> Path | None:
    """The folder of the model; None when it is not here."""
    if asr.whisper_model == BASE:
        return base.find()
    own = Path(asr.whisper_model).expanduser()
    return own if (own / "model.bin").is_file() else None


def threads(asr: Asr) -> int:
    return asr.threads or usual_threads()


def load_model(asr: Asr) -> WhisperModel:
    """The model of the settings, which an engine and an aligner of one process share. Raises EngineUnusable."""
    from asr.engines.whisper.model import load

    found = folder(asr)
    if found is None:
        raise EngineUnusable(missing(asr) or "no Whisper model")
    if asr.whisper_model == BASE:
        try:
            _verified(found)
        except base.BaseModelError as error:
            raise EngineUnusable(str(error)) from error
    device = asr.devices[0].partition(":")[0] if asr.devices else "auto"
    if device == "auto" and gpus():
        try:
            return load(found, "cuda", threads(asr))
        except EngineUnusable as error:
            log.warning("Whisper computes on the CPU", reason=str(error))
    return load(found, "cpu" if device == "auto" else device, threads(asr))


@cache
def _verified(folder: Path) -> None:
    """Raises BaseModelError. An engine and an aligner of one process ask, and the hashes take a third of a second."""
    base.verify(folder)
