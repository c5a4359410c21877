"""The engine's kernels in Triton's interpreter, in 32 bits and in IEEE's 16: it has no bfloat16, which
`test_qwen_gpu` compares on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.qwen.device.kernels import Rows
from asr.engines.qwen.device.triton_kernels import Triton
from lab.engine import packed_mixes as mixes
from lab.engine.packed_mixes import Heads

HEADS = (Heads(4, 2, 16), Heads(4, 2, 24), Heads(3, 3, 16), Heads(8, 1, 32), Heads(6, 2, 16))
KINDS = (torch.float32, torch.float16)
rows = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 190), st.just(1)),
        st.tuples(st.integers(0, 100), st.integers(2, 90)),
    ),
    min_size=1,
    max_size=4,
)


@given(rows=rows, heads=st.sampled_from(HEADS), dtype=st.sampled_from(KINDS), filled=st.integers(0, 40))
def test_any_mix_of_rows_is_what_each_row_is_alone(
    rows: list[tuple[int, int]], heads: Heads, dtype: torch.dtype, filled: int
) -> None:
    mixes.rows(Triton(), rows, heads, dtype, "cpu", filled=filled, spare=2 if filled else 0)


@given(lengths=st.lists(st.integers(1, 110), min_size=1, max_size=4), heads=st.sampled_from(HEADS[:3]),
       dtype=st.sampled_from(KINDS), filled=st.integers(0, 40))  # fmt: skip
def test_windows_see_themselves_alone(lengths: list[int], heads: Heads, dtype: torch.dtype, filled: int) -> None:
    heads = Heads(heads.queries, heads.queries, heads.width)
    mixes.windows(Triton(), lengths, heads, dtype, "cpu", filled=filled, spare=2)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("heads", HEADS)
def test_what_stands_between_the_matrices(heads: Heads, dtype: torch.dtype) -> None:
    mixes.between(Triton(), 13, heads, dtype, "cpu")


def test_a_key_more_or_less_is_noticed() -> None:
    """The mixes can fail: a kernel that is off by one position does."""

    class Off(Triton):
        def plan(self, rows: Rows, count: int, group: int) -> Any:
            return super().plan(replace(rows, context_lens=rows.context_lens - 1), count, group)

    with pytest.raises(AssertionError, match="differ by"):
        mixes.rows(Off(), [(30, 1), (9, 5)], HEADS[0], torch.float32, "cpu")
