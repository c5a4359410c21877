"""Memory that is not there: how it is known, and what is said of it."""

from __future__ import annotations

import torch

from asr.engines.interface import EngineUnusable, first_line

WORDS = (
    "DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED", "CUFFT_INTERNAL_ERROR",
)  # fmt: skip
"""A plan of cuFFT's that gets no memory is also called an internal error."""


def exhausted(error: BaseException) -> bool:
    """torch has an error of its own for a GPU's, when its allocator has asked. A CPU's, those of CUDA's libraries, and
    those of graphs and pinned memory are known by their words alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(each in str(error) for each in WORDS)


def too_large(slots: int, positions: int, batch: int, error: BaseException) -> EngineUnusable:
    asked = f"qwen.slots = {slots}, each of {positions} positions, and qwen.batch = {batch}"
    return EngineUnusable(f"the model with {asked} needs more memory than there is: {first_line(error)}")
