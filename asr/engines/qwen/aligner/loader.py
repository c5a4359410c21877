"""Weights of a forced aligner from a folder, checked as `loader` checks those of the recogniser; in both layouts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ASRConfig, Qwen3ASRForTokenClassification

from asr.engines.interface import EngineUnusable
from asr.engines.qwen.model.loader import extractor_of, native, original, parts, read_json, renamed, tokenizer_of

TIMESTAMP = "<timestamp>"
CLASS_MS = 80.0
"""Where the folder does not say."""


@dataclass(frozen=True, slots=True)
class LoadedAligner:
    model: Any
    """`Qwen3ASRForTokenClassification`, in evaluation mode on its device."""
    tokenizer: Any
    extractor: Any
    class_ms: float
    """Length of one class of the model: class n is the time n * class_ms."""


def load(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedAligner:
    """Raises EngineUnusable."""
    described = read_json(folder / "config.json")
    thinker = described.get("thinker_config")
    if isinstance(thinker, dict) and "classify_num" in thinker:
        configuration = partial(_configuration, described, thinker)
        model = original(folder, Qwen3ASRForTokenClassification, configuration, dtype, _place)
    elif "Qwen3ASRForTokenClassification" in described.get("architectures", ()):
        model = native(folder, Qwen3ASRForTokenClassification, dtype)
    else:
        raise EngineUnusable(f"{folder} holds no Qwen3-ForcedAligner")
    tokenizer = tokenizer_of(folder, model)
    if (known := tokenizer.convert_tokens_to_ids(TIMESTAMP)) != model.config.timestamp_token_id:
        expected = model.config.timestamp_token_id
        raise EngineUnusable(f"{folder}: times stand at token {expected} and {TIMESTAMP} is token {known}")
    extractor = extractor_of(folder, model)
    return LoadedAligner(model.eval().to(device), tokenizer, extractor, _class_ms(folder, described))


def _configuration(described: dict[str, Any], thinker: dict[str, Any]) -> Any:
    library: Any = Qwen3ASRConfig
    return library(
        **parts(thinker), timestamp_token_id=described["timestamp_token_id"], num_labels=thinker["classify_num"]
    )


def _place(name: str) -> str:
    """The head that says a class stands where the recogniser's head for words does."""
    return "score.weight" if name == "thinker.lm_head.weight" else renamed(name)


def _class_ms(folder: Path, described: dict[str, Any]) -> float:
    class_ms = described.get("timestamp_segment_time")
    if class_ms is None and (folder / "processor_config.json").is_file():
        class_ms = read_json(folder / "processor_config.json").get("timestamp_segment_time")
    if class_ms is None:
        return CLASS_MS
    if isinstance(class_ms, bool) or not isinstance(class_ms, int | float) or not class_ms > 0:
        raise EngineUnusable(f"{folder}: timestamp_segment_time is {class_ms!r}, and not a number of milliseconds")
    return float(class_ms)
