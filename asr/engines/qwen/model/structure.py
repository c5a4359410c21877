"""The engine's use of the inside of the library's models, in one place, and checked when a model is loaded.

`transformers` calls none of it an interface and may move it with any minor version. Where something has gone, the
engine refuses to start and names it, instead of failing in the middle of a call.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from asr.engines.interface import EngineUnusable

AUDIO = (
    "conv2d1.weight", "conv2d2.weight", "conv2d3.weight", "conv_out.weight", "n_window", "n_window_infer",
    "positional_embedding.positional_embedding", "ln_post.weight", "config.num_mel_bins", "config.d_model",
)  # fmt: skip
AUDIO_LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "self_attn.num_heads",
    "self_attn_layer_norm", "final_layer_norm", "activation_fn", "fc1", "fc2",
)  # fmt: skip
TEXT = ("embed_tokens.weight", "norm.weight", "rotary_emb.inv_freq", "rotary_emb.original_inv_freq")
TEXT_LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm.weight",
    "self_attn.k_norm.weight", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm.weight",
    "post_attention_layernorm.weight",
)  # fmt: skip
TOWER, PROJECTOR, LANGUAGE = "model.audio_tower", "model.multi_modal_projector", "model.language_model"
ROTARY = "model.language_model.rotary_emb"
SINUSOIDS = "model.audio_tower.positional_embedding"
BUFFERS = frozenset({f"{ROTARY}.inv_freq", f"{ROTARY}.original_inv_freq", f"{SINUSOIDS}.positional_embedding"})


def check(model: Any) -> None:
    """Raises EngineUnusable when a model of the library is not built as the engine expects."""
    paths = [PROJECTOR, f"{TOWER}.layers.0", f"{LANGUAGE}.layers.0"]
    paths += [f"{TOWER}.{name}" for name in AUDIO] + [f"{LANGUAGE}.{name}" for name in TEXT]
    paths += [f"{TOWER}.layers.0.{name}" for name in AUDIO_LAYER]
    paths += [f"{LANGUAGE}.layers.0.{name}" for name in TEXT_LAYER]
    missing = [path for path in paths if not _has(model, path)]
    if missing:
        raise EngineUnusable(f"{_library()} builds this model without {', '.join(missing[:3])}, which the engine uses")
    if unknown := sorted({name for name, _ in model.named_buffers()} - BUFFERS):
        raise EngineUnusable(f"{_library()} gives this model buffers that the engine does not know: {unknown[0]}")


def _library() -> str:
    return f"transformers {transformers.__version__}"


def _has(model: Any, path: str) -> bool:
    try:
        _get(model, path)
    except (AttributeError, IndexError):
        return False
    return True


def _get(model: Any, path: str) -> Any:
    for part in path.split("."):
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model


def compute_buffers(model: Any) -> None:
    """Replace all buffers, which no checkpoint stores, by those that the library computes in float32 on the CPU."""
    rotary, sinusoids = _get(model, ROTARY), _get(model, SINUSOIDS)
    with torch.device("cpu"):
        fresh = type(rotary)(rotary.config)
        waves = type(sinusoids)(*sinusoids.positional_embedding.shape)
    rotary.inv_freq, rotary.original_inv_freq = fresh.inv_freq, fresh.original_inv_freq
    sinusoids.positional_embedding = waves.positional_embedding
    for name, buffer in model.named_buffers():
        assert buffer.dtype == torch.float32, f"{name} is {buffer.dtype}"
