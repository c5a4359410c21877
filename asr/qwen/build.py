"""From the configuration to an engine: which device, which precision, which folder."""

from __future__ import annotations

import torch

from asr import weights
from asr.engine import EngineUnusable
from asr.qwen import memory
from asr.qwen.encoder import Settling
from asr.qwen.engine import QwenEngine, Shape
from asr.qwen.execution import for_device
from asr.qwen.fused import fuse
from asr.qwen.loader import load
from asr.qwen.pair import PairEngine
from asr.qwen.quantise import quantise
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
    device, dtype = place(settings)
    means = for_device(torch.device(device), dtype, name=asr.attention, graphs=settings.graphs)
    loaded = load(folder, device=device, dtype=dtype)
    if settings.quantise != "none":
        fuse(loaded.model)
        quantise(loaded.model, settings.quantise)
    shape = Shape(
        slots=settings.slots,
        positions=settings.positions,
        batch=settings.batch,
        batch_tokens=settings.batch_tokens,
        window_s=settings.window_s or None,
        settling=Settling(settings.partials),
    )
    try:
        return QwenEngine(loaded, shape, means)
    except ValueError as error:
        raise EngineUnusable(f"qwen.window_s = {settings.window_s:g}: {error}") from None
    except (MemoryError, RuntimeError) as error:
        if not memory.exhausted(error):
            raise
        raise memory.too_large(shape.slots, shape.positions, shape.batch, error) from None


def place(settings: Qwen) -> tuple[str, torch.dtype]:
    """Device and precision, and torch told of both. Raises EngineUnusable."""
    torch.set_num_threads(settings.threads)
    device = _device(settings.device)
    kind: str = settings.dtype
    if kind == "auto":
        kind = "float32" if device == "cpu" else "bfloat16" if torch.cuda.is_bf16_supported(False) else "float16"
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # where 32 bits are asked for, TF32 is enough
    dtype: torch.dtype = getattr(torch, kind)
    return device, dtype


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise EngineUnusable(f"qwen.device = {wanted!r} is no device: auto, cpu, cuda, cuda:1") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            seen = f"{count} GPUs" if count > 1 else "one GPU" if count else "no GPU"
            raise EngineUnusable(f"qwen.device = {wanted!r}, and torch sees {seen} here")
    return wanted
