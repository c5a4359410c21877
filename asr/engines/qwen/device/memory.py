"""The memory of a device: how much the engine does at once and keeps by what there is room for, and the errors
that there is no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from asr.engines.interface import EngineExhausted, EngineUnusable, first_line
from asr.engines.qwen.device.kernels import PAGE
from config.settings import Qwen

POSITIONS = 1024
"""An utterance of this many positions holds 30 s of audio (390), the longest context (256) and an answer of 16 tokens a
second."""
SHARE = 0.5
"""This share of the memory that is free once the model is loaded is for keys and values. The rest is for a second model
or the aligner, for graphs, and for the work space of a forward."""
MOST_REQUESTS = 128
"""The most requests in a step. With more it takes longer than a partial may, and the host, which prepares each, limits
the engine."""
SHARE_OF_A_HOST, ON_A_CPU, LEAST_ON_A_CPU = 1 / 16, 32, 4
"""A CPU follows few people with a large model, and many with a small one, whose keys and values are small."""
PARTIAL = 80
"""Positions of a partial, rounded up from 75: 5 s of audio, the prompt around it and the draft."""
CAPTURED = 2048
SHORT_WINDOW_S = 2
"""The length of a window of the encoder with `short_windows` of `qwen.experimental`."""
WORDS = (
    "DefaultCPUAllocator: ", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED", "CUFFT_INTERNAL_ERROR",
)  # fmt: skip
"""A plan of cuFFT's that gets no memory is also called an internal error."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a step and of the cache of keys and values."""

    slots: int = 16
    """The cache holds this many utterances of `positions`, or more shorter ones."""
    positions: int = POSITIONS
    """An utterance has at most this many: the prompt with its context, 13 a second of audio, and the answer."""
    page: int = PAGE
    """Positions in a page of keys and values; the kernels of a GPU need a multiple of `PAGE`."""
    batch: int = 16
    """Requests in a step at most."""
    batch_tokens: int = 128
    """All files together have at most this many new positions in a step: no call waits for more."""
    live_tokens: int = 1024
    """One call has at most this many new positions in a step."""
    captured_positions: int = 2048
    """A forward of fixed shape has at most this many positions; a larger one is done in parts."""
    window_s: float | None = None
    """Seconds of audio that attend to each other; None: as published."""
    exact_partials: bool = False
    """Partials are exact, too: see `Encoder.begin`."""


def shape_for(free_bytes: int, slot_bytes: int, settings: Qwen, *, cpu: bool) -> Shape:
    """The shape of an engine with this memory.

    Args:
        free_bytes: the memory that is free with the model loaded, of the device or of the host for each of its
            processes.
        slot_bytes: the size of the keys and values of an utterance of full length.
    """
    slots, batch = settings.slots, settings.batch
    if not slots and cpu:
        slots = max(LEAST_ON_A_CPU, min(ON_A_CPU, int(SHARE_OF_A_HOST * free_bytes / slot_bytes)), batch)
    elif not slots:
        slots = max(_round(int(SHARE * free_bytes / slot_bytes) - 1), batch)
    if not batch:
        batch = min(slots, ON_A_CPU) if cpu or slots <= ON_A_CPU else min(MOST_REQUESTS, _round(slots // 2))
    return Shape(
        slots=slots, batch=batch, batch_tokens=settings.batch_tokens, captured_positions=max(CAPTURED, PARTIAL * batch),
        window_s=SHORT_WINDOW_S if "short_windows" in settings.experimental else None,
    )  # fmt: skip


def _round(count: int) -> int:
    """A multiple of 8, at least 8."""
    return max(8, count // 8 * 8)


def exhausted(error: BaseException) -> bool:
    """torch has an error of its own for a GPU's, when its allocator has asked. A CPU's, those of CUDA's libraries, and
    those of graphs and pinned memory are known by their words alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError | EngineExhausted) or any(
        each in str(error) for each in WORDS
    )


@contextmanager
def needed_by(shape: Shape) -> Iterator[None]:
    """Raises EngineUnusable, which names the shape, where memory is exhausted."""
    try:
        yield
    except (EngineExhausted, MemoryError, RuntimeError) as error:
        if not exhausted(error):
            raise
        asked = f"qwen.slots = {shape.slots}, each of {shape.positions} positions, and qwen.batch = {shape.batch}"
        why = f"the model with {asked} needs more memory than there is: {first_line(error)}"
        raise EngineUnusable(why) from None
