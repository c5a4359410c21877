"""Keys and values of the utterances that are being decoded, in pages of some positions (vLLM's, arXiv 2309.06180): an
utterance takes as much memory as it has positions."""

from __future__ import annotations

from typing import Any

import torch

from asr.engines.qwen.device.interface import PAGE


class KvCache:
    """Memory of (layers, pages, positions of a page, heads, width), and who has which pages."""

    def __init__(
        self, config: Any, *, pages: int, positions: int, device: torch.device, dtype: torch.dtype, page: int = PAGE
    ) -> None:
        """`config`: of the text model. `positions`: of an utterance at most. One page more than can be taken is there
        for what only fills a forward up."""
        shape = (config.num_hidden_layers, pages + 1, page, config.num_key_value_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.page, self.positions = page, positions
        self.padding_page = pages
        self._free = list(reversed(range(pages)))
        self._owners: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """Utterances that have pages."""
        return len(self._owners)

    @property
    def pages(self) -> int:
        return self.padding_page

    @property
    def free(self) -> int:
        """Pages."""
        return len(self._free)

    @property
    def row_pages(self) -> int:
        """Pages of one utterance at most."""
        return -(-self.positions // self.page)

    def of(self, owner: str) -> list[int]:
        """Its pages, in the order of its positions; they grow with it."""
        return self._owners.get(owner, [])

    def missing(self, owner: str, positions: int) -> int:
        """Pages that `owner` lacks for so many positions."""
        return max(0, -(-positions // self.page) - len(self.of(owner)))

    def take(self, owner: str, count: int) -> list[int]:
        """So many more pages for `owner`, on which nothing of use is yet. -> all of its pages."""
        assert count <= len(self._free), "not so many are free"
        mine = self._owners.setdefault(owner, [])
        mine += [self._free.pop() for _ in range(count)]
        return mine

    def give(self, owner: str) -> None:
        """All of them back; nothing happens when it has none."""
        self._free += self._owners.pop(owner, [])


def position_bytes(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one position, in all layers. `config`: of the text model."""
    width: int = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * width * dtype.itemsize
