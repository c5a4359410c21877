"""The engine's calls of attention against what each kernel on a GPU takes: a call that one would refuse is refused
here, and a known error of one shows in the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from asr.engines.interface import EngineUnusable
from asr.engines.qwen import session
from asr.engines.qwen.device import attention as attention_module
from asr.engines.qwen.device.attention import PAGE, Sdpa, Varlen
from asr.engines.qwen.device.interface import Execution, Spans, Windows
from asr.engines.qwen.device.staging import Direct
from asr.engines.qwen.engine import QwenEngine, Shape
from asr.server.scheduler import Lane, Request
from asr.utterance import Utterance
from tests.engine.test_qwen_engine import engine, said  # noqa: F401
from tests.support import kernels
from tests.support.qwen_models import check_said, loaded, noise, random_model
from tests.support.recorded import Recorded

ROWS = 4


@pytest.fixture(autouse=True)
def cudnn() -> Iterator[None]:
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(enabled)
    kernels.use("FA2")


def decoding(**changes: Any) -> Tensor:
    """A step of decoding as it was before each implementation's contract was read, or with what has changed since."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, ROWS * 4, PAGE, 2, 64)
    call = {
        "cu_seq_q": torch.arange(ROWS + 1, dtype=torch.int32), "cu_seq_k": None, "max_q": 1, "max_k": 4 * PAGE,
        "window_size": (-1, 0), "enable_gqa": True, "seqused_k": torch.tensor([9, 300, 700, 1000], dtype=torch.int32),
        "block_table": torch.arange(ROWS * 4, dtype=torch.int32).view(ROWS, 4),
    }  # fmt: skip
    out = varlen.varlen_attn(torch.randn(ROWS, 4, 64), keys, values, **(call | changes))
    assert isinstance(out, Tensor)
    return out


BOUNDS = torch.arange(ROWS + 1, dtype=torch.int32) * 4 * PAGE


def test_flash_attention_2_refuses_the_calls_of_before() -> None:
    kernels.use("FA2")
    with pytest.raises(RuntimeError, match="must be both set or both not set"):
        decoding()
    with pytest.raises(RuntimeError, match="block size must be divisible by 256"):
        varlen.varlen_attn(
            torch.randn(1, 4, 64), *torch.randn(2, 4, 64, 4, 64), torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([0, 9], dtype=torch.int32), 1, 9, seqused_k=torch.tensor([9], dtype=torch.int32),
            block_table=torch.zeros(1, 1, dtype=torch.int32),
        )  # fmt: skip


def test_flash_attention_3_refuses_what_2_wants() -> None:
    kernels.use("FA3")
    decoding()
    with pytest.raises(RuntimeError, match="page table is not supported"):
        decoding(cu_seq_k=BOUNDS)


def test_split_keys_are_wrong_behind_the_first_row() -> None:
    """Silently: pytorch issue 194167."""
    kernels.use("FA3")
    right = decoding()
    kernels.use("FA2")
    torch.testing.assert_close(decoding(cu_seq_k=BOUNDS, num_splits=1), right)
    wrong = decoding(cu_seq_k=BOUNDS)
    assert wrong.isfinite().all() and all((wrong[row] - right[row]).abs().max() > 0.01 for row in range(1, ROWS))


@pytest.mark.parametrize("implementation", ["FA2", "FA3", "cuDNN"])
def test_what_the_engine_calls_is_what_each_takes(implementation: kernels.Implementation) -> None:
    kernels.use(implementation)
    torch.manual_seed(0)
    keys, values = torch.randn(2, 5, 4 * PAGE, 2, 64)
    starts, lengths = [8, 299, 650, 0], [1, 1, 50, 200]
    spans = Spans(
        bounds=torch.tensor([0, 1, 2, 52, 252], dtype=torch.int32), slots=torch.tensor([3, 0, 2, 4]),
        used=torch.tensor([9, 300, 700, 200], dtype=torch.int32), longest=252, seen=4 * PAGE, singles=2,
        longer=[(2, 650, 50), (4, 0, 200)],
    )  # fmt: skip
    query = torch.randn(sum(lengths), 4, 64)
    kernels.calls.clear()
    mine, plain = Varlen("FA3" if implementation == "FA3" else "FA2"), Sdpa()
    outs = [each.over_slots(query, keys, values, spans, each.plan(spans, keys, 252, 4)) for each in (mine, plain)]
    torch.testing.assert_close(*outs, atol=1e-5, rtol=0)
    assert starts[3] == 0
    # Rows this long torch 2.15 gives to cuDNN, if it may.
    windows = Windows(torch.tensor([0, 52, 252], dtype=torch.int32), 200, [52, 200])
    outs = [each.over_windows(query, query, query, windows, None) for each in (mine, plain)]
    torch.testing.assert_close(*outs, atol=1e-5, rtol=0)
    assert set(kernels.calls) == {"FA3" if implementation == "FA3" else "FA2"}
    if implementation == "cuDNN":
        bounds = windows.bounds
        varlen.varlen_attn(query, query, query, bounds, bounds, 200, 200)  # as it was called before
        assert kernels.calls["cuDNN"] == 1


def test_a_torch_without_pages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function as torch 2.11 has it."""

    def varlen_attn(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *,
        return_aux: Any = None, scale: Any = None, window_size: Any = (-1, -1),
    ) -> None: ...  # fmt: skip

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    with pytest.raises(EngineUnusable, match=r"takes block_table, enable_gqa, num_splits, seqused_k.*`sdpa` runs"):
        Varlen()


def test_graphs_call_only_fused_sdpa(said: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Each call that is recorded is one that the memory-efficient kernel takes: `math` would make float32 copies."""
    plain = attention_module.functional.scaled_dot_product_attention
    refused: list[str] = []

    def noted(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, enable_gqa: bool = False
    ) -> Tensor:
        refused.append(kernels.fused_sdpa_refuses(query, key, value, attn_mask, enable_gqa))
        return plain(query, key, value, attn_mask=attn_mask, enable_gqa=enable_gqa)

    monkeypatch.setattr(session, "longest", lambda seconds: 12)
    made = QwenEngine(
        loaded(random_model()), Shape(slots=2, batch=2, captured_positions=24), Execution(Sdpa(), Recorded(), Direct())
    )
    monkeypatch.setattr(attention_module.functional, "scaled_dot_product_attention", noted)
    made.packed.capture()
    made.encoder.tower.attend([[torch.randn(length, 64)] for length in (13, 104, 7)])
    assert len(refused) > 20 and set(refused) == {""}


def test_the_old_calls_say_garbage_from_the_second_row_on(
    said: list[list[int]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four calls of an engine whose attention leaves `num_splits` to the kernel, as it did."""
    monkeypatch.setattr(session, "longest", lambda seconds: 12)
    kernels.use("FA2")
    splitting = Varlen()
    pinned = splitting._attend
    splitting._attend = lambda *args, num_splits=None, **more: pinned(*args, **more)
    codes = [noise(1.5 + row, seed=row) for row in range(ROWS)]
    for attention, right in ((Varlen(), True), (splitting, False)):
        monkeypatch.setattr(
            "asr.engines.qwen.engine.for_device", lambda *_, chosen=attention: Execution(chosen, Recorded(), Direct())
        )
        made = engine(said)
        for row, spoken in enumerate(codes):
            made.open(Utterance(str(row), "PCMU"))
            made.append(str(row), spoken)
        waiting = [Request(str(row), 1, Lane.FINAL, True, len(spoken), 0.0) for row, spoken in enumerate(codes)]
        answers: dict[str, list[int]] = {}
        while waiting:
            for answer in made.step(waiting):
                answers[answer.request.utterance_id] = made.said(answer.request.utterance_id)
            waiting = [request for request in waiting if request.utterance_id not in answers]
        for row in range(ROWS):
            if right:
                check_said(answers[str(row)], random_model(), codes[row], made.prompts.build(), 12)
        if not right:
            with pytest.raises(AssertionError):
                for row in range(1, ROWS):
                    check_said(answers[str(row)], random_model(), codes[row], made.prompts.build(), 12)
