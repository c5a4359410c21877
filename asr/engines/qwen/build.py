"""Builds an engine from the configuration."""

from __future__ import annotations

import torch

from asr.engines import weights
from asr.engines.devices import free_memory_bytes
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device import memory
from asr.engines.qwen.device import placement as devices
from asr.engines.qwen.device.execution import for_device
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.kv_cache import position_bytes
from asr.engines.qwen.model.loader import load
from asr.engines.qwen.model.quantise import quantise
from asr.engines.qwen.pair import PairEngine
from config.settings import Asr, Qwen


def build(asr: Asr, settings: Qwen) -> QwenEngine | PairEngine:
    """Raises EngineUnusable."""
    if not asr.partials_model:
        return _engine(asr.model, asr, settings)
    large, small = (_engine(model, asr, settings) for model in (asr.model, asr.partials_model))
    return PairEngine(small, large)


def _engine(model: str, asr: Asr, settings: Qwen) -> QwenEngine:
    folder = weights.find(model)
    if folder is None:
        raise EngineUnusable(weights.missing(model))
    device, dtype = devices.place(asr, settings, folder)
    means = for_device(torch.device(device), graphs=settings.graphs)
    loaded = load(folder, device=device, dtype=dtype)
    if settings.quantise != "none":
        fuse(loaded.model)
        quantise(loaded.model, settings.quantise)
    cpu = torch.device(device).type == "cpu"
    free = free_memory_bytes() // max(1, asr.processes) if cpu else torch.cuda.mem_get_info(device)[0]
    slot_bytes = memory.POSITIONS * position_bytes(loaded.model.config.get_text_config(), dtype)
    shape = memory.shape_for(free, slot_bytes, settings, cpu=cpu)
    with memory.needed_by(shape):
        made = QwenEngine(loaded, shape, means)
    made.warnings = devices.warnings(asr, device)
    return made
