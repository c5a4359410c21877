"""Random mixes of rows and windows for the kernels between the matrices, and what torch's own operations make of them
in 32 bits: the same tests run on a CPU, by Triton's interpreter, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from asr.engines.qwen.device.kernels import PAGE, Kernels, Rows, Windows

LIMITS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference, relative to the largest value, that is put down to rounding."""


@dataclass(frozen=True, slots=True)
class Heads:
    queries: int
    keys: int
    width: int


def _apart(found: Tensor, expected: Tensor) -> float:
    assert found.isfinite().all()
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-6))


def rows(
    kernels: Any, known: list[tuple[int, int]], heads: Heads, dtype: torch.dtype, device: str, *, filled: int = 0,
    spare: int = 0, seed: int = 0,
) -> None:  # fmt: skip
    """`known`: (positions before, new ones) of each row. `filled`, `spare`: positions and rows that fill a forward
    up."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([length for _, length in known])
    count = int(lengths.sum())

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    needed = [-(-sum(row) // PAGE) for row in known]
    keys, values = (noise(sum(needed) + 1, PAGE, heads.keys, heads.width) for _ in range(2))
    pages = torch.randperm(sum(needed), generator=rng).split(needed)
    table = torch.full((len(known) + spare, max(needed) + 1), sum(needed))
    for at, mine in enumerate(pages):
        table[at, : len(mine)] = mine
    # What stands behind a row's last position is somebody else's, and may be anything.
    keys[-1] = values[-1] = torch.nan
    for mine, row in zip(pages, known, strict=True):
        for each in (keys, values):
            each[mine[-1], (sum(row) - 1) % PAGE + 1 :] = torch.nan
    query = noise(count + filled, heads.queries + heads.keys, heads.width)[:, : heads.queries]
    cu_seqlens = functional.pad(torch.cat([lengths, torch.zeros(spare, dtype=torch.long)]).cumsum(0), (1, 0))
    context_lens = torch.tensor([*map(sum, known), *[1] * spare])
    single = count == len(known) and not filled
    small = [each.to(device, torch.int32) for each in (cu_seqlens, context_lens, table)]
    given = Rows(small[0], small[1], small[2], single, None)
    on_device = [each.to(device) for each in (query, keys, values)]
    plan = kernels.plan(given, len(query), heads.queries // heads.keys)
    found = kernels.attend(*on_device, given, plan).cpu()
    low = 0
    for mine, (start, length) in zip(pages, known, strict=True):
        stop = start + length
        parts = (query[low : low + length], *(each[mine].flatten(0, 1)[:stop] for each in (keys, values)))
        expected = functional.scaled_dot_product_attention(
            *(each.float().transpose(0, 1)[None] for each in parts),
            attn_mask=torch.ones(length, stop, dtype=torch.bool).tril(start), enable_gqa=True,
        )[0].transpose(0, 1)  # fmt: skip
        apart = _apart(found[low : low + length], expected)
        assert apart <= LIMITS[dtype], f"{length} positions behind {start} differ by {apart:.2g}"
        low += length


def windows(
    kernels: Any, lengths: list[int], heads: Heads, dtype: torch.dtype, device: str, *, filled: int = 0, spare: int = 0
) -> None:
    rng = torch.Generator().manual_seed(1)
    count = sum(lengths)
    together = torch.randn(count + filled, 3, heads.queries, heads.width, generator=rng).to(dtype)
    together[count:] = torch.nan
    cu_seqlens = functional.pad(torch.tensor([*lengths, *[0] * spare]).cumsum(0), (1, 0)).to(device, torch.int32)
    mine = Windows(cu_seqlens, None)
    parts = together.to(device).unbind(1)
    found = kernels.attend_windows(*parts, mine, kernels.plan_windows(mine, len(together))).cpu()
    low = 0
    for length in lengths:
        high = low + length
        shaped = (each[low:high].float().transpose(0, 1)[None] for each in together.unbind(1))
        expected = functional.scaled_dot_product_attention(*shaped)[0].transpose(0, 1)
        apart = _apart(found[low:high], expected)
        assert apart <= LIMITS[dtype], f"a window of {length} differs by {apart:.2g}"
        low = high


def between(kernels: Any, count: int, heads: Heads, dtype: torch.dtype, device: str) -> None:
    """Normalising, turning by the position, writing keys and values; the residual; the gate."""
    rng = torch.Generator().manual_seed(2)
    every, width = heads.queries + 2 * heads.keys, heads.width

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    def compare(what: str, found: Tensor, expected: Tensor) -> None:
        apart = _apart(found.cpu(), expected)
        assert apart <= LIMITS[dtype], f"{what}: {apart:.2g}"

    projected, norms = noise(count, every, width), noise(heads.queries + heads.keys, width)
    angles = torch.rand(count, width // 2, generator=rng).repeat(1, 2) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    where = torch.randperm(2 * PAGE, generator=rng)[:count]
    plain, memory = Kernels(), torch.zeros(2, 2, PAGE, heads.keys, width)
    expected = plain.rotate(*(each.float() for each in (projected, norms, cos, sin)), 1e-6, where, *memory)
    on_device = [each.to(device) for each in (projected, norms, cos, sin)]
    kept = torch.zeros(2, 2, PAGE, heads.keys, width, dtype=dtype, device=device)
    compare("queries", kernels.rotate(*on_device, 1e-6, where.to(device), *kept), expected)
    compare("keys and values", kept, memory)
    hidden, more, weight = noise(count, 3 * width), noise(count, 3 * width), noise(3 * width)
    total = (hidden.float() + more.float()).to(dtype)
    for added, summed in ((more, total), (None, hidden)):
        given = None if added is None else added.to(device)
        grown, normal = kernels.add_norm(hidden.clone().to(device), given, weight.to(device), 1e-6)
        compare("the residual", grown, summed)
        compare("normalised", normal, plain.add_norm(summed.float(), None, weight.float(), 1e-6)[1])
    both = noise(count, 2 * 5 * width)
    compare("the gate", kernels.silu_mul(both.to(device)), plain.silu_mul(both.float()))
    wide = noise(count, 5 * width) * torch.logspace(-3, 3, count)[:, None].to(dtype)
    wide[0] = 0
    for kind in (torch.int8, torch.float8_e4m3fn) if device == "cuda" else (torch.int8,):
        found, scale = kernels.narrow(wide.to(device), kind, count + 3)
        expected, scales = plain.narrow(wide, kind, 0)
        assert len(found) == count + 3 and found.dtype is kind
        compare("scales", scale, scales)
        # Where a quotient is half way between two steps, its last bit decides.
        away = (found[:count].cpu().float() - expected.float()).abs()
        assert away.max() <= (1 if kind is torch.int8 else 32) and (away > 0).float().mean() < 0.01
    product = torch.randint(-(10**4), 10**4, (count, 3 * width), generator=rng, dtype=torch.int32)
    columns, bias = torch.rand(3 * width, generator=rng) / 100, torch.rand(3 * width, generator=rng)
    for added in (bias, None):
        given = None if added is None else added.to(device)
        found = kernels.widen(product.to(device), scales.to(device), columns.to(device), given, dtype)
        assert found.dtype is dtype
        compare("of 8 bits", found, plain.widen(product, scales, columns, added, torch.float32).to(dtype))
