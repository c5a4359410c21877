"""Keys and values of the utterances that are being decoded: one slot of fixed length each."""

from __future__ import annotations

from typing import Any

import torch

from asr.engines.qwen.device.attention import PAGE


class Slots:
    """Memory of (layers, slots, positions, heads, width), and who has which slot."""

    def __init__(self, config: Any, *, slots: int, positions: int, device: torch.device, dtype: torch.dtype) -> None:
        """`config`: of the text model. One slot more than can be taken is there for what only fills a batch up."""
        shape = (config.num_hidden_layers, slots + 1, _whole(positions), config.num_key_value_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.positions = positions
        self.spare = slots
        self._free = list(reversed(range(slots)))
        self._owners: dict[str, int] = {}

    def __len__(self) -> int:
        """Slots that are taken."""
        return len(self._owners)

    @property
    def free(self) -> int:
        return len(self._free)

    def of(self, owner: str) -> int | None:
        return self._owners.get(owner)

    def take(self, owner: str) -> int:
        """A slot for `owner`, whose positions hold nothing of use yet. Raises IndexError when none is free."""
        assert owner not in self._owners, f"{owner} has a slot"
        slot = self._owners[owner] = self._free.pop()
        return slot

    def give(self, owner: str) -> None:
        """Back; nothing happens when it has none."""
        slot = self._owners.pop(owner, None)
        if slot is not None:
            self._free.append(slot)


def slot_bytes(config: Any, positions: int, dtype: torch.dtype) -> int:
    """Of one slot, keys and values. `config`: of the text model."""
    width: int = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * width * _whole(positions) * dtype.itemsize


def _whole(positions: int) -> int:
    return -(-positions // PAGE) * PAGE
