"""The layers of both models with fewer, larger operations: what reads the same input is one matrix.

A decoding step is so little arithmetic that starting the operations takes longer than they do: of eight utterances the
library's text layer, with attention for each of them, starts 87, and this one 25. Only `Linear` modules
hold large weights, so these are what can be quantised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asr.engines.qwen.device.kernels import Kernels, Rows, Windows
from asr.engines.qwen.model.kv_cache import KvCache
from asr.engines.qwen.model.quantise import use


def fuse(model: Any) -> None:
    """Join the projections of all layers; the library's own forward of these modules is gone. Once is enough."""
    for layer in model.model.language_model.layers:
        _join(layer.self_attn, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        _join(layer.mlp, "gate_up_proj", ("gate_proj", "up_proj"))
    fuse_audio(model)


def fuse_audio(model: Any) -> None:
    """Join the projections of the audio tower alone."""
    for layer in model.model.audio_tower.layers:
        _join(layer.self_attn, "qkv_proj", ("q_proj", "k_proj", "v_proj"))


def _join(module: Any, name: str, names: Sequence[str]) -> None:
    if hasattr(module, name):
        return
    parts = [getattr(module, each) for each in names]
    biases = [part.bias for part in parts if part.bias is not None]
    assert len(biases) in (0, len(parts)), "with a bias, or without one"
    out = sum(part.out_features for part in parts)
    joined = nn.Linear(parts[0].in_features, out, bias=bool(biases), device="meta")
    joined.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
    if biases:
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    for each in names:
        delattr(module, each)
    setattr(module, name, joined)


class TextLayers:
    """Qwen3 over packed positions: their keys and values go to pages, and attention reads them there."""

    def __init__(self, text: Any, cache: KvCache, kernels: Kernels) -> None:
        """`text`: the library's `Qwen3Model`, fused."""
        config = text.config
        self.heads, self._fewer, self._width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self._eps = config.rms_norm_eps
        self._layers = list(text.layers)
        use(self._layers, kernels)
        self._norms = [*(layer.input_layernorm.weight for layer in self._layers), text.norm.weight]
        self._cache, self._kernels = cache, kernels
        weight = text.embed_tokens.weight
        positions = torch.arange(cache.row_pages * cache.page, device=weight.device)
        cos, sin = text.rotary_emb(weight[:1], positions[None])
        self._cos, self._sin = cos[0], sin[0]
        # Queries and keys are normalised together.
        self._head_norms = [
            torch.cat([each.q_norm.weight.expand(self.heads, -1), each.k_norm.weight.expand(self._fewer, -1)])
            for each in (layer.self_attn for layer in self._layers)
        ]

    def __call__(self, hidden: Tensor, positions: Tensor, slot_mapping: Tensor, rows: Rows) -> Tensor:
        """`hidden`: (positions, width). `slot_mapping`: of all positions of all pages, one after the other, those of
        the new keys and values."""
        kernels, eps = self._kernels, self._eps
        cos, sin = self._cos[positions], self._sin[positions]
        plan = kernels.plan(rows, len(hidden), self.heads // self._fewer)
        hidden, normal = kernels.add_norm(hidden, None, self._norms[0], eps)
        for number, layer in enumerate(self._layers):
            keys, values = self._cache.keys[number], self._cache.values[number]
            projected = layer.self_attn.qkv_proj(normal).view(len(hidden), -1, self._width)
            query = kernels.rotate(projected, self._head_norms[number], cos, sin, eps, slot_mapping, keys, values)
            attended = kernels.attend(query, keys, values, rows, plan)
            more = layer.self_attn.o_proj(attended.reshape(len(hidden), -1))
            hidden, normal = kernels.add_norm(hidden, more, layer.post_attention_layernorm.weight, eps)
            more = layer.mlp.down_proj(kernels.silu_mul(layer.mlp.gate_up_proj(normal)))
            hidden, normal = kernels.add_norm(hidden, more, self._norms[number + 1], eps)
        return normal


class AudioLayers:
    """The audio tower behind its convolutions, and the projection to the text model's width."""

    def __init__(self, tower: Any, project: Any, kernels: Kernels) -> None:
        """Both the library's modules, fused."""
        self._tower, self._project, self._kernels = tower, project, kernels
        use(tower.layers, kernels)

    def __call__(self, hidden: Tensor, windows: Windows) -> Tensor:
        """`hidden`: (tokens, width) of windows one after the other."""
        plan = self._kernels.plan_windows(windows, len(hidden))
        for layer in self._tower.layers:
            attend = layer.self_attn
            projected = attend.qkv_proj(layer.self_attn_layer_norm(hidden)).view(len(hidden), 3, attend.num_heads, -1)
            query, key, value = projected.unbind(1)
            attended = self._kernels.attend_windows(query, key, value, windows, plan)
            hidden = hidden + attend.out_proj(attended.reshape(len(hidden), -1))
            wide = layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden)))
            hidden = hidden + layer.fc2(wide)
            if hidden.dtype == torch.float16:
                most = torch.finfo(hidden.dtype).max - 1000
                hidden = hidden.clamp(-most, most)
        out: Tensor = self._project(self._tower.ln_post(hidden))
        return out
