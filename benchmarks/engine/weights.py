"""A Qwen3-ASR model of the published dimensions whose weights are noise: it computes as much, and means nothing.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen3ASRConfig, Qwen3ASRForConditionalGeneration
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor

from asr.engines.qwen.model.loader import LoadedModel
from asr.engines.qwen.model.prompt import AUDIO_PAD, END_OF_TEXT, IM_END
from benchmarks.engine.limit import PUBLISHED, Dimensions

TINY = "tiny"
SPREAD = 0.02
"""Standard deviation of the weights, as models begin their training."""


def configuration(name: str, folder: Path) -> Any:
    """`folder`: of the tiny model, whose configuration `tiny` is, and whose tokenizer all of them use."""
    library: Any = Qwen3ASRConfig
    config = library.from_pretrained(folder, local_files_only=True)
    if name == TINY:
        return config
    return library(
        audio_config=_audio(PUBLISHED[name]), text_config=_text(PUBLISHED[name]), audio_token_id=config.audio_token_id,
        pad_token_id=config.pad_token_id, eos_token_id=config.eos_token_id, tie_word_embeddings=True,
    )  # fmt: skip


def _audio(model: Dimensions) -> dict[str, Any]:
    return {
        "model_type": "qwen3_asr_encoder", "num_mel_bins": 128, "encoder_layers": model.encoder_layers,
        "encoder_attention_heads": model.encoder_heads, "encoder_ffn_dim": model.encoder_ffn,
        "d_model": model.encoder_width, "n_window": 50, "n_window_infer": 800, "output_dim": model.width,
        "downsample_hidden_size": model.channels,
    }  # fmt: skip


def _text(model: Dimensions) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "vocab_size": model.vocabulary, "hidden_size": model.width,
        "intermediate_size": model.ffn, "num_hidden_layers": model.layers, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads, "head_dim": model.head_width, "max_position_embeddings": 65_536,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }  # fmt: skip


def dimensions(config: Any) -> Dimensions:
    """The inverse of `configuration`, of any model."""
    audio, text = config.audio_config, config.get_text_config()
    return Dimensions(
        audio.encoder_layers, audio.d_model, audio.encoder_attention_heads, audio.encoder_ffn_dim, text.hidden_size,
        text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads, text.head_dim,
        text.intermediate_size, text.vocab_size, audio.downsample_hidden_size,
    )  # fmt: skip


def build(name: str, folder: Path, *, device: str, dtype: torch.dtype, seed: int = 1) -> LoadedModel:
    """On `device` from the beginning: nothing is read, and nothing copied there."""
    config = configuration(name, folder)
    with torch.device("meta"):
        model: Any = Qwen3ASRForConditionalGeneration(config)
    for parameter in model.parameters():  # the tables of positions stay in float32, as the library has them
        parameter.data = parameter.data.to(dtype)
    model = model.to_empty(device=device)
    torch.manual_seed(seed)
    with torch.no_grad():
        # The library's own: it fills in the tables of positions, too, which are no weights.
        model.apply(model._init_weights)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=SPREAD)
    model.tie_weights()
    model.model.audio_tower.set_attn_implementation("sdpa")
    library: Any = Qwen3ASRFeatureExtractor
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ends = tuple(tokenizer.convert_tokens_to_ids(token) for token in (IM_END, END_OF_TEXT))
    assert tokenizer.convert_tokens_to_ids(AUDIO_PAD) == config.audio_token_id
    return LoadedModel(model.eval(), tokenizer, library(feature_size=128), ends)


def words(tokenizer: Any) -> list[int]:
    """Ids that are a word each, and stay one when they stand in a row."""
    found = [(at, tokenizer.decode([at])) for at in range(len(tokenizer)) if at not in tokenizer.all_special_ids]
    return [at for at, text in found if text[:1] == " " and len(text) > 3 and text[1:].isalpha()]
