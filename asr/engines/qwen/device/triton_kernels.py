"""The layers' kernels for a GPU, in Triton: attention over pages where they lie, and what stands between the matrices.

Everything in which forwards differ is in tensors: where rows begin, how much each sees, and on which pages
its keys and values are. So a CUDA graph that was recorded for some number of positions holds for every mix of rows with
as many, and a forward costs what its positions cost. Sums are in 32 bits, whatever the precision of the model.

The attention is FlashAttention's (arXiv 2205.14135) over a page table as vLLM has it (arXiv 2309.06180). Triton comes
with the builds of torch for CUDA. With TRITON_INTERPRET=1 the kernels run on a CPU, in 32 and in IEEE's 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from asr.engines.qwen.device.kernels import LOUDEST, QUIETEST, Kernels, Rows, Windows

DECODING, MIXED = 16, 64
"""Queries times heads in a block, of rows of one position and of others."""
KEYS, EXACT_KEYS = 64, 32
"""Keys in a block; of 32 bits fewer, which have to fit into the shared memory of a smaller GPU (99 KB on an L4). A page
has this many positions, or a multiple of it."""
WARPS, STAGES = 4, 3
BLOCK = 1024
NEVER = tl.constexpr(-1e30)
"""A score that counts for nothing, and is a number: rows that see nothing have no sum of zero."""


@triton.jit(do_not_specialize=["rows"])
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, out, cu_seqlens, context_lens, table, row_of, query_of, scale,
    query_stride, key_stride, out_stride, table_stride, rows,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, FILLED: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of a row's queries, with those heads that share a head of keys, against all that it sees: what is on
    its pages up to itself, or all of its window where there are no pages (0)."""
    block, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_of + block)
    if row >= rows:
        return
    low = tl.load(cu_seqlens + row)
    length = tl.load(cu_seqlens + row + 1) - low
    context = tl.load(context_lens + row)
    first = tl.load(query_of + block)
    m, d = tl.arange(0, M), tl.arange(0, FILLED)
    number = first + m // GROUP
    there = (number < length) & (m // GROUP < M // GROUP)
    inside = d < WIDTH
    at = (low + number)[:, None].to(tl.int64)
    wide = (head * GROUP + m % GROUP)[:, None] * WIDTH + d[None, :]
    chosen = there[:, None] & inside[None, :]
    queries = tl.load(query + at * query_stride + wide, mask=chosen, other=0.0)
    last = context - length + number if PAGE > 0 else tl.zeros([M], tl.int32) + context - 1
    stop = tl.minimum(context, context - length + first + M // GROUP) if PAGE > 0 else context
    most = tl.full([M], NEVER, tl.float32)
    total = tl.zeros([M], tl.float32)
    summed = tl.zeros([M, FILLED], tl.float32)
    for n in range(0, stop, N):
        k = n + tl.arange(0, N)
        if PAGE > 0:
            place = tl.load(table + row * table_stride + n // PAGE).to(tl.int64) * PAGE + k % PAGE
        else:
            place = low.to(tl.int64) + k
        inside_keys = (k < context)[:, None] & inside[None, :]
        where = place[:, None] * key_stride + (head * WIDTH + d)[None, :]
        key = tl.load(keys + where, mask=inside_keys, other=0.0)
        score = tl.dot(queries, tl.trans(key), input_precision=PRECISION) * scale
        score = tl.where(k[None, :] <= last[:, None], score, NEVER)
        higher = tl.maximum(most, tl.max(score, 1))
        share = tl.exp2(score - higher[:, None])
        kept = tl.exp2(most - higher)
        total = total * kept + tl.sum(share, 1)
        value = tl.load(values + where, mask=inside_keys, other=0.0)
        summed = summed * kept[:, None] + tl.dot(share.to(value.dtype), value, input_precision=PRECISION)
        most = higher
    found = summed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + at * out_stride + wide, found.to(out.dtype.element_ty), mask=chosen)


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    projected, norms, cos, sin, slot_mapping, query, keys, values, eps,
    HEADS: tl.constexpr, FEWER: tl.constexpr, WIDTH: tl.constexpr, FILLED_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Normalise the queries and keys of one position and rotate them by it (RoPE, arXiv 2104.09864), and store keys and
    values on their page."""
    at = tl.program_id(0).to(tl.int64)
    head, d = tl.arange(0, FILLED_HEADS), tl.arange(0, HALF)
    inside = (d < WIDTH // 2)[None, :]
    turned = head < HEADS + FEWER
    low = head[:, None] * WIDTH + d[None, :]
    high = low + WIDTH // 2
    from_ = projected + at * ((HEADS + 2 * FEWER) * WIDTH)
    every = (head < HEADS + 2 * FEWER)[:, None] & inside
    one = tl.load(from_ + low, mask=every, other=0.0).to(tl.float32)
    two = tl.load(from_ + high, mask=every, other=0.0).to(tl.float32)
    weighted = turned[:, None] & inside
    scale = tl.rsqrt((tl.sum(one * one, 1) + tl.sum(two * two, 1)) / WIDTH + eps)[:, None]
    x = one * scale * tl.load(norms + low, mask=weighted, other=0.0).to(tl.float32)
    y = two * scale * tl.load(norms + high, mask=weighted, other=0.0).to(tl.float32)
    half = d < WIDTH // 2
    c = tl.load(cos + at * WIDTH + d, mask=half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + at * WIDTH + d, mask=half, other=0.0).to(tl.float32)[None, :]
    new_low, new_high = x * c - y * s, y * c + x * s
    kind = query.dtype.element_ty
    is_query = (head < HEADS)[:, None] & inside
    tl.store(query + at * (HEADS * WIDTH) + low, new_low.to(kind), mask=is_query)
    tl.store(query + at * (HEADS * WIDTH) + high, new_high.to(kind), mask=is_query)
    to = tl.load(slot_mapping + at) * (FEWER * WIDTH)
    is_key = (turned & (head >= HEADS))[:, None] & inside
    tl.store(keys + to + low - HEADS * WIDTH, new_low.to(kind), mask=is_key)
    tl.store(keys + to + high - HEADS * WIDTH, new_high.to(kind), mask=is_key)
    is_value = (head >= HEADS + FEWER)[:, None] & every
    tl.store(values + to + low - (HEADS + FEWER) * WIDTH, one.to(kind), mask=is_value)
    tl.store(values + to + high - (HEADS + FEWER) * WIDTH, two.to(kind), mask=is_value)


@triton.jit
def _add_norm(hidden, more, weight, out, eps, WIDTH: tl.constexpr, FILLED: tl.constexpr, ADD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add `more` to the residual of one position, and normalise it."""
    at = tl.program_id(0).to(tl.int64) * WIDTH
    d = tl.arange(0, FILLED)
    inside = d < WIDTH
    x = tl.load(hidden + at + d, mask=inside, other=0.0)
    if ADD:
        y = tl.load(more + at + d, mask=inside, other=0.0)
        x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
        tl.store(hidden + at + d, x, mask=inside)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)
    found = x * scale * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at + d, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(both, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < WIDTH
    gate = tl.load(both + at * 2 * WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + at * 2 * WIDTH + WIDTH + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at * WIDTH + d, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _narrow(  # type: ignore[no-untyped-def]
    rows, out, scales, stride, loudest, quietest,
    WIDTH: tl.constexpr, FILLED: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Find the loudest value of one row, and bring the row into 8 bits."""
    at = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, FILLED)
    inside = d < WIDTH
    x = tl.load(rows + at * stride + d, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), quietest) / loudest
    tl.store(scales + at, scale)
    x = x / scale
    if ROUND:
        x = (
            x + 12582912.0
        ) - 12582912.0  # 1.5 * 2 ** 23: what is added to it is rounded to a whole number, half to even
    tl.store(out + at * WIDTH + d, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _widen(  # type: ignore[no-untyped-def]
    product, scale, scales, bias, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < WIDTH
    x = tl.load(product + at * WIDTH + d, mask=inside, other=0).to(tl.float32)
    x = x * tl.load(scale + at) * tl.load(scales + d, mask=inside, other=0.0)
    if BIAS:
        x += tl.load(bias + d, mask=inside, other=0.0)
    tl.store(out + at * WIDTH + d, x.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rows of the blocks of queries, and where keys and values are."""

    cu_seqlens: Tensor
    context_lens: Tensor
    row_of: Tensor
    """(blocks), int32: the row of each block; as many as there are rows: of none."""
    query_of: Tensor
    """(blocks), int32: the first query of each, within its row."""
    table: Tensor
    """(rows, pages), int32; of windows nothing reads it."""
    m: int


def _blocks(cu_seqlens: Tensor, count: int, each: int) -> tuple[Tensor, Tensor]:
    """`_Plan.row_of` and `.query_of`, for blocks of `each` queries: as many blocks as `count` queries may need."""
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    needed = (lengths + (each - 1)) // each
    ends = needed.cumsum(0, dtype=torch.int32)
    number = torch.arange(-(-count // each) + len(lengths), dtype=torch.int32, device=cu_seqlens.device)
    row = torch.searchsorted(ends, number, right=True, out_int32=True)
    owner = row.clamp(max=len(lengths) - 1)
    return row, (number - (ends - needed)[owner]) * each


class Triton(Kernels):
    name = "triton"
    graphs = True

    def plan(self, rows: Rows, count: int, group: int) -> _Plan:
        m = max(DECODING if rows.single else MIXED, group)
        row, first = _blocks(rows.cu_seqlens, count, m // group)
        return _Plan(rows.cu_seqlens, rows.context_lens, row, first, rows.block_table, m)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, rows: Rows, plan: _Plan) -> Tensor:
        page = keys.shape[1]
        assert page % KEYS == 0, "a block of keys is on one page"
        return _attention(query, keys.flatten(0, 1), values.flatten(0, 1), plan, page)

    def plan_windows(self, windows: Windows, count: int) -> _Plan:
        row, first = _blocks(windows.cu_seqlens, count, MIXED)
        lengths = windows.cu_seqlens[1:] - windows.cu_seqlens[:-1]
        return _Plan(windows.cu_seqlens, lengths, row, first, lengths[:, None], MIXED)

    def attend_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: _Plan) -> Tensor:
        return _attention(query, key, value, plan, 0)

    def rotate(
        self, projected: Tensor, norms: Tensor, cos: Tensor, sin: Tensor, eps: float, slot_mapping: Tensor,
        keys: Tensor, values: Tensor,
    ) -> Tensor:  # fmt: skip
        count, every, width = projected.shape
        fewer = keys.shape[2]
        heads = every - 2 * fewer
        query = projected.new_empty(count, heads, width)
        _rotate[(count,)](
            projected, norms, cos, sin, slot_mapping, query, keys, values, eps,
            heads, fewer, width, triton.next_power_of_2(every), triton.next_power_of_2(width // 2), num_warps=4,
        )  # fmt: skip
        return query

    def add_norm(self, hidden: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        count, width = hidden.shape
        out = torch.empty_like(hidden)
        _add_norm[(count,)](
            hidden, hidden if more is None else more, weight, out, eps, width, triton.next_power_of_2(width),
            more is not None, num_warps=4,
        )  # fmt: skip
        return hidden, out

    def silu_mul(self, both: Tensor) -> Tensor:
        count, width = both.shape[0], both.shape[1] // 2
        out = both.new_empty(count, width)
        _silu_mul[(count, -(-width // BLOCK))](both, out, width, BLOCK, num_warps=4)
        return out

    def narrow(self, rows: Tensor, kind: torch.dtype, least: int) -> tuple[Tensor, Tensor]:
        count, width = rows.shape
        assert rows.stride(1) == 1
        out = rows.new_empty(max(count, least), width, dtype=kind)
        scale = rows.new_empty(count, dtype=torch.float32)
        _narrow[(count,)](
            rows, out, scale, rows.stride(0), LOUDEST[kind], QUIETEST, width, triton.next_power_of_2(width),
            kind is torch.int8, num_warps=4,
        )  # fmt: skip
        return out, scale

    def widen(self, product: Tensor, scale: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        count, width = product.shape
        assert product.is_contiguous()
        out = product.new_empty(count, width, dtype=dtype)
        _widen[(count, -(-width // BLOCK))](
            product, scale, scales, scales if bias is None else bias, out, width, BLOCK, bias is not None, num_warps=4
        )
        return out


def _attention(query: Tensor, keys: Tensor, values: Tensor, plan: _Plan, page: int) -> Tensor:
    """`keys`, `values`: (positions, fewer heads, width), pages of `page` positions one after the other, or those of the
    windows themselves (0)."""
    count, heads, width = query.shape
    fewer = keys.shape[1]
    out = query.new_empty(count, heads, width)
    assert query.stride()[1:] == keys.stride()[1:] == values.stride()[1:] == (width, 1)
    assert keys.stride(0) == values.stride(0)
    rows, exact = len(plan.context_lens), query.dtype == torch.float32
    _attend[(len(plan.row_of), fewer)](
        query, keys, values, out, plan.cu_seqlens, plan.context_lens, plan.table, plan.row_of, plan.query_of,
        width**-0.5 * math.log2(math.e), query.stride(0), keys.stride(0), out.stride(0), plan.table.stride(0), rows,
        heads // fewer, width, triton.next_power_of_2(width), plan.m, EXACT_KEYS if exact else KEYS,
        page, "ieee" if exact else "tf32", num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out
