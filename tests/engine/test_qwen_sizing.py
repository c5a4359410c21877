"""Slots, batch and graphs by what a GPU has room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.qwen.device.memory import MOST_REQUESTS, Shape, shape_for
from asr.engines.qwen.engine import QwenEngine
from asr.inference.inference import Inference
from asr.scheduling.request import Lane, Request
from config.settings import Qwen
from lab.engine.qwen_models import loaded, random_model

GIB = 2**30
SLOT = 1024 * 112 * 1024
"""1,024 positions of the 0.6B or 1.7B model in bfloat16."""


@pytest.mark.parametrize(
    ("gpu", "gib", "weights_gib", "expected"),
    [
        ("L4, 0.6B", 22.0, 1.5, Shape(slots=88, batch=40, captured_positions=3200)),
        ("A10, 1.7B", 22.0, 4.0, Shape(slots=80, batch=40, captured_positions=3200)),
        ("L40S, 0.6B", 44.5, 1.5, Shape(slots=192, batch=96, captured_positions=7680)),
        ("H100, 1.7B", 79.0, 4.0, Shape(slots=336, batch=128, captured_positions=10240)),
        ("H200, 0.6B", 139.0, 1.5, Shape(slots=624, batch=128, captured_positions=10240)),
    ],
)
def test_a_gpu_is_used_by_its_size(gpu: str, gib: float, weights_gib: float, expected: Shape) -> None:
    assert shape_for(int((gib - weights_gib) * GIB), SLOT, Qwen(), cpu=False) == expected


@pytest.mark.parametrize(("gib", "slot", "slots"), [(4, SLOT, 4), (20, SLOT, 11), (20, 2 * SLOT, 5), (500, SLOT, 32)])
def test_a_cpu_keeps_as_much_as_the_host_can_spare(gib: int, slot: int, slots: int) -> None:
    assert shape_for(gib * GIB, slot, Qwen(), cpu=True) == Shape(
        slots=slots, batch=slots, captured_positions=max(2048, 80 * slots)
    )
    assert shape_for(gib * GIB, slot, Qwen(slots=7), cpu=True) == Shape(slots=7, batch=7, captured_positions=2048)
    assert shape_for(gib * GIB, slot, Qwen(batch=40), cpu=True) == Shape(slots=40, batch=40, captured_positions=3200)


def test_a_small_model_has_all_its_slots() -> None:
    assert shape_for(GIB, SLOT // 100, Qwen(), cpu=True) == Shape(slots=32, batch=32, captured_positions=80 * 32)


@given(
    free=st.integers(0, 300 * GIB), cpu=st.booleans(), slot=st.integers(1000, GIB), slots=st.integers(0, 400),
    batch=st.integers(0, 400),
)  # fmt: skip
def test_what_is_set_is_kept_and_the_rest_fits(free: int, cpu: bool, slot: int, slots: int, batch: int) -> None:
    found = shape_for(free, slot, Qwen(slots=slots, batch=batch), cpu=cpu)
    assert (found.slots == slots or not slots) and (found.batch == batch or not batch)
    assert found.captured_positions >= 75 * found.batch
    assert slots or batch or 1 <= found.batch <= found.slots and found.batch <= MOST_REQUESTS
    if not slots and not batch and found.slots > (4 if cpu else 8):
        assert (found.slots + (not cpu)) * slot <= free / (16 if cpu else 2)


def test_partials_that_wait_are_bounded_by_the_batch() -> None:
    """Partials of all who speak may wait for a batch of 128; with a small one 256 may."""
    for batch, most in ((4, 256), (128, 1024)):
        made = QwenEngine(loaded(random_model()), Shape(slots=batch, batch=batch, positions=256))
        inference = Inference(made)
        for number in range(most + 9):
            inference.scheduler.submit(Request(str(number), 1, Lane.PARTIAL, False, 0, 0.0))
        assert inference.scheduler.shed_partials == 9
    assert Shape().captured_positions == 2048
