"""The operations between the matrices of a layer, by torch: on any device, in any precision.

All widths are those of one head. A GPU has kernels of its own for the same operations (`triton_kernels.py`), and the
engine's self check compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PAGE = 64
"""Positions in a page of keys and values."""

LOUDEST = {torch.int8: 127.0, torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).max}
"""The largest value that 8 bits hold."""
QUIETEST = 1e-12
"""The least loudest value of a row, so that a row of zeros has a scale, too."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a forward: which of its positions belong to one utterance, and how much of it they see."""

    cu_seqlens: Tensor
    """(rows + 1), int32: where each row's positions begin, and where the last ones end. What only fills a forward up
    stands behind that, belongs to no row, and comes out as anything."""
    context_lens: Tensor
    """(rows), int32: positions that a row's last one sees, the new ones included."""
    block_table: Tensor
    """(rows, pages), int32: the pages that these are on, in their order; behind the last one there is anything."""
    single: bool
    """Each row has one position."""
    known: Sequence[tuple[int, int]] | None
    """(positions before the new ones, new ones) of each row; None in a graph, which holds for any."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a pass: the positions of the audio that see each other."""

    cu_seqlens: Tensor
    """(windows + 1), int32: as in `Rows`."""
    lengths: Sequence[int] | None
    """The length of each window; None in a graph."""


class Kernels:
    """The operations of a layer beside multiplying by its matrices.

    Attention is `scaled_dot_product_attention`: rows of one position, which is decoding, go in one call, and longer
    rows and windows in a call each. So Python must know the rows, and nothing of it can be recorded.
    """

    name = "sdpa"
    graphs = False
    """Forwards differ in nothing but tensors: they may be recorded."""

    def plan(self, rows: Rows, count: int, group: int) -> Any:
        """Prepare what is the same in all layers of a forward of `count` positions. `group` heads of queries share a
        head of keys.

        Here it is, for the rows of one position, their indices, the places of their queries, and what they see; for
        each longer row, the places of its queries and what they see.
        """
        assert rows.known is not None, "not in a graph"
        device, singles, starts, longer, low = rows.cu_seqlens.device, [], [], [], 0
        for at, (start, length) in enumerate(rows.known):
            if length == 1:
                singles.append(at)
                starts.append(low)
            else:
                seen = torch.ones(length, start + length, dtype=torch.bool, device=device).tril(start)
                longer.append((at, low, low + length, seen))
            low += length
        single_rows, places = torch.tensor([singles, starts], dtype=torch.long, device=device)
        most = max((rows.known[at][0] + 1 for at in singles), default=0)
        seen = torch.arange(most, device=device) < rows.context_lens[single_rows, None]
        return single_rows, places, seen[:, None, None], longer

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, plan: Any) -> Tensor:
        """`query`: (positions, heads, width). `keys`, `values`: (pages, positions of a page, fewer heads, width), with
        the new ones in them. Each position sees those before it and itself. → (positions, heads, width)."""
        single_rows, places, seen, longer = plan
        out, page, most = torch.empty_like(query), keys.shape[1], seen.shape[-1]
        if len(single_rows):
            pages = rows.block_table[single_rows, : -(-most // page)]
            key, value = (each[pages].flatten(1, 2)[:, :most].transpose(1, 2) for each in (keys, values))
            # Heads that share their keys are the queries of one head.
            grouped = query[places].reshape(len(single_rows), keys.shape[2], -1, query.shape[2])
            out[places] = functional.scaled_dot_product_attention(grouped, key, value, attn_mask=seen).flatten(1, 2)
        for at, low, high, tril in longer:
            stop = tril.shape[1]
            pages = rows.block_table[at, : -(-stop // page)]
            key, value = (each[pages].flatten(0, 1)[:stop] for each in (keys, values))
            out[low:high] = _heads_first(query[low:high], key, value, tril)
        return out

    def plan_windows(self, windows: Windows, count: int) -> Any:
        """Prepare what is the same in all layers of a pass over windows with `count` positions; here nothing."""
        return None

    def attend_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: Any) -> Tensor:
        """All (positions, heads, width). Each position sees its window."""
        assert windows.lengths is not None, "not in a graph"
        queries, keys, values = (torch.split(each, list(windows.lengths)) for each in (query, key, value))
        return torch.cat([_heads_first(*part) for part in zip(queries, keys, values, strict=True)])

    def rotate(
        self, projected: Tensor, norms: Tensor, cos: Tensor, sin: Tensor, eps: float, slot_mapping: Tensor,
        keys: Tensor, values: Tensor,
    ) -> Tensor:  # fmt: skip
        """`projected`: (positions, heads + 2 * fewer heads, width): queries, keys, values. `norms`: (heads + fewer
        heads, width). `cos`, `sin`: (positions, width). Queries and keys are normalised and turned by their position
        (RoPE); keys and values go to the places `slot_mapping`, (positions), of all positions of all pages. → queries,
        (positions, heads, width)."""
        width, fewer = projected.shape[2], keys.shape[2]
        heads = projected.shape[1] - 2 * fewer
        turned = functional.rms_norm(projected[:, : heads + fewer], (width,), eps=eps) * norms
        low, high = turned.chunk(2, dim=-1)
        turned = turned * cos[:, None] + torch.cat((-high, low), dim=-1) * sin[:, None]
        keys.flatten(0, 1).index_copy_(0, slot_mapping, turned[:, heads:])
        values.flatten(0, 1).index_copy_(0, slot_mapping, projected[:, heads + fewer :])
        return turned[:, :heads]

    def add_norm(self, hidden: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`hidden` and `more`: (positions, width) → their sum, which may be in `hidden`, and the same normalised."""
        hidden = hidden if more is None else hidden + more
        return hidden, functional.rms_norm(hidden, weight.shape, weight, eps)

    def silu_mul(self, both: Tensor) -> Tensor:
        """(positions, 2 * width), gates and what they let through → (positions, width)."""
        gate, up = both.chunk(2, -1)
        return functional.silu(gate) * up

    def narrow(self, rows: Tensor, kind: torch.dtype, least: int) -> tuple[Tensor, Tensor]:
        """(rows, width) → the same in 8 bits, at least `least` rows, those behind anything; and what each is to be
        multiplied by, (rows), float32, so that its loudest is `LOUDEST`."""
        found, scale = narrow(rows, kind, LOUDEST[kind])
        if len(rows) < least:
            found = functional.pad(found, (0, 0, 0, least - len(rows)))
        return found, scale

    def widen(self, product: Tensor, scale: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """`product`: (rows, width), int32, of what was narrow. `scale`: (rows) and `scales`: (width), float32, of the
        one side and of the other; `bias`: (width), float32. → (rows, width) in `dtype`."""
        found = product * scale[:, None] * scales
        return (found if bias is None else found + bias).to(dtype)


def narrow(rows: Tensor, kind: torch.dtype, loudest: float) -> tuple[Tensor, Tensor]:
    """(rows, width) → the same in 8 bits, and what each is to be multiplied by, (rows), float32."""
    scale = rows.abs().amax(dim=1, keepdim=True).float().clamp_min(QUIETEST) / loudest
    found = rows / scale
    return (found.round_() if kind is torch.int8 else found).to(kind), scale[:, 0]


def _heads_first(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """(positions, heads, width) in and out."""
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)
