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
from torch.nn import functional

from asr.engines.qwen.device.interface import Attention, Spans, Windows
from asr.engines.qwen.slots import Slots


def fuse(model: Any) -> None:
    """Join the projections of all layers; the library's own forward of these modules is gone. Once is enough."""
    for layer in model.model.language_model.layers:
        _join(layer.self_attn, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        _join(layer.mlp, "gate_up_proj", ("gate_proj", "up_proj"))
    fuse_audio(model)


def fuse_audio(model: Any) -> None:
    """Those of the audio tower alone."""
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
    """Qwen3 over packed positions: their keys and values go into slots, and attention reads them there."""

    def __init__(self, text: Any, memory: Slots, attention: Attention) -> None:
        """`text`: the library's `Qwen3Model`, fused."""
        config = text.config
        self._heads, self._fewer, self._width = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim
        )  # fmt: skip
        self._eps = config.rms_norm_eps
        self._layers, self._norm = list(text.layers), text.norm.weight
        self._memory, self._attention = memory, attention
        weight = text.embed_tokens.weight
        positions = torch.arange(memory.keys.shape[2], device=weight.device)
        cos, sin = text.rotary_emb(weight[:1], positions[None])
        self._cos, self._sin = cos[0], sin[0]
        # Of queries and keys, which are normalised and turned together.
        self._turned = [
            torch.cat(
                [
                    layer.self_attn.q_norm.weight.expand(self._heads, -1),
                    layer.self_attn.k_norm.weight.expand(self._fewer, -1),
                ]
            )
            for layer in self._layers
        ]

    def __call__(self, hidden: Tensor, positions: Tensor, where: Tensor, spans: Spans) -> Tensor:
        """`hidden`: (positions, width). `where`: of all positions of all slots, one after the other, those of the new
        keys and values."""
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        heads, both, width = self._heads, self._heads + self._fewer, self._width
        plan = self._attention.plan(spans, self._memory.keys[0], len(hidden), heads)
        for number, layer in enumerate(self._layers):
            keys, values = self._memory.keys[number], self._memory.values[number]
            projected = layer.self_attn.qkv_proj(self._normal(hidden, layer.input_layernorm.weight))
            projected = projected.view(len(hidden), -1, width)
            turned = functional.rms_norm(projected[:, :both], (width,), eps=self._eps) * self._turned[number]
            low, high = turned.chunk(2, dim=-1)
            turned = turned * cos + torch.cat((-high, low), dim=-1) * sin
            keys.flatten(0, 1).index_copy_(0, where, turned[:, heads:])
            values.flatten(0, 1).index_copy_(0, where, projected[:, both:])
            seen = self._attention.over_slots(turned[:, :heads], keys, values, spans, plan)
            hidden = hidden + layer.self_attn.o_proj(seen.reshape(len(hidden), -1))
            gate, up = layer.mlp.gate_up_proj(self._normal(hidden, layer.post_attention_layernorm.weight)).chunk(2, -1)
            hidden = hidden + layer.mlp.down_proj(functional.silu(gate) * up)
        return self._normal(hidden, self._norm)

    def _normal(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, self._eps)


class AudioLayers:
    """The audio tower behind its convolutions, and the projection to the text model's width."""

    def __init__(self, tower: Any, project: Any, attention: Attention) -> None:
        """Both the library's modules, fused."""
        self._tower, self._project, self._attention = tower, project, attention

    def __call__(self, hidden: Tensor, windows: Windows) -> Tensor:
        """`hidden`: (tokens, width) of windows one after the other."""
        plan = self._attention.plan_windows(windows, hidden)
        for layer in self._tower.layers:
            attend = layer.self_attn
            projected = attend.qkv_proj(layer.self_attn_layer_norm(hidden)).view(len(hidden), 3, attend.num_heads, -1)
            query, key, value = projected.unbind(1)
            seen = self._attention.over_windows(query, key, value, windows, plan)
            hidden = hidden + attend.out_proj(seen.reshape(len(hidden), -1))
            wide = layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden)))
            hidden = hidden + layer.fc2(wide)
            if hidden.dtype == torch.float16:
                most = torch.finfo(hidden.dtype).max - 1000
                hidden = hidden.clamp(-most, most)
        out: Tensor = self._project(self._tower.ln_post(hidden))
        return out
