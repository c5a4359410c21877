"""Loads weights, tokenizer and filters of a recogniser or an aligner from a folder. What does not fit is refused with a
sentence.

Checkpoints come in two layouts: that of `transformers` (`Qwen/…-hf`) and that of the official package. The library
reads the second kind without complaint and fills what it does not find with random numbers: keys are counted here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    Qwen3ASRConfig,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRForTokenClassification,
)  # fmt: skip
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor
from transformers.utils import logging

from asr.engines.interface import EngineUnusable, first_line
from asr.engines.qwen.model.prompt import AUDIO_PAD, END_OF_TEXT, IM_END, SPECIAL

_AUDIO_KEYS = (
    "num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model", "n_window",
    "n_window_infer", "output_dim", "downsample_hidden_size",
)  # fmt: skip
_TEXT_KEYS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
BUFFERS = frozenset({
    "model.language_model.rotary_emb.inv_freq", "model.language_model.rotary_emb.original_inv_freq",
    "model.audio_tower.positional_embedding.positional_embedding",
})  # fmt: skip
"""The names of all buffers of the library's models."""
TIMESTAMP = "<timestamp>"
CLASS_MS = 80.0
"""`LoadedAligner.class_ms` where the folder does not say."""
SHOWN = 3
"""Keys named in an error."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Any
    """`Qwen3ASRForConditionalGeneration`, in evaluation mode on its device."""
    tokenizer: Any
    extractor: Any
    ends: tuple[int, ...]
    """Ids after which an answer is over."""


@dataclass(frozen=True, slots=True)
class LoadedAligner:
    model: Any
    """`Qwen3ASRForTokenClassification`, in evaluation mode on its device."""
    tokenizer: Any
    extractor: Any
    class_ms: float
    """Length of one class of the model: class n is the time n * class_ms."""


def load(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load a recogniser. Raises EngineUnusable."""
    described = read_json(folder / "config.json")
    if "thinker_config" not in described and described.get("model_type") != "qwen3_asr":
        raise EngineUnusable(f"{folder} holds a {described.get('model_type', 'nameless')} model, not a Qwen3-ASR one")
    model, tokenizer, extractor = _load(folder, Qwen3ASRForConditionalGeneration, described, dtype)
    ends = tuple(tokenizer.convert_tokens_to_ids(token) for token in (IM_END, END_OF_TEXT))
    return LoadedModel(model.to(device), tokenizer, extractor, ends)


def load_aligner(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> LoadedAligner:
    """Load a forced aligner. Raises EngineUnusable."""
    described = read_json(folder / "config.json")
    if "classify_num" not in (described.get("thinker_config") or ()) and (
        "Qwen3ASRForTokenClassification" not in described.get("architectures", ())
    ):
        raise EngineUnusable(f"{folder} holds no Qwen3-ForcedAligner")
    model, tokenizer, extractor = _load(folder, Qwen3ASRForTokenClassification, described, dtype)
    known, expected = tokenizer.convert_tokens_to_ids(TIMESTAMP), model.config.timestamp_token_id
    if known != expected:
        raise EngineUnusable(f"{folder}: times stand at token {expected} and {TIMESTAMP} is token {known}")
    class_ms = described.get("timestamp_segment_time")
    if class_ms is None and (folder / "processor_config.json").is_file():
        class_ms = read_json(folder / "processor_config.json").get("timestamp_segment_time")
    if class_ms is None:
        class_ms = CLASS_MS
    if isinstance(class_ms, bool) or not isinstance(class_ms, int | float) or not class_ms > 0:
        raise EngineUnusable(f"{folder}: timestamp_segment_time is {class_ms!r}, and not a number of milliseconds")
    return LoadedAligner(model.to(device), tokenizer, extractor, float(class_ms))


def _load(folder: Path, library: Any, described: dict[str, Any], dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """A model of the class `library` with its tokenizer and its feature extractor. `described`: its config.json."""
    quiet: Any = logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()  # what it would warn of is checked here, and refused
    read = _original if "thinker_config" in described else _native
    model = _settled(read(folder, library, described, dtype)).eval()
    return model, _tokenizer(folder, model), _extractor(folder, model)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineUnusable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise EngineUnusable(f"{path} is not JSON") from None
    if not isinstance(found, dict):
        raise EngineUnusable(f"{path} is not a JSON object")
    return found


def _native(folder: Path, library: Any, described: dict[str, Any], dtype: torch.dtype) -> Any:
    """Read a folder in the library's own layout."""
    try:
        model, report = library.from_pretrained(folder, dtype=dtype, output_loading_info=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
        raise EngineUnusable(f"{folder}: {first_line(error)}") from error
    _complete(folder, report["missing_keys"], report["unexpected_keys"])
    return model


def _settled(model: Any) -> Any:
    """Replace all buffers, which no checkpoint stores, by those that the library computes in float32 on the CPU.

    They stay in float32 whatever precision the weights have: frequencies of rotary embeddings in bfloat16 move
    positions by up to 0.4 %, which is eight positions at 2,000. A buffer that only a later version of the library has
    would have been rounded without an error, so the model is refused.
    """
    if unknown := sorted({name for name, _ in model.named_buffers()} - BUFFERS):
        library = f"transformers {transformers.__version__}"
        raise EngineUnusable(f"{library} gives this model buffers that the engine does not know: {unknown[0]}")
    rotary, sinusoids = model.model.language_model.rotary_emb, model.model.audio_tower.positional_embedding
    with torch.device("cpu"):
        fresh = type(rotary)(rotary.config)
        waves = type(sinusoids)(*sinusoids.positional_embedding.shape)
    rotary.inv_freq, rotary.original_inv_freq = fresh.inv_freq, fresh.original_inv_freq
    sinusoids.positional_embedding = waves.positional_embedding
    for name, buffer in model.named_buffers():
        assert buffer.dtype == torch.float32, f"{name} is {buffer.dtype}"
    return model.requires_grad_(False)


def _original(folder: Path, library: Any, described: dict[str, Any], dtype: torch.dtype) -> Any:
    """Read a folder in the official package's layout."""
    try:
        config = _configuration(library, described)
        with torch.device("meta"):  # nothing is drawn at random for what the files bring
            model = library(config)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineUnusable(f"{folder}/config.json: {first_line(error)}") from error
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineUnusable(f"{folder} has no *.safetensors file")
    # The aligner's head, which says a class, stands where the recogniser's head for words does.
    head = "score.weight" if library is Qwen3ASRForTokenClassification else "lm_head.weight"
    try:
        tensors = {
            renamed(name, head): tensor.to(dtype) if tensor.is_floating_point() else tensor
            for file in files
            for name, tensor in load_file(file).items()
        }
        report = model.load_state_dict(tensors, strict=False, assign=True)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise EngineUnusable(f"{folder}: {first_line(error)}") from error
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    _complete(folder, set(report.missing_keys) - tied, report.unexpected_keys)
    return model


def _configuration(library: Any, described: dict[str, Any]) -> Any:
    """The library's configuration, from that of the official package."""
    thinker = described["thinker_config"]
    audio, text = thinker["audio_config"], thinker["text_config"]
    if library is Qwen3ASRForTokenClassification:
        own = {"timestamp_token_id": described["timestamp_token_id"], "num_labels": thinker["classify_num"]}
    else:
        own = {"tie_word_embeddings": bool(text.get("tie_word_embeddings", True))}
    return Qwen3ASRConfig(
        audio_config={"model_type": "qwen3_asr_encoder", **{key: audio[key] for key in _AUDIO_KEYS}},
        text_config={
            "model_type": "qwen3",
            **{key: text[key] for key in _TEXT_KEYS if key in text},
            "rope_parameters": {"rope_type": "default", "rope_theta": text.get("rope_theta", 1e6)},
        },
        audio_token_id=thinker["audio_token_id"],
        **own,
    )


def renamed(name: str, head: str = "lm_head.weight") -> str:
    """A tensor's name in the library's layout, from that of the official package."""
    name = name.removeprefix("thinker.")
    if name == "lm_head.weight":
        return head
    name = name.replace("audio_tower.proj1", "model.multi_modal_projector.linear_1")
    name = name.replace("audio_tower.proj2", "model.multi_modal_projector.linear_2")
    if name.startswith("audio_tower."):
        return f"model.{name}"
    if name.startswith("model.") and not name.startswith("model.multi_modal"):
        return f"model.language_model.{name.removeprefix('model.')}"
    return name


def _complete(folder: Path, missing: Any, unexpected: Any) -> None:
    for kind, keys in (("lacks", missing), ("has, and should not,", unexpected)):
        if keys:
            rest = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
            raise EngineUnusable(f"{folder}: the checkpoint {kind} {', '.join(sorted(keys)[:SHOWN])}{rest}")


def _tokenizer(folder: Path, model: Any) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineUnusable(f"{folder}: no usable tokenizer ({first_line(error)})") from error
    unknown = tokenizer.unk_token_id
    for token in SPECIAL:
        ids = tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or (ids[0] == unknown and token != END_OF_TEXT):
            raise EngineUnusable(f"{folder}: the tokenizer does not know {token}: it is not this model's")
    config = model.config
    if (audio := tokenizer.convert_tokens_to_ids(AUDIO_PAD)) != config.audio_token_id:
        raise EngineUnusable(f"{folder}: audio goes to token {config.audio_token_id} and {AUDIO_PAD} is token {audio}")
    vocabulary = config.get_text_config().vocab_size
    if len(tokenizer) > vocabulary:
        raise EngineUnusable(f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model {vocabulary}")
    return tokenizer


def _extractor(folder: Path, model: Any) -> Any:
    """The library's own, whose values the model was trained with; what the folder says must agree."""
    library: Any = Qwen3ASRFeatureExtractor
    extractor = library(feature_size=model.config.audio_config.num_mel_bins)
    stored: dict[str, Any] = {}
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            found = read_json(folder / name)
            stored |= found.get("feature_extractor") or found
    for key in ("feature_size", "sampling_rate", "hop_length", "n_fft"):
        if key in stored and stored[key] != getattr(extractor, key):
            raise EngineUnusable(f"{folder}: {key} is {stored[key]}, and {getattr(extractor, key)} is what is known")
    return extractor
