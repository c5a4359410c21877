"""The published structure (128 mels, chunks of 1 s, windows of 8 s, GQA, QK-norm, RoPE, tied head) in small widths."""

from __future__ import annotations

import torch
from transformers import Qwen2Tokenizer, Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

from tools.train_tiny.tokenizer import AUDIO_PAD, END_OF_TEXT, IM_END, TIMESTAMP


def configuration(tokenizer: Qwen2Tokenizer) -> Qwen3ASRConfig:
    ids = dict(zip((END_OF_TEXT, IM_END, AUDIO_PAD, TIMESTAMP), range(4), strict=True))
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ids}
    return Qwen3ASRConfig(
        audio_config={
            "model_type": "qwen3_asr_encoder",
            "num_mel_bins": 128,
            "n_window": 50,
            "n_window_infer": 800,
            "downsample_hidden_size": 16,
            "d_model": 96,
            "encoder_layers": 3,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 288,
            "output_dim": 96,
            "initializer_range": 0.05,
        },
        text_config={
            "model_type": "qwen3",
            "vocab_size": len(tokenizer),
            "hidden_size": 96,
            "intermediate_size": 288,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "initializer_range": 0.05,
            "tie_word_embeddings": True,
            "pad_token_id": ids[END_OF_TEXT],
            "eos_token_id": ids[IM_END],
        },
        audio_token_id=ids[AUDIO_PAD],
        timestamp_token_id=ids[TIMESTAMP],
        pad_token_id=ids[END_OF_TEXT],
        eos_token_id=[ids[END_OF_TEXT], ids[IM_END]],
        initializer_range=0.05,
        tie_word_embeddings=True,
    )


def build(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen3ASRForConditionalGeneration:
    torch.manual_seed(seed)
    model = Qwen3ASRForConditionalGeneration(configuration(tokenizer))
    settings = model.generation_config
    settings._from_model_config = False
    settings.do_sample, settings.max_new_tokens = False, 64
    settings.eos_token_id, settings.pad_token_id = model.config.eos_token_id, model.config.pad_token_id
    return model


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
