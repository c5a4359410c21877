"""How the engine's arithmetic is carried out on its device: the three choices that a CPU and a GPU differ in."""

from __future__ import annotations

import torch

from asr.engines.qwen.device.attention import Name, attention
from asr.engines.qwen.device.graphs import Captured, Eager
from asr.engines.qwen.device.interface import Execution
from asr.engines.qwen.device.staging import staging


def for_device(
    device: torch.device, dtype: torch.dtype, *, name: Name = "auto", graphs: bool | None = None
) -> Execution:
    """`graphs`: None for what suits the device. Raises EngineUnusable."""
    captured = device.type == "cuda" and graphs is not False
    return Execution(attention(name, device, dtype), Captured(device) if captured else Eager(), staging(device))
