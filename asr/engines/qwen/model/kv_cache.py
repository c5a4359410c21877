"""Keys and values of the utterances that are being decoded, in pages (vLLM's PagedAttention, arXiv 2309.06180).

An utterance takes as much memory as it has positions, rounded up to a page.
"""

from __future__ import annotations

from typing import Any

import torch

from asr.engines.qwen.device.kernels import PAGE


class KvCache:
    """The memory, (layers, pages, positions of a page, heads, width), and the pages of each utterance."""

    def __init__(
        self, config: Any, *, pages: int, positions: int, device: torch.device, dtype: torch.dtype, page: int = PAGE
    ) -> None:
        """`config` is the text model's; an utterance has at most `positions`.

        There is one page more, `padding_page`, which no utterance gets: the positions that fill a forward of fixed
        shape up write their keys and values there.
        """
        shape = (config.num_hidden_layers, pages + 1, page, config.num_key_value_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.page, self.positions, self.pages = page, positions, pages
        self.padding_page = pages
        self._free = list(reversed(range(pages)))
        self._owners: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """The number of utterances that have pages."""
        return len(self._owners)

    @property
    def free(self) -> int:
        """The number of pages that nobody has."""
        return len(self._free)

    @property
    def row_pages(self) -> int:
        """The most pages that one utterance can have."""
        return -(-self.positions // self.page)

    def of(self, owner: str) -> list[int]:
        """The owner's pages in the order of its positions. The list grows when it gets more."""
        return self._owners.get(owner, [])

    def missing(self, owner: str, positions: int) -> int:
        """The number of pages that `owner` lacks for this many positions."""
        return max(0, -(-positions // self.page) - len(self.of(owner)))

    def allocate(self, owner: str, count: int) -> list[int]:
        """Give `owner` this many more pages, whose contents mean nothing yet. Returns all of its pages."""
        assert count <= len(self._free), "not so many are free"
        pages = self._owners.setdefault(owner, [])
        pages += [self._free.pop() for _ in range(count)]
        return pages

    def release(self, owner: str) -> None:
        """Free all pages of `owner`; nothing happens when it has none."""
        self._free += self._owners.pop(owner, [])


def position_bytes(config: Any, dtype: torch.dtype) -> int:
    """The size of the keys and values of one position in all layers. `config` is the text model's."""
    width: int = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * width * dtype.itemsize
