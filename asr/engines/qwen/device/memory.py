"""Memory that is not there: how it is known, and what is said of it."""

from __future__ import annotations

import torch

from asr.engines.interface import EngineUnusable, first_line


def exhausted(error: BaseException) -> bool:
    """On a GPU torch has an error of its own for it; a CPU's is known by its words alone."""
    words = ("DefaultCPUAllocator: ", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(each in str(error) for each in words)


def too_large(slots: int, positions: int, batch: int, error: BaseException) -> EngineUnusable:
    asked = f"qwen.slots = {slots}, each of {positions} positions, and qwen.batch = {batch}"
    return EngineUnusable(f"the model with {asked} needs more memory than there is: {first_line(error)}")
