"""The engine's arithmetic in the ways a GPU does it: packed attention, fixed shapes, one wait a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.engines.interface import EngineUnusable
from asr.engines.qwen import engine as engine_module
from asr.engines.qwen import session
from asr.engines.qwen.device import attention as attention_module
from asr.engines.qwen.device.attention import PAGE, Sdpa, Varlen
from asr.engines.qwen.device.graphs import bucket, buckets
from asr.engines.qwen.device.interface import Execution, Spans, Windows
from asr.engines.qwen.engine import QwenEngine, Shape
from asr.engines.qwen.model.loader import load
from asr.server.scheduler import Lane, Request
from asr.utterance import Utterance
from tests.engine import test_qwen_engine
from tests.engine.test_qwen_engine import said  # noqa: F401
from tests.support import kernels
from tests.support.peers import ROOT, TINY
from tests.support.qwen_models import check_said, loaded, noise, random_model
from tests.support.recorded import EXECUTIONS, Recorded

ways = pytest.mark.parametrize("make", EXECUTIONS.values(), ids=EXECUTIONS)


# -- attention ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 299), st.integers(1, 40)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_all_kinds_see_the_same_slots(rows: list[tuple[int, int]], seed: int) -> None:
    """(valid before, new positions) of each row."""
    torch.manual_seed(seed)
    rows = sorted(rows, key=lambda row: row[1] > 1)
    keys, values = torch.randn(2, len(rows), 2 * PAGE, 2, 8)
    lengths = [length for _, length in rows]
    used = [start + length for start, length in rows]
    singles = lengths.count(1)
    slots = torch.randperm(len(rows))
    known = Spans(
        bounds=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        slots=slots,
        used=torch.tensor(used, dtype=torch.int32),
        longest=max(lengths),
        seen=max(used),
        singles=singles,
        longer=[(int(slots[at]), *rows[at]) for at in range(singles, len(rows))],
    )
    query = torch.randn(sum(lengths), 4, 8)
    unknown = replace(known, singles=0, longer=None)
    kernels.use("FA3")
    outs = [
        each.over_slots(query, keys, values, spans, each.plan(spans, keys, len(query), 4))
        for each, spans in ((Sdpa(), known), (Sdpa(), unknown), (Varlen("FA3"), unknown))
    ]
    assert all((out - outs[0]).abs().max() < 1e-5 for out in outs[1:])


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(1, 104), min_size=1, max_size=8))
def test_all_kinds_see_the_same_windows(lengths: list[int]) -> None:
    query, key, value = torch.randn(3, sum(lengths), 4, 16)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    kernels.use("FA2")
    outs = [
        each.over_windows(query, key, value, windows, each.plan_windows(windows, query))
        for each, windows in (
            (Sdpa(), Windows(bounds, max(lengths), lengths)),
            (Sdpa(), Windows(bounds, max(lengths), None)),
            (Varlen(), Windows(bounds, max(lengths), None)),
        )
    ]
    assert all((out - outs[0]).abs().max() < 1e-5 for out in outs[1:])


@given(st.integers(1, 5000))
def test_sizes_hold_what_they_are_for(most: int) -> None:
    sizes = buckets(most)
    assert sizes[-1] == most and list(sizes) == sorted(set(sizes))
    for count in range(1, most + 1):
        size = bucket(count, sizes)
        assert size is not None and count <= size < 2 * count + 1
    assert bucket(most + 1, sizes) is None


CUDA, HALF = torch.device("cuda"), torch.bfloat16


@pytest.mark.parametrize(
    ("name", "capability", "dtype", "installed", "expected"),
    [
        ("auto", (9, 0), HALF, {"flash_attn_interface"}, ("sdpa", None)),
        ("auto", (7, 5), torch.float16, set(), ("sdpa", None)),
        ("sdpa", (9, 0), torch.float32, {"flash_attn_interface"}, ("sdpa", None)),
        ("varlen", (9, 0), HALF, {"flash_attn_interface"}, ("varlen", None)),
        ("varlen", (8, 9), HALF, set(), ("varlen", None)),
        ("flash", (9, 0), HALF, {"flash_attn_interface"}, ("flash", "FA3")),
        ("flash", (10, 0), HALF, {"flash_attn.cute"}, ("flash", "FA4")),
        ("flash", (9, 0), HALF, set(), "needs the package that brings `flash_attn_interface`"),
        ("flash", (8, 0), HALF, set(), "needs a GPU of the generations Hopper or Blackwell"),
        ("varlen", (7, 5), HALF, set(), "needs a GPU from Ampere on, and this is T4"),
        ("varlen", (9, 0), torch.float32, set(), "needs 16 bits, and qwen.dtype is float32"),
    ],
)
def test_attention_is_chosen_by_what_is_there(
    name: Any, capability: tuple[int, int], dtype: torch.dtype, installed: set[str], expected: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    active: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    monkeypatch.setattr(attention_module, "_installed", lambda module: module in installed)
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", active.append)
    if isinstance(expected, str):
        with pytest.raises(EngineUnusable, match=expected):
            attention_module.attention(name, CUDA, dtype)
        return
    made = attention_module.attention(name, CUDA, dtype)
    assert (made.name, active[0] if active else None) == expected
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "cuDNN is never chosen behind our back"


# -- the engine --------------------------------------------------------------------------------------------------------


@ways
def test_any_mix_says_what_the_library_says(
    make: Callable[[], Execution],
    said: list[list[int]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "for_device", lambda *_: make())
    test_qwen_engine.test_any_mix_of_calls_and_files_says_what_each_alone_says(7, said, monkeypatch)


@ways
@pytest.mark.parametrize("seconds", [8.0])
def test_partials_and_finals_are_the_librarys(
    make: Callable[[], Execution],
    seconds: float,
    said: list[list[int]],  # noqa: F811
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(engine_module, "for_device", lambda *_: make())
    test_qwen_engine.test_partials_and_finals_are_the_librarys(seconds, said, monkeypatch)


def _work(made: QwenEngine, codes: dict[str, bytes], step: Callable[[list[Request]], Any]) -> None:
    """Everybody speaks, half a second at a time, and has an answer to each."""
    for name in codes:
        made.open(Utterance(name, "PCMU", live=not name.startswith("file")))
    for revision, end in enumerate(range(4000, max(map(len, codes.values())) + 4000, 4000)):
        waiting = []
        for name, spoken in codes.items():
            if (new := spoken[end - 4000 : end]) and not name.startswith("file") or end == 4000:
                made.append(name, new if name[:4] != "file" else spoken)
                heard = min(end, len(spoken)) if name[:4] != "file" else len(spoken)
                final = heard == len(spoken)
                lane = Lane.BATCH if name[:4] == "file" else Lane.FINAL if final else Lane.PARTIAL
                waiting.append(Request(name, revision, lane, final, heard, 0.0))
        while waiting:
            done = {answer.request.utterance_id for answer in step(waiting)}
            waiting = [request for request in waiting if request.utterance_id not in done]


@ways
def test_the_host_waits_twice_a_step_at_most(make: Callable[[], Execution], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest", lambda seconds: 12)
    means = make()
    made = QwenEngine(loaded(random_model()), Shape(slots=4, batch=4, captured_positions=96), means)
    made.warm_up()

    def step(requests: list[Request]) -> Any:
        before = means.staging.waits
        answers = made.step(requests)
        assert means.staging.waits - before <= 2, "how loud the new sound is, and the tokens"
        return answers

    codes = {f"{kind}-{n}": noise(1.3 + 2.9 * n, seed=n) for n in range(2) for kind in ("live", "file")}
    _work(made, codes, step)
    assert means.staging.waits > 20


def test_nothing_is_recorded_once_calls_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size has been met in the warm-up, whatever the rows."""
    monkeypatch.setattr(session, "longest", lambda seconds: 12)
    means = EXECUTIONS["sdpa, recorded"]()
    assert isinstance(means.graphs, Recorded)
    made = QwenEngine(loaded(random_model()), Shape(slots=4, batch=4, captured_positions=384), means)
    made.warm_up()
    known = set(means.graphs.runs)
    assert {kind for kind, _ in known} == {"text", "head", "chunks", "windows"}
    means.graphs.runs.clear()
    codes = {f"live-{n}": noise(0.6 + 4.1 * n, seed=n) for n in range(3)} | {"file": noise(12.0, seed=9)}
    _work(made, codes, made.step)
    assert means.graphs.runs and set(means.graphs.runs) <= known


def test_what_is_too_large_for_a_graph_goes_without(said: list[list[int]], monkeypatch: Any) -> None:  # noqa: F811
    monkeypatch.setattr(session, "longest", lambda seconds: 12)
    monkeypatch.setattr(engine_module, "for_device", lambda *_: EXECUTIONS["sdpa, recorded"]())
    made, codes = test_qwen_engine.engine(said, captured_positions=64), noise(12.0, seed=5)
    made.open(Utterance("u", "PCMU"))
    made.append("u", codes)
    test_qwen_engine.answer(made, Request("u", 1, Lane.FINAL, True, len(codes), 0.0))
    check_said(said[-1], random_model(), codes, made.prompts.build(), 12)


def test_in_half_precision_the_tiny_model_reads_the_same() -> None:
    """bfloat16, in which a GPU computes."""
    codes = (ROOT / "tests" / "data" / "digits" / "customer.ulaw").read_bytes()
    texts = []
    for kind in (torch.float32, torch.bfloat16):
        made = QwenEngine(load(TINY, dtype=kind), Shape(slots=2, batch=2), EXECUTIONS["FA2"]())
        made.open(Utterance("u", "PCMU"))
        made.append("u", codes)
        request = Request("u", 1, Lane.FINAL, True, len(codes), 0.0)
        answers = []
        while not answers:
            answers = made.step([request])
        texts.append(answers[0].text.split())
    assert len(texts[0]) >= 4 and texts[0] == texts[1]
