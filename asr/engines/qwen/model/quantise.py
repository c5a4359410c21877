"""Weights in 8 bits: the linear layers of the encoder and of the text model, which are nearly all that is multiplied.

A row of weights has a scale of its own, found once; so has every row of activations, found on the spot. The answer
to an utterance therefore does not depend on the others in the step. No shape depends on data and nothing waits for
the device, so all of it can be captured in a CUDA graph. Beside the product there is a kernel before it, and for
integers one behind it: `Kernels.narrow` and `Kernels.widen`.

It needs torch alone. torchao 0.18 is not used: its int8 product waits for the host, which ends a graph's capture, and
its fp8 makes NaN of the zeros in padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import ScalingType

from asr.engines.interface import EngineUnusable, first_line
from asr.engines.qwen.device.kernels import LOUDEST, Kernels, narrow

Kind = Literal["int8", "fp8"]

NO_OVERFLOW = 64.0
"""The loudest weight on a CPU that adds two products of 8 bits in 16: 2 × 255 × 64 fits, 2 × 255 × 127 is cut off."""
GPU_ROWS = 32
"""The fewest rows of integers on a GPU: cuBLAS refuses 16 and fewer."""
MULTIPLE = 16
"""Both sides of a layer are multiples of this: int8 needs 8 on a GPU, fp8 needs 16."""
FP8_CAPABILITY = (8, 9)


class Quantised(nn.Module, ABC):
    """A layer of 8 bits in the place of a `Linear`."""

    weight: Tensor
    """(out, in), 8 bits."""
    scale: Tensor
    """(out,), float32."""
    bias: Tensor | None
    """(out,), float32."""
    kernels: Kernels
    """The kernels of the forward that the layer is in: see `use`."""

    def __init__(self, linear: nn.Linear, kind: torch.dtype, loudest: float) -> None:
        super().__init__()
        weight, scale = narrow(linear.weight.detach(), kind, loudest)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())
        self.kernels = Kernels()

    def forward(self, input: Tensor) -> Tensor:
        out = self._multiply(input.reshape(-1, input.shape[-1]))
        return out.reshape(*input.shape[:-1], -1)

    @abstractmethod
    def _multiply(self, rows: Tensor) -> Tensor: ...


class Int8(Quantised):
    def __init__(self, linear: nn.Linear, loudest: float = LOUDEST[torch.int8]) -> None:
        super().__init__(linear, torch.int8, loudest)
        self.fewest_rows = GPU_ROWS if linear.weight.is_cuda else 0

    def _multiply(self, rows: Tensor) -> Tensor:
        small, scale = self.kernels.narrow(rows, torch.int8, self.fewest_rows)
        product = torch._int_mm(small, self.weight.t())[: len(rows)]
        return self.kernels.widen(product, scale, self.scale, self.bias, rows.dtype)


class Fp8(Quantised):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear, torch.float8_e4m3fn, LOUDEST[torch.float8_e4m3fn])

    def _multiply(self, rows: Tensor) -> Tensor:
        small, scale = self.kernels.narrow(rows, torch.float8_e4m3fn, 0)
        # Not every GPU can give anything but bfloat16 here.
        out = functional.scaled_mm(
            small, self.weight.t(), scale[:, None], ScalingType.RowWise, self.scale[None], ScalingType.RowWise,
            output_dtype=torch.bfloat16,
        )  # fmt: skip
        return (out if self.bias is None else out + self.bias).to(rows.dtype)


def use(layers: Iterable[nn.Module], kernels: Kernels) -> None:
    """Use these kernels in the layers that are quantised."""
    for layer in layers:
        for module in layer.modules():
            if isinstance(module, Quantised):
                module.kernels = kernels


def quantise(model: Any, kind: Kind) -> None:
    """Change a `Qwen3ASRForConditionalGeneration` on its device for good. Raises EngineUnusable.

    An engine takes it only if it was fused before: what is narrow cannot be joined any more.

    As they are: the embeddings, and the head, which is the same tensor and decides between words that nearly tie; the
    convolutions and the projector, which are small.
    """
    device = model.device
    check(kind, device)
    loudest = LOUDEST[torch.int8] if adds_in_32_bits(device) else NO_OVERFLOW
    layers = [*model.model.audio_tower.layers, *model.model.language_model.layers]
    parents = [module for layer in layers for module in layer.modules()]
    for parent in parents:
        for name, linear in list(parent.named_children()):
            if not isinstance(linear, nn.Linear):
                continue
            if any(side % MULTIPLE for side in linear.weight.shape):
                shape = " × ".join(map(str, linear.weight.shape))
                raise EngineUnusable(
                    f"qwen.experimental = [{kind!r}]: {name} is {shape}, and multiples of {MULTIPLE} can be"
                )
            setattr(parent, name, Int8(linear, loudest) if kind == "int8" else Fp8(linear))
    try_out = next(module for module in model.modules() if isinstance(module, Quantised))
    try:
        try_out(torch.zeros(1, try_out.weight.shape[1], dtype=model.dtype, device=device))
    except RuntimeError as error:
        raise EngineUnusable(
            f"qwen.experimental = [{kind!r}] does not work on {device}: {first_line(error)}"
        ) from error


def check(kind: Kind, device: torch.device) -> None:
    """Raises EngineUnusable when a device cannot do it."""
    if device.type not in ("cpu", "cuda"):
        raise EngineUnusable(f"qwen.experimental = [{kind!r}] works on a CPU and on NVIDIA GPUs, and this is {device}")
    if kind == "fp8" and device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        if found < FP8_CAPABILITY:
            wanted, has = (".".join(map(str, each)) for each in (FP8_CAPABILITY, found))
            raise EngineUnusable(
                f"qwen.experimental = ['fp8'] needs a GPU of compute capability {wanted} (Ada, Hopper) or later,"
                f" and {device} has {has}: 'int8' works there"
            )


def adds_in_32_bits(device: torch.device) -> bool:
    """False for a CPU without VNNI: it adds pairs of products in 16 bits, and cuts off without an error what does not
    fit."""
    rows = torch.full((GPU_ROWS, 64), 127, dtype=torch.int8, device=device)
    return bool((torch._int_mm(rows, rows.t()) == 64 * 127 * 127).all())
