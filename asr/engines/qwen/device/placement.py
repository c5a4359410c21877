"""Chooses the device and the precision of Qwen3-ASR, and explains why the device is no GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from asr.engines import weights
from asr.engines.devices import cpu_flags, has_gpu, usual_threads
from asr.engines.interface import EngineUnusable, first_line
from config.settings import Asr, Qwen

LARGE_BYTES = 200e6
"""Weights of this size: what is smaller is fast enough on a CPU and stays exact."""
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags in /proc/cpuinfo of processors that multiply it (x86-64, x86-64, ARM); others only imitate it, slowly."""


def place(asr: Asr, settings: Qwen, folder: Path) -> tuple[str, torch.dtype]:
    """The device and precision for the model in the folder, for which torch is set up. Raises EngineUnusable."""
    torch.set_num_threads(asr.threads or usual_threads())
    device = _device(_wanted(asr))
    kind: str = settings.dtype
    if kind == "auto":
        exact = "float32" if device == "cpu" else "float16"
        kind = "bfloat16" if _has_bfloat16(device, folder) else exact
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # where 32 bits are asked for, TF32 is enough
        if torch.device(device).index is not None:
            # Else graphs and pinned memory would make a context on the first GPU too, of half a gigabyte.
            torch.cuda.set_device(device)
    dtype: torch.dtype = getattr(torch, kind)
    return device, dtype


def _has_bfloat16(device: str, folder: Path) -> bool:
    """True when this device has bfloat16: `torch.cuda.is_bf16_supported` asks the current one."""
    if device == "cpu":
        return weights.size_bytes(folder) >= LARGE_BYTES and bool(BFLOAT16 & cpu_flags())
    return torch.version.hip is not None or torch.cuda.get_device_capability(torch.device(device)) >= (8, 0)


def _wanted(asr: Asr) -> str:
    """The only device of an inference process."""
    return asr.devices[0] if asr.devices else "auto"


def _device(wanted: str) -> str:
    """`auto:1`: the second GPU, or the CPU where torch can use none."""
    if wanted.partition(":")[0] == "auto":
        return wanted.replace("auto", "cuda") if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise EngineUnusable(f"asr.devices: {wanted!r} is no device: cpu, cuda, cuda:1") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            seen = f"{count} GPUs" if count > 1 else "one GPU" if count else "no GPU"
            why = "" if count else f": {why_no_gpu()}"
            raise EngineUnusable(f"asr.devices: {wanted!r}, and torch sees {seen} here{why}")
    return wanted


def why_no_gpu() -> str:
    """The reason why torch can use no GPU, in one clause."""
    if torch.version.cuda is None and torch.version.hip is None:
        there = ", though this machine has a GPU: install one with CUDA" if has_gpu() else ""
        return f"torch {torch.__version__} is a build for CPUs{there}"
    build = f"torch {torch.__version__} for CUDA {torch.version.cuda or torch.version.hip}"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"{build} cannot use a GPU: {first_line(error)}"
    return f"{build} sees no GPU"


def warnings(asr: Asr, device: str) -> tuple[str, ...]:
    """Sentences for the operator about a CPU that nobody asked for, and about settings without effect."""
    found = []
    if device == "cpu" and _wanted(asr) != "cpu":
        found.append(
            f"Qwen3-ASR computes on the CPU, for a call or two at a time: {why_no_gpu()}. "
            "asr.devices = ['cpu'] says that this is meant"
        )
    if asr.attention != "auto":
        found.append(
            f"asr.attention = {asr.attention!r} has no effect any more and will be refused by the next release: on a "
            "GPU Qwen3-ASR has kernels of its own"
        )
    return tuple(found)
