"""One forward of the text model for many utterances at different stages: prefill, verification and decoding mixed.

All their new positions go through the layers as one row of tokens; only attention tells them apart. It writes each
utterance's keys and values into its slot and looks at nothing else, so what is valid of a slot is for its owner to say:
taking positions back costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from asr.qwen.slots import Slots

NAME = "mediaworker_slots"


@dataclass(frozen=True, slots=True)
class Row:
    """The next positions of one utterance."""

    slot: int
    start: int
    """The slot is valid below it."""
    embeddings: Tensor
    """(positions, width)"""
    wanted: int
    """Of so many positions at the end the logits are wanted."""


@dataclass(frozen=True, slots=True)
class _Layout:
    slots: list[int]
    starts: list[int]
    lengths: list[int]


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float, *,
    layout: _Layout, memory: Slots, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Queries (1, heads, positions, width), keys and values with fewer heads → (1, positions, heads, width)."""
    keys, values = memory.keys[module.layer_idx], memory.values[module.layer_idx]
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    out = torch.empty_like(query[0].transpose(0, 1))
    low = 0
    for slot, start, length in zip(layout.slots, layout.starts, layout.lengths, strict=True):
        high, stop = low + length, start + length
        keys[slot, start:stop] = new_keys[low:high]
        values[slot, start:stop] = new_values[low:high]
        # Each position sees those before it and itself.
        mask = None
        if length > 1:
            mask = torch.ones(length, stop, dtype=torch.bool, device=query.device).tril(start)
        seen = functional.scaled_dot_product_attention(
            query[:, :, low:high],
            keys[slot, :stop].transpose(0, 1)[None],
            values[slot, :stop].transpose(0, 1)[None],
            attn_mask=mask,
            scale=scaling,
            enable_gqa=True,
        )
        out[low:high] = seen[0].transpose(0, 1)
        low = high
    return out[None], None


AttentionInterface.register(NAME, _attend)


class Packed:
    """The text model over slots."""

    def __init__(self, model: Any, memory: Slots) -> None:
        """Switches the text model's attention over: it cannot be used in another way any more."""
        self._text, self._head, self.memory = model.model.language_model, model.lm_head, memory
        self._text.set_attn_implementation(NAME)
        self._embed = model.get_input_embeddings()
        self._device = self._embed.weight.device
        self.forwards = self.positions = 0

    def embed(self, tokens: Sequence[int]) -> Tensor:
        embeddings: Tensor = self._embed(torch.tensor(tokens, dtype=torch.long, device=self._device))
        return embeddings

    def __call__(self, rows: Sequence[Row]) -> list[Tensor]:
        """Logits of the wanted positions of each row, (wanted, vocabulary)."""
        layout = _Layout([row.slot for row in rows], [row.start for row in rows], [len(row.embeddings) for row in rows])
        positions = torch.cat([torch.arange(row.start, row.start + len(row.embeddings)) for row in rows])
        hidden = self._text(
            inputs_embeds=torch.cat([row.embeddings for row in rows])[None],
            position_ids=positions.to(self._device)[None],
            use_cache=False,
            layout=layout,
            memory=self.memory,
        ).last_hidden_state[0]
        self.forwards += 1
        self.positions += len(positions)
        ends = torch.tensor(layout.lengths).cumsum(0).tolist()
        wanted = torch.cat([hidden[end - row.wanted : end] for row, end in zip(rows, ends, strict=True)])
        return list(self._head(wanted).split([row.wanted for row in rows]))
