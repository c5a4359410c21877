"""The kernels of attention as a GPU has them, made visible on a CPU: each takes what the real one takes, refuses what
that refuses with its own words, and has its known errors.

torch has no kernel of `torch.nn.attention.varlen` for a CPU; here is one, in each of the implementations that may be
behind it. Read from torch 2.13's and 2.15's `varlen.py`, `attention.cu` and `flash_api.cpp`, from FlashAttention-3's
`flash_api.cpp`, and from pytorch issue 194167. What is not held to here is the precision: the kernels take 16 bits
only, which `asr.engines.qwen.device.attention` checks, and tests compare tokens in 32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import varlen

Implementation = Literal["FA2", "FA3", "cuDNN"]
"""`cuDNN`: torch from 2.15 on with a recent cuDNN on Hopper or Blackwell, where it goes before FlashAttention-2."""

SLOTS = 2 * 132
"""Twice the processors of an H200: FlashAttention-2 splits keys while fewer blocks than 80 % of that are at work."""

calls: Counter[str] = Counter()
"""By the kernel that has answered."""
_active: Implementation = "FA2"


def use(implementation: Implementation) -> None:
    """From now on, and for nobody's `varlen_attn` before."""
    global _active
    _active = implementation


def check(condition: object, message: str) -> None:
    """As TORCH_CHECK."""
    if not condition:
        raise RuntimeError(message)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int,
    is_causal: bool = False, scale: float | None = None, window_size: Sequence[int] | None = None,
    enable_gqa: bool = False, seqused_k: Tensor | None = None, block_table: Tensor | None = None,
    num_splits: int | None = None, backend: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rest = query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)
    if _active == "cuDNN" and _cudnn_takes(query, cu_seq_q, cu_seq_k, max_q, window_size, seqused_k, num_splits):
        calls["cuDNN"] += 1
        return _rows(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, seqused_k, block_table), *rest
    kind = "FA3" if _active == "FA3" else "FA2"
    _check(kind, query, key, value, cu_seq_q, cu_seq_k, seqused_k, block_table)
    calls[kind] += 1
    out = _rows(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, seqused_k, block_table)
    if kind == "FA2" and block_table is not None and _splits(query, cu_seq_q, max_q, max_k, num_splits):
        # The kernel that joins the parts has a batch stride of 0: each row is written where the first one belongs.
        bounds = cu_seq_q.tolist()
        first, last = out[: bounds[1]].clone(), out[bounds[-2] : bounds[-1]]
        first[: len(last)] = last[: len(first)]
        out = torch.zeros_like(out)  # what was there before
        out[: len(first)] = first
    return out, *rest


def _check(
    kind: str, query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None,
    seqused_k: Tensor | None, block_table: Tensor | None,
) -> None:  # fmt: skip
    batch, paged = len(cu_seq_q) - 1, block_table is not None
    if kind == "FA2":
        check(
            cu_seq_k is not None,
            "cumulative_sequence_length_q and cumulative_sequence_length_k must be both set or both not set",
        )
        check(not paged or key.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256")
    else:
        check(not paged or cu_seq_k is None, "If cu_seqlens_k is passed in, then page table is not supported")
        check(paged or cu_seq_k is not None, "cu_seqlens_k must be set where keys are packed")
    for name, bounds in (("cu_seqlens_q", cu_seq_q), ("cu_seqlens_k", cu_seq_k)):
        if bounds is not None:
            check(bounds.dtype == torch.int32, f"{name} must have dtype int32")
            check(bounds.is_contiguous(), f"{name} must be contiguous")
            check(bounds.shape == (batch + 1,), f"{name} must have shape ({batch + 1})")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension")
        check(tensor.dtype == query.dtype, f"query and {name} must have the same dtype")
    check(query.shape[-1] % 8 == 0 and query.shape[-1] <= 256, "head_size must be a multiple of 8, and at most 256")
    check(query.shape[1] % key.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")
    check(not paged or seqused_k is not None, "block_table requires seqused_k")
    if seqused_k is not None:
        check(seqused_k.dtype == torch.int32, "seqused_k must have dtype int32")
        check(seqused_k.is_contiguous(), "seqused_k must be contiguous")
        check(seqused_k.shape == (batch,), f"seqused_k must have shape ({batch})")
    if block_table is not None:
        check(block_table.dtype == torch.int32, "block_table must have dtype torch.int32")
        check(block_table.stride(-1) == 1, "block_table must have contiguous last dimension")
        check(len(block_table) == batch, f"block_table must have shape ({batch}, …)")


def _splits(query: Tensor, cu_seq_q: Tensor, max_q: int, max_k: int, num_splits: int | None) -> bool:
    """`num_splits_heuristic`, as far as it decides between one and more."""
    if num_splits is not None:
        return num_splits > 1
    width = query.shape[-1]
    blocks = -(-max_k // (256 if width <= 64 else 128 if width <= 128 else 64))
    return blocks > 1 and (len(cu_seq_q) - 1) * query.shape[1] * -(-max_q // 64) < 0.8 * SLOTS


def _cudnn_takes(
    query: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, window_size: Sequence[int] | None,
    seqused_k: Tensor | None, num_splits: int | None,
) -> bool:  # fmt: skip
    """`_cudnn_rejection_reasons` of torch 2.15 with cuDNN 9.23."""
    causal = list(window_size or (-1, -1)) == [-1, 0]
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    return enabled and num_splits is None and max_q > 128 and not (
        causal and (seqused_k is not None or cu_seq_q is not cu_seq_k)
    )  # fmt: skip


def _rows(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int, max_k: int,
    is_causal: bool, seqused_k: Tensor | None, block_table: Tensor | None,
) -> Tensor:  # fmt: skip
    """What `varlen_attn` says it does: a row's last query sees the last key. What no row has is no number."""
    out = torch.full_like(query, float("nan"))
    bounds = cu_seq_q.tolist()
    for row, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False)):
        assert 0 <= low <= high <= len(query) and high - low <= max_q
        if block_table is not None:
            assert seqused_k is not None
            count = int(seqused_k[row])
            mine, theirs = (each[block_table[row]].flatten(0, 1)[:count] for each in (key, value))
        else:
            assert cu_seq_k is not None
            first, last = cu_seq_k[row : row + 2].tolist()
            count, mine, theirs = last - first, key[first:last], value[first:last]
        assert count <= max_k
        if high > low:
            mask = torch.ones(high - low, count, dtype=torch.bool)
            if is_causal:
                mask = mask.tril(count - (high - low))
            shaped = (each.transpose(0, 1)[None] for each in (query[low:high], mine, theirs))
            done = functional.scaled_dot_product_attention(*shaped, attn_mask=mask, enable_gqa=True)
            out[low:high] = done[0].transpose(0, 1)
    return out


_operation: Any = varlen._varlen_attn
_operation.register_kernel("cpu")(_attend)


def fused_sdpa_refuses(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, enable_gqa: bool) -> str:
    """Why the memory-efficient kernel of `scaled_dot_product_attention` would not take this on a GPU, so that it would
    be done by `math`, which makes float32 copies of all keys (`sdp_utils.cpp`); empty if it would."""
    if query.dim() != 4:
        return "query must be 4 dimensional"
    if enable_gqa or query.shape[:2] != key.shape[:2] or key.shape[:2] != value.shape[:2]:
        return "fused kernels require query, key and value to have the same num_heads and batch_size"
    if any(each.stride(-1) != 1 for each in (query, key, value)):
        return "last dimension must be contiguous"
    if query.shape[-1] % 8:
        return "head dimension must be aligned to 16 bytes"
    if attn_mask is not None:
        if attn_mask.dtype != query.dtype:
            return "a mask to be added must have the dtype of the query"
        whole = attn_mask.expand(*query.shape[:3], key.shape[2])
        if whole.stride(-1) != 1 or any(stride % 8 for stride in whole.stride()[:-1]):
            return "the mask must be aligned to 16 bytes"
    return ""
