"""The engine's arithmetic in the ways a GPU does it: packed attention, fixed shapes, one wait a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.qwen import engine as engine_module
from asr.engines.qwen.device import execution
from asr.engines.qwen.device.execution import Execution, Staging, bucket, buckets, for_device
from asr.engines.qwen.device.kernels import Kernels, Rows
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import load
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from lab.engine import packed_mixes
from lab.engine.packed_mixes import Heads
from lab.engine.qwen_answers import check_any_mix, check_partials_and_finals, engine, said, shorten  # noqa: F401
from lab.engine.qwen_models import check_said, loaded, noise, random_model, reference
from lab.engine.recorded import EXECUTIONS, Emulated, Recorded
from lab.worker.peers import ROOT, TINY

ways = pytest.mark.parametrize("make", EXECUTIONS.values(), ids=EXECUTIONS)


# -- attention ---------------------------------------------------------------------------------------------------------


HEADS = Heads(4, 2, 16)


@given(
    known=st.lists(st.tuples(st.integers(0, 299), st.integers(1, 40)), min_size=1, max_size=6),
    filled=st.integers(0, 30),
)
def test_the_emulation_computes_what_the_kernels_do(known: list[tuple[int, int]], filled: int) -> None:
    """(positions before, new ones) of each row. What the tests below show holds for the kernels so far as this does."""
    # In place of what was never written there: a gather reads it, and a kernel does not.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "nan", 1e3)
        packed_mixes.rows(Emulated(), known, HEADS, torch.float32, "cpu", filled=filled, spare=2 if filled else 0)


@given(lengths=st.lists(st.integers(1, 104), min_size=1, max_size=8), filled=st.integers(0, 30))
def test_the_emulation_sees_the_same_windows(lengths: list[int], filled: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "nan", 1e3)
        packed_mixes.windows(Emulated(), lengths, Heads(4, 4, 16), torch.float32, "cpu", filled=filled, spare=3)


@given(known=st.lists(st.tuples(st.integers(0, 299), st.integers(1, 40)), min_size=1, max_size=6))
def test_plain_operations_see_what_each_row_sees(known: list[tuple[int, int]]) -> None:
    class Known(Kernels):
        def plan(self, rows: Rows, count: int, group: int) -> Any:
            return super().plan(replace(rows, known=known), count, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "nan", 1e3)
        packed_mixes.rows(Known(), known, HEADS, torch.float32, "cpu")


@given(st.integers(1, 5000))
def test_sizes_hold_what_they_are_for(most: int) -> None:
    sizes = buckets(most)
    assert sizes[-1] == most and list(sizes) == sorted(set(sizes))
    for count in range(1, most + 1):
        size = bucket(count, sizes)
        assert size is not None and count <= size < 2 * count + 1
    assert bucket(most + 1, sizes) is None


@pytest.mark.parametrize(("triton", "graphs", "expected"), [
    (True, True, "triton with graphs"), (True, False, "triton without graphs"), (False, True, "sdpa without graphs"),
])  # fmt: skip
def test_a_gpu_has_kernels_and_graphs_where_triton_is(
    triton: bool, graphs: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(execution, "Captured", lambda device: Recorded())
    monkeypatch.setattr(execution, "Copying", lambda device: Staging())
    assert for_device(torch.device("cuda"), graphs=graphs).described == expected
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "cuDNN is never chosen behind our back"
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert for_device(torch.device("cpu"), graphs=graphs).plain


# -- the engine --------------------------------------------------------------------------------------------------------


@ways
def test_any_mix_says_what_the_library_says(
    make: Callable[[], Execution],
    said: list[list[int]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "for_device", lambda *_: make())
    check_any_mix(7, said, monkeypatch)


@ways
def test_partials_and_finals_are_the_librarys(
    make: Callable[[], Execution],
    said: list[list[int]],  # noqa: F811
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(engine_module, "for_device", lambda *_: make())
    check_partials_and_finals(8.0, said, monkeypatch, step=8000)


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
    shorten(monkeypatch, tokens=12)
    means = make()
    made = QwenEngine(loaded(random_model()), Shape(slots=4, batch=4, positions=256, captured_positions=96), means)
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
    shorten(monkeypatch, tokens=12)
    means = EXECUTIONS["recorded"]()
    assert isinstance(means.graphs, Recorded)
    made = QwenEngine(loaded(random_model()), Shape(slots=4, batch=4, positions=256, captured_positions=256), means)
    made.warm_up()
    known = set(means.graphs.runs)
    assert {kind for kind, _ in known} == {"text", "head", "chunks", "windows"}
    means.graphs.runs.clear()
    codes = {f"live-{n}": noise(0.6 + 4.1 * n, seed=n) for n in range(3)} | {"file": noise(10.0, seed=9)}
    _work(made, codes, made.step)
    assert means.graphs.runs and set(means.graphs.runs) <= known


def test_what_is_too_large_for_a_graph_is_done_in_parts(said: list[list[int]], monkeypatch: Any) -> None:  # noqa: F811
    """Three long utterances at once, and shapes that hold one of them."""
    shorten(monkeypatch, tokens=12)
    means = EXECUTIONS["recorded"]()
    monkeypatch.setattr(engine_module, "for_device", lambda *_: means)
    made = engine(said, positions=256, captured_positions=64)
    codes = {f"u{n}": noise(9.0 + n, seed=n) for n in range(3)}
    for name, spoken in codes.items():
        made.open(Utterance(name, "PCMU"))
        made.append(name, spoken)
    waiting = [Request(name, 1, Lane.FINAL, True, len(spoken), 0.0) for name, spoken in codes.items()]
    forwards = made.packed.forwards
    while waiting:
        for answer in made.step(waiting):
            name = answer.request.utterance_id
            check_said(made.last_tokens(name), reference(), codes[name], made.prompts.build(), 12)
            waiting = [request for request in waiting if request.utterance_id != name]
        forwards = forwards or made.packed.forwards
    assert forwards == 3, "the first step took a forward for each"


def test_in_half_precision_the_tiny_model_reads_the_same() -> None:
    """bfloat16, in which a GPU computes."""
    codes = (ROOT / "tests" / "data" / "digits" / "customer.ulaw").read_bytes()
    texts = []
    for kind in (torch.float32, torch.bfloat16):
        made = QwenEngine(load(TINY, dtype=kind), Shape(slots=2, batch=2), EXECUTIONS["one by one"]())
        made.open(Utterance("u", "PCMU"))
        made.append("u", codes)
        request = Request("u", 1, Lane.FINAL, True, len(codes), 0.0)
        answers = []
        while not answers:
            answers = made.step([request])
        texts.append(answers[0].text.split())
    assert len(texts[0]) >= 4 and texts[0] == texts[1]
