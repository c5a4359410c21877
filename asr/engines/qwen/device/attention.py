"""Attention over what is packed: queries of many utterances in one row, each against its own keys and values.

There are two kinds: over slots (text model: a position sees what is in its slot before it, and itself) and over windows
(audio: every position sees its window). Three implementations compute the same values but for rounding:

- `sdpa`: `scaled_dot_product_attention` of torch, on any device and in any precision. When Python knows the rows, those
  of one position, which is decoding, go in one call, and longer rows and windows in a call each. In a CUDA graph Python
  knows nothing about them: there all rows are gathered, filled up to the longest, and computed in one call.
- `varlen`: `torch.nn.attention.varlen` with the kernels of FlashAttention-2 that torch brings, which read the slots as
  pages. On a GPU from Ampere on, in 16 bits.
- `flash`: the same call with the kernels of the package FlashAttention-3 (Hopper) or FlashAttention-4 (Blackwell).

`auto` is `sdpa`. Contexts are short: for 32 rows of 384 positions the keys and values of the 0.6B model are 1.4 GB a
forward, and gathering them moves them three times instead of once, which is 0.7 ms more on an H200 (4.3 TB/s) in steps
of several milliseconds. In return nothing depends on the version of torch: `varlen_attn` has neither pages nor grouped
heads in torch 2.11; its FlashAttention-2 needs `cu_seq_k` where 3 and 4 take none, and splits keys with wrong results
unless `num_splits` is 1 (pytorch issue 194167); and from 2.15 on it may hand rows to cuDNN instead.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from asr.engines.interface import EngineUnusable, first_line
from asr.engines.qwen.device.interface import Attention, Spans, Windows

Name = Literal["auto", "flash", "varlen", "sdpa"]
PAGE = 256
"""Positions in a page: FlashAttention-2, which is in torch, takes multiples of 256 only."""
FLASH = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute")}
"""Major compute capability → torch's name of the implementation, and the module that brings it."""


ALIGNED = 8
"""Masks are as wide as a multiple of this: the kernels of `sdpa` that take masks read 16 bytes at a time."""


class Sdpa:
    name = "sdpa"
    in_place = False

    def plan(self, spans: Spans, keys: Tensor, count: int, heads: int) -> Any:
        """Masks: of the rows of one position, and of each longer one."""
        if spans.longer is None:
            return _Padded.slots(spans, keys, count, heads // keys.shape[2])
        device = keys.device
        within = _aligned(spans.seen, keys.shape[1])
        seen = torch.arange(within, device=device) < spans.used[: spans.singles, None]
        # Each position sees those before it and itself.
        longer = [
            torch.ones(length, start + length, dtype=torch.bool, device=device).tril(start)
            for _, start, length in spans.longer
        ]
        return _added(seen, keys.dtype)[:, None, None], longer

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, plan: Any) -> Tensor:
        if spans.longer is None:
            padded: _Padded = plan
            mine = (each[spans.slots, : padded.mask.shape[-1]] for each in (keys, values))
            return padded.attend(query, *mine)
        mask, masks = plan
        parts = []
        if spans.singles:
            slots, within = spans.slots[: spans.singles], mask.shape[-1]
            # Heads that share their keys are the queries of one head.
            grouped = query[: spans.singles].reshape(spans.singles, keys.shape[2], -1, query.shape[2])
            out = functional.scaled_dot_product_attention(
                grouped, keys[slots, :within].transpose(1, 2), values[slots, :within].transpose(1, 2), attn_mask=mask
            )
            parts.append(out.flatten(1, 2))
        low = spans.singles
        for (slot, start, length), tril in zip(spans.longer, masks, strict=True):
            high, stop = low + length, start + length
            parts.append(_heads_first(query[low:high], keys[slot, :stop], values[slot, :stop], tril))
            low = high
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def plan_windows(self, windows: Windows, like: Tensor) -> Any:
        return _Padded.windows(windows, like) if windows.lengths is None else None

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: Any) -> Tensor:
        if windows.lengths is None:
            padded: _Padded = plan
            return padded.attend(query, key[padded.there], value[padded.there])
        lengths = list(windows.lengths)
        queries, keys, values = (torch.split(each, lengths) for each in (query, key, value))
        return torch.cat([_heads_first(*part, None) for part in zip(queries, keys, values, strict=True)])


@dataclass(frozen=True, slots=True)
class _Padded:
    """Rows that only tensors know, each filled up to the longest one."""

    there: Tensor
    """(rows, longest): the position that each query of a row is at."""
    back: Tensor
    """(positions): where each of them is among all rows, one after the other."""
    mask: Tensor
    """(rows, 1, longest * heads that share their keys, positions seen), to be added."""

    @classmethod
    def slots(cls, spans: Spans, keys: Tensor, count: int, group: int) -> _Padded:
        there, back = _places(spans.bounds, count, spans.longest)
        lengths = spans.bounds[1:] - spans.bounds[:-1]
        inside = torch.arange(spans.longest, device=keys.device)
        # The last position that a query sees. What fills a row up sees something as well: nothing would be no number.
        last = torch.minimum((spans.used - lengths)[:, None] + inside, spans.used[:, None] - 1).clamp(min=0)
        seen = torch.arange(_aligned(spans.seen, keys.shape[1]), device=keys.device) <= last[..., None]
        return cls(there, back, _added(seen.repeat_interleave(group, dim=1), keys.dtype)[:, None])

    @classmethod
    def windows(cls, windows: Windows, like: Tensor) -> _Padded:
        longest = -(-windows.longest // ALIGNED) * ALIGNED
        there, back = _places(windows.bounds, len(like), longest)
        lengths = windows.bounds[1:] - windows.bounds[:-1]
        seen = torch.arange(longest, device=like.device) < lengths[:, None].clamp(min=1)
        return cls(there, back, _added(seen, like.dtype)[:, None, None])

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`query`: (positions, heads, width). `keys`, `values`: (rows, positions seen, fewer heads, width)."""
        rows, longest = self.there.shape
        fewer, width = keys.shape[2:]
        # (rows, fewer heads, longest * group, width): heads that share their keys are more queries of one head.
        grouped = query[self.there].view(rows, longest, fewer, -1, width).transpose(1, 2).flatten(2, 3)
        out = functional.scaled_dot_product_attention(
            grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=self.mask
        )
        alone = out.reshape(rows, fewer, longest, -1, width).transpose(1, 2).reshape(rows * longest, -1, width)
        return alone[self.back]


def _places(bounds: Tensor, count: int, longest: int) -> tuple[Tensor, Tensor]:
    """`_Padded.there` and `.back`, for rows that begin at `bounds` in `count` positions."""
    starts, positions = bounds[:-1].long(), torch.arange(count, device=bounds.device)
    there = (starts[:, None] + torch.arange(longest, device=bounds.device)).clamp(max=count - 1)
    rows = (positions[:, None] >= bounds[1:]).sum(dim=1).clamp(max=len(starts) - 1)
    return there, rows * longest + (positions - starts[rows]).clamp(0, longest - 1)


def _aligned(seen: int, most: int) -> int:
    return min(most, -(-seen // ALIGNED) * ALIGNED)


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to be added, from one that is true where something is seen."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, -torch.inf)


def _heads_first(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """(positions, heads, width) in and out."""
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=mask,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)


class Varlen:
    """What each implementation takes was read from torch 2.11 to 2.15; `tests/support/kernels.py` holds calls to it."""

    in_place = True

    def __init__(self, implementation: str = "FA2") -> None:
        """`implementation`: the active one, as torch names it. Raises EngineUnusable."""
        self.name = "varlen" if implementation == "FA2" else "flash"
        self._bounds_of_keys = implementation == "FA2"
        try:
            from torch.nn.attention.varlen import varlen_attn
        except ImportError as error:  # not all builds of torch have it
            raise EngineUnusable(f"asr.attention = 'varlen': {first_line(error)}") from error
        lacking = {"enable_gqa", "seqused_k", "block_table", "num_splits"} - set(
            inspect.signature(varlen_attn).parameters
        )
        if lacking:
            raise EngineUnusable(
                f"asr.attention = {self.name!r} needs a torch whose varlen_attn takes {', '.join(sorted(lacking))}, "
                f"and this is {torch.__version__}; `sdpa` runs everywhere"
            )
        self._attend: Callable[..., Any] = varlen_attn

    def plan(self, spans: Spans, keys: Tensor, count: int, heads: int) -> tuple[Tensor, Tensor | None]:
        """The pages of each row, (rows, pages of a slot), and the bounds of their keys: FlashAttention-2 wants both, of
        which it reads the pages; the others refuse bounds beside pages."""
        positions = keys.shape[1]
        assert positions % PAGE == 0, "slots are whole pages"
        number = positions // PAGE
        pages = spans.slots[:, None] * number + torch.arange(number, device=keys.device)
        bounds = torch.arange(len(spans.slots) + 1, dtype=torch.int32, device=keys.device) * positions
        return pages.to(torch.int32), bounds if self._bounds_of_keys else None

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, plan: Any) -> Tensor:
        pages, bounds = plan
        out: Tensor = self._attend(
            query,
            keys.view(-1, PAGE, *keys.shape[2:]),
            values.view(-1, PAGE, *values.shape[2:]),
            spans.bounds,
            bounds,
            spans.longest,
            spans.seen,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=spans.used,
            block_table=pages,
            num_splits=1,  # more leave rows behind the first unwritten: pytorch issue 194167
        )
        return out

    def plan_windows(self, windows: Windows, like: Tensor) -> None:
        return None

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, windows: Windows, plan: Any) -> Tensor:
        # Without `num_splits` torch 2.15 may give this to cuDNN, whose limits are others.
        bounds, longest = windows.bounds, windows.longest
        out: Tensor = self._attend(query, key, value, bounds, bounds, longest, longest, num_splits=1)
        return out


def attention(name: Name, device: torch.device, dtype: torch.dtype) -> Attention:
    """Raises EngineUnusable."""
    if device.type == "cuda":
        # It is chosen by version, generation and length of rows; what is left takes any of them.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if name in ("auto", "sdpa"):
        return Sdpa()
    if (why_not := _unfit(device, dtype)) is not None:
        raise EngineUnusable(f"asr.attention = {name!r} needs {why_not}; `sdpa` runs everywhere")
    if name == "varlen":
        return Varlen()
    implementation, module = FLASH.get(torch.cuda.get_device_capability(device)[0], ("", ""))
    if not module or not _installed(module):
        wanted = f"the package that brings `{module}`" if module else "a GPU of the generations Hopper or Blackwell"
        raise EngineUnusable(f"asr.attention = 'flash' needs {wanted}; `varlen` has torch's own kernels")
    try:
        torch.nn.attention.activate_flash_attention_impl(implementation)
    except (ImportError, RuntimeError, OSError) as error:
        raise EngineUnusable(f"asr.attention = 'flash': {first_line(error)}") from error
    return Varlen(implementation)


def _unfit(device: torch.device, dtype: torch.dtype) -> str | None:
    """What packed kernels lack here."""
    if device.type != "cuda":
        return f"a GPU, and the engine is on {device.type!r}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"16 bits, and qwen.dtype is {str(dtype).removeprefix('torch.')}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"a GPU from Ampere on, and this is {torch.cuda.get_device_name(device)}"
    return None


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
