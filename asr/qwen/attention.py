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

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans) -> Tensor:
        """`query`: (positions, heads, width). `keys`, `values`: (slots, positions, fewer heads, width), with the new
        ones in them. → (positions, heads, width)."""

    def over_windows(self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, lengths: Sequence[int]) -> Tensor:
        """All (positions, heads, width). `bounds`: (windows + 1), int32; `lengths`: the same for Python, the longest
        one alone where only tensors say which are there."""


class Sdpa:
    packs = False

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans) -> Tensor:
        parts = []
        if spans.singles:
            parts.append(self._singles(query[: spans.singles], keys, values, spans))
        low = spans.singles
        for slot, start, length in spans.longer:
            high, stop = low + length, start + length
            mask = torch.ones(length, stop, dtype=torch.bool, device=query.device).tril(start)
            parts.append(_heads_first(query[low:high], keys[slot, :stop], values[slot, :stop], mask))
            low = high
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _singles(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans) -> Tensor:
        slots = spans.slots[: spans.singles]
        positions = torch.arange(spans.seen, device=query.device)
        mask = positions < spans.used[: spans.singles, None]
        out = functional.scaled_dot_product_attention(
            query[:, :, None],
            keys[slots, : spans.seen].transpose(1, 2),
            values[slots, : spans.seen].transpose(1, 2),
            attn_mask=mask[:, None, None],
            enable_gqa=True,
        )
        return out[:, :, 0]

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

    def over_slots(self, query: Tensor, keys: Tensor, values: Tensor, spans: Spans) -> Tensor:
        slots, positions = keys.shape[:2]
        per_slot = positions // PAGE
        assert positions % PAGE == 0, "slots are whole pages"
        pages = spans.slots[:, None] * per_slot + torch.arange(per_slot, device=query.device)
        out: Tensor = self._attend(
            query,
            keys.view(slots * per_slot, PAGE, *keys.shape[2:]),
            values.view(slots * per_slot, PAGE, *values.shape[2:]),
            spans.bounds,
            None,
            spans.longest,
            spans.seen,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=spans.used,
            block_table=pages.to(torch.int32),
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
