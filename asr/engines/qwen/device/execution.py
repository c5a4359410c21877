"""How the engine's arithmetic is carried out on its device: the three choices that a CPU and a GPU differ in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asr.engines.qwen.device.attention import Attention, Name, Sdpa, attention
from asr.engines.qwen.device.graphs import Captured, Eager, Graphs
from asr.engines.qwen.device.staging import Staging, staging


@dataclass(frozen=True, slots=True)
class Execution:
    attention: Attention
    graphs: Graphs
    staging: Staging

    @property
    def plain(self) -> bool:
        """Nothing could be simpler."""
        return isinstance(self.attention, Sdpa) and not self.graphs.fixed


def for_device(
    device: torch.device, dtype: torch.dtype, *, name: Name = "auto", graphs: bool | None = None
) -> Execution:
    """`graphs`: None for what suits the device. Raises EngineUnusable."""
    captured = device.type == "cuda" and graphs is not False
    return Execution(attention(name, device, dtype), Captured(device) if captured else Eager(), staging(device))
