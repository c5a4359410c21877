"""Weights of a forced aligner from a folder, checked as `loader` checks those of the recogniser; in both layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import Qwen3ASRConfig, Qwen3ASRForTokenClassification
from transformers.utils import logging

from asr.engine import EngineUnusable, first_line
from asr.qwen.loader import AUDIO_KEYS, TEXT_KEYS, complete, extractor_of, listed, read_json, renamed, tokenizer_of

TIMESTAMP = "<timestamp>"
CLASS_MS = 80.0
"""Where the folder does not say."""


@dataclass(frozen=True, slots=True)
class Loaded:
    model: Any
    """`Qwen3ASRForTokenClassification`, in evaluation mode on its device."""
    tokenizer: Any
    extractor: Any
    class_ms: float
    """Length of one class of the model: class n is the time n * class_ms."""


def load(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Loaded:
    """Raises EngineUnusable."""
    described = read_json(folder / "config.json")
    quiet: Any = logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()  # what it would warn of is checked below, and refused
    thinker = described.get("thinker_config")
    if isinstance(thinker, dict) and "classify_num" in thinker:
        model = _original(folder, described, thinker, dtype)
    elif "Qwen3ASRForTokenClassification" in described.get("architectures", ()):
        model = _native(folder, dtype)
    else:
        raise EngineUnusable(f"{folder} holds no Qwen3-ForcedAligner")
    tokenizer = tokenizer_of(folder, model)
    if (known := tokenizer.convert_tokens_to_ids(TIMESTAMP)) != model.config.timestamp_token_id:
        wanted = model.config.timestamp_token_id
        raise EngineUnusable(f"{folder}: times stand at token {wanted} and {TIMESTAMP} is token {known}")
    extractor = extractor_of(folder, model)
    return Loaded(model.eval().to(device), tokenizer, extractor, _class_ms(folder, described))


def _native(folder: Path, dtype: torch.dtype) -> Any:
    library: Any = Qwen3ASRForTokenClassification
    try:
        model, report = library.from_pretrained(folder, dtype=dtype, output_loading_info=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
        raise EngineUnusable(f"{folder}: {first_line(error)}") from error
    complete(folder, report["missing_keys"], report["unexpected_keys"])
    if wrong := report.get("mismatched_keys"):
        names = listed([str(each) for each in wrong])
        raise EngineUnusable(f"{folder}: {names} of another shape than config.json says")
    return model


def _original(folder: Path, described: dict[str, Any], thinker: dict[str, Any], dtype: torch.dtype) -> Any:
    try:
        audio, text = thinker["audio_config"], thinker["text_config"]
        described_as: Any = Qwen3ASRConfig
        config = described_as(
            audio_config={"model_type": "qwen3_asr_encoder", **{key: audio[key] for key in AUDIO_KEYS}},
            text_config={
                "model_type": "qwen3",
                **{key: text[key] for key in TEXT_KEYS if key in text},
                "rope_parameters": {"rope_type": "default", "rope_theta": text.get("rope_theta", 1e6)},
            },
            audio_token_id=thinker["audio_token_id"],
            timestamp_token_id=described["timestamp_token_id"],
            num_labels=thinker["classify_num"],
        )
        library: Any = Qwen3ASRForTokenClassification
        model = library(config).to(dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnusable(f"{folder}/config.json: {first_line(error)}") from error
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineUnusable(f"{folder} has no *.safetensors file")
    try:
        tensors = {_place(name): tensor for file in files for name, tensor in load_file(file).items()}
        report = model.load_state_dict(tensors, strict=False)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise EngineUnusable(f"{folder}: {first_line(error)}") from error
    complete(folder, report.missing_keys, report.unexpected_keys)
    return model


def _place(name: str) -> str:
    """The head that says a class stands where the recogniser's head for words does."""
    return "score.weight" if name == "thinker.lm_head.weight" else renamed(name)


def _class_ms(folder: Path, described: dict[str, Any]) -> float:
    told = described.get("timestamp_segment_time")
    if told is None and (folder / "processor_config.json").is_file():
        told = read_json(folder / "processor_config.json").get("timestamp_segment_time")
    if told is None:
        return CLASS_MS
    if isinstance(told, bool) or not isinstance(told, int | float) or not told > 0:
        raise EngineUnusable(f"{folder}: timestamp_segment_time is {told!r}, and not a number of milliseconds")
    return float(told)
