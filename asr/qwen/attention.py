"""Attention over what is packed: queries of many utterances in one row, each against its own keys and values.

Two kinds: over slots (text model: a position sees what is in its slot before it, and itself) and over windows (audio:
every position sees its window). Three ways to compute them, equal but for rounding:

- `sdpa`: torch's, anywhere and in any precision. Rows of one position, which is decoding, in one call; longer ones and
  windows each in a call of its own.
- `varlen`: `torch.nn.attention.varlen`, one call for everything, straight from the slots as pages. On a GPU from Ampere
  on, in 16 bits.
- `flash`: the same call with the kernels of the package FlashAttention-3 (Hopper) or 4 (Blackwell), where that is
  installed; torch's own are those of FlashAttention-2. `auto` takes 3, but not 4, whose pages may have other sizes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from asr.engine import EngineUnusable, first_line

Name = Literal["auto", "flash", "varlen", "sdpa"]
PAGE = 256
"""Positions in a page: FlashAttention-2, which is in torch, takes multiples of 256 only."""
FLASH = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute")}
"""Major compute capability → torch's name of the implementation, and the module that brings it."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Whose queries stand where in the row. `rows` come in the order of their queries."""

    bounds: Tensor
    """(rows + 1), int32: where each row's queries begin, and the end."""
    slots: Tensor
    """(rows), int64"""
    used: Tensor
    """(rows), int32: positions of the slot that are seen, the new ones included."""
    longest: int
    """Queries of a row at most."""
    seen: int
    """Positions of a slot that are seen at most."""
    singles: int
    """So many rows, the first ones, are of one position."""
    longer: Sequence[tuple[int, int, int]]
    """(slot, start, length) of the others; nothing if that is to be read from the tensors alone."""


class Attention(Protocol):
    packs: bool
    """One call does everything: nothing about the rows need be known to Python."""

    def plan(self, spans: Spans, positions: int) -> Any:
        """What is the same in all layers. `positions`: of a slot, filled or not."""

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, plan: Any) -> Tensor:
        """`query`: (positions, heads, width). `keys`, `values`: (slots, positions, fewer heads, width), with the new
        ones in them. → (positions, heads, width)."""

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, lengths: Sequence[int]) -> Tensor:
        """All (positions, heads, width). `bounds`: (windows + 1), int32; `lengths`: the same for Python, the longest
        one alone where only tensors say which are there."""


class Sdpa:
    packs = False

    def plan(self, spans: Spans, positions: int) -> tuple[Tensor, list[Tensor]]:
        """Masks: of the rows of one position, and of each longer one."""
        device = spans.slots.device
        seen = torch.arange(spans.seen, device=device) < spans.used[: spans.singles, None]
        # Each position sees those before it and itself.
        longer = [
            torch.ones(length, start + length, dtype=torch.bool, device=device).tril(start)
            for _, start, length in spans.longer
        ]
        return seen[:, None, None], longer

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, plan: Any) -> Tensor:
        seen, masks = plan
        parts = []
        if spans.singles:
            slots = spans.slots[: spans.singles]
            out = functional.scaled_dot_product_attention(
                query[: spans.singles, :, None],
                keys[slots, : spans.seen].transpose(1, 2),
                values[slots, : spans.seen].transpose(1, 2),
                attn_mask=seen,
                enable_gqa=True,
            )
            parts.append(out[:, :, 0])
        low = spans.singles
        for (slot, start, length), mask in zip(spans.longer, masks, strict=True):
            high, stop = low + length, start + length
            parts.append(_heads_first(query[low:high], keys[slot, :stop], values[slot, :stop], mask))
            low = high
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, lengths: Sequence[int]) -> Tensor:
        queries, keys, values = (torch.split(each, list(lengths)) for each in (query, key, value))
        return torch.cat([_heads_first(*part, None) for part in zip(queries, keys, values, strict=True)])


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
    packs = True

    def __init__(self) -> None:
        # Not all builds of torch have it.
        from torch.nn.attention.varlen import varlen_attn

        self._attend: Callable[..., Any] = varlen_attn

    def plan(self, spans: Spans, positions: int) -> Tensor:
        """The pages of each row, (rows, pages of a slot)."""
        assert positions % PAGE == 0, "slots are whole pages"
        count = positions // PAGE
        pages = spans.slots[:, None] * count + torch.arange(count, device=spans.slots.device)
        return pages.to(torch.int32)

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans, plan: Any) -> Tensor:
        out: Tensor = self._attend(
            query,
            keys.view(-1, PAGE, *keys.shape[2:]),
            values.view(-1, PAGE, *values.shape[2:]),
            spans.bounds,
            None,
            spans.longest,
            spans.seen,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=spans.used,
            block_table=plan,
        )
        return out

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, lengths: Sequence[int]) -> Tensor:
        longest = max(lengths)
        out: Tensor = self._attend(query, key, value, bounds, bounds, longest, longest)
        return out


def attention(name: Name, device: torch.device, dtype: torch.dtype) -> Attention:
    """Raises EngineUnusable."""
    why_not = _unfit(device, dtype)
    if name == "sdpa" or (name == "auto" and why_not is not None):
        return Sdpa()
    if why_not is not None:
        raise EngineUnusable(f"asr.attention = {name!r} needs {why_not}; `sdpa` runs everywhere")
    major = torch.cuda.get_device_capability(device)[0]
    implementation, module = FLASH.get(major, ("", ""))
    installed = bool(module) and _installed(module)
    if name == "flash" and not installed:
        wanted = f"the package that brings `{module}`" if module else "a GPU of the generations Hopper or Blackwell"
        raise EngineUnusable(f"asr.attention = 'flash' needs {wanted}; `varlen` has torch's own kernels")
    if name == "flash" or (name == "auto" and installed and major == 9):
        try:
            torch.nn.attention.activate_flash_attention_impl(implementation)
        except (ImportError, RuntimeError, OSError) as error:
            if name == "flash":
                raise EngineUnusable(f"asr.attention = 'flash': {first_line(error)}") from error
    return Varlen()


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
