"""How the engine's arithmetic is carried out on its device: the three choices that a CPU and a GPU differ in."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from asr.engines.qwen.device.graphs import Captured, Eager
from asr.engines.qwen.device.interface import Execution, Kernels
from asr.engines.qwen.device.plain import Plain
from asr.engines.qwen.device.staging import staging


def for_device(device: torch.device, *, graphs: bool = True) -> Execution:
    """On a GPU our kernels and graphs, where Triton is, which comes with the builds of torch for CUDA."""
    kernels: Kernels = Plain()
    if device.type == "cuda":
        # It is chosen by version, generation and length of rows; what is left takes any of them.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if find_spec("triton") is not None:
            from asr.engines.qwen.device.kernels import Triton

            kernels = Triton()
    recorded = device.type == "cuda" and kernels.graphs and graphs
    return Execution(kernels, Captured(device) if recorded else Eager(), staging(device))
