"""The recognizer's encoder and decoder, one more layer, and a head over classes of 80 ms in the place of words."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import Qwen2Tokenizer, Qwen3ASRForConditionalGeneration
from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification, Qwen3ASRModel

from tools.train_tiny.model import configuration

CLASS_MS = 80
LABELS = 512
RECOGNIZER = Path(__file__).parents[2] / "models" / "qwen3-asr-tiny"
DECODER_LAYERS = 5


def build(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen3ASRForTokenClassification:
    torch.manual_seed(seed)
    config = configuration(tokenizer)
    text = config.text_config
    text.num_hidden_layers, text.layer_types = DECODER_LAYERS, ["full_attention"] * DECODER_LAYERS
    config.num_labels = LABELS
    model = Qwen3ASRForTokenClassification(config)
    # A tenth left out of so few dimensions costs more than it teaches.
    model.dropout.p = 0.0
    with torch.no_grad():
        model.score.weight.copy_(waves(text.hidden_size))
    return model


def recognizer() -> Qwen3ASRModel:
    """Without its head."""
    return Qwen3ASRForConditionalGeneration.from_pretrained(RECOGNIZER).model.eval()


def start(model: Qwen3ASRForTokenClassification) -> None:
    """From the recognizer. The layers that it has not begin as ones that add nothing."""
    known = recognizer()
    missing, unexpected = model.model.load_state_dict(known.state_dict(), strict=False)
    layers = len(known.language_model.layers)
    assert not unexpected and all(f"layers.{layers}." in name for name in missing), (missing, unexpected)
    for layer in model.model.language_model.layers[layers:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.model.audio_tower.requires_grad_(False)


def waves(width: int) -> torch.Tensor:
    """(LABELS, width): classes as a clock's hands, of 4 to 1,000 classes a turn. Neighbours look alike from the start,
    and 512 independent ones need not be learnt."""
    turns = torch.logspace(math.log10(4), 3, width // 2)
    angles = torch.arange(LABELS)[:, None] * (2 * math.pi / turns)
    return torch.cat([angles.sin(), angles.cos()], dim=1) * 0.3
