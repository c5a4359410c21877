"""The engine on a GPU, with its graphs and streams. Collected only where there is one; elsewhere `test_qwen_execution`
says what can be said without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from asr import messages
from asr.engines.interface import EngineExhausted
from asr.engines.qwen import session
from asr.engines.qwen.build import build
from asr.engines.qwen.device.execution import Captured, Execution, for_device
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import load
from asr.engines.qwen.model.quantise import Kind
from asr.inference.inference import Inference
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from config.settings import Asr, Qwen
from lab.engine import packed_mixes as mixes
from lab.engine import qwen_answers
from lab.engine.packed_mixes import Heads
from lab.engine.qwen_answers import check_any_mix, said  # noqa: F401
from lab.engine.qwen_models import loaded, noise, random_model
from lab.worker.peers import ROOT, TINY
from tools.gpu.together import sounds

GPU = torch.device("cuda")
WORDS = ["four seven one two", "nine oh five three eight"]


def engine(dtype: torch.dtype = torch.bfloat16, **shape: Any) -> QwenEngine:
    """The tiny model as it is served."""
    chosen = for_device(GPU)
    made = QwenEngine(load(TINY, device="cuda", dtype=dtype), Shape(**{"slots": 8, "batch": 8} | shape), chosen)
    assert isinstance(chosen.graphs, Captured)
    made.warm_up()
    assert made.checked == "passed"
    return made


def speak(made: QwenEngine, names: list[str], revision: int, *, final: bool, until: int) -> list[str]:
    requests = [Request(name, revision, Lane.FINAL if final else Lane.PARTIAL, final, until, 0.0) for name in names]
    texts: dict[str, str] = {}
    while requests:
        for answer in made.step(requests):
            texts[answer.request.utterance_id] = answer.text
        requests = [request for request in requests if request.utterance_id not in texts]
    return [texts[name] for name in names]


def customer() -> bytes:
    codes = (ROOT / "tests" / "data" / "digits" / "customer.ulaw").read_bytes()
    return codes[: len(codes) // 2]


@pytest.mark.parametrize("graphs", [True, False])
def test_any_mix_says_what_the_library_says(
    graphs: bool,
    said: list[list[int]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In 32 bits, where it can be held against the library token for token."""
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions do not ask the precision above
    plain = qwen_answers.loaded
    monkeypatch.setattr(qwen_answers, "loaded", lambda model: plain(model.to(GPU)))
    monkeypatch.setattr("asr.engines.qwen.engine.for_device", lambda device: for_device(device, graphs=graphs))
    check_any_mix(7, said, monkeypatch)


@pytest.mark.parametrize("graphs", [True, False])
def test_the_self_check_passes(graphs: bool) -> None:
    wanted = for_device(GPU, graphs=graphs)
    assert wanted.described == f"triton {'with' if graphs else 'without'} graphs"
    made = QwenEngine(load(TINY, device="cuda", dtype=torch.bfloat16), Shape(slots=64, batch=64), wanted)
    made.warm_up()
    assert (made.checked, made.execution) == ("passed", wanted)
    assert made.runtime().device == "cuda:0" and made.runtime().device_name and made.runtime().free_bytes


@pytest.mark.parametrize("count", [1, 2, 4, 8, 12, 16, 32, 64])
def test_together_they_say_what_each_says_alone(count: int, recordings: list[bytes]) -> None:
    """Words of the tiny model."""
    made = served()
    alone = []
    for codes in recordings:
        made.open(Utterance("alone", "PCMU"))
        made.append("alone", codes)
        alone += speak(made, ["alone"], 1, final=True, until=len(codes))
        made.close("alone")
    assert len(set(alone)) > 3
    names = [f"{count}/{n}" for n in range(count)]
    requests = []
    for n, name in enumerate(names):
        codes = recordings[n % len(recordings)]
        made.open(Utterance(name, "PCMU"))
        made.append(name, codes)
        requests.append(Request(name, 1, Lane.FINAL, True, len(codes), 0.0))
    texts: dict[str, str] = {}
    while requests:
        for answer in made.step(requests):
            texts[answer.request.utterance_id] = answer.text
        requests = [request for request in requests if request.utterance_id not in texts]
    for name in names:
        made.close(name)
    assert [texts[name] for name in names] == [alone[n % len(alone)] for n in range(count)]


def test_two_cohorts_say_what_each_says_alone(recordings: list[bytes]) -> None:
    """As `Inference` drives it: a step is launched before the one before is collected, and calls that are over make
    room for others in the midst of it."""
    made = served()
    assert made.capabilities.pipelined
    alone = []
    for codes in recordings:
        made.open(Utterance("alone", "PCMU"))
        made.append("alone", codes)
        alone += speak(made, ["alone"], 1, final=True, until=len(codes))
        made.close("alone")
    inference, texts, together = Inference(made), {}, 0
    for n in range(200):
        codes = recordings[n % len(recordings)]
        inference.receive(messages.Open(Utterance(f"c{n}", "PCMU")), 0.0)
        inference.receive(messages.Append(f"c{n}", 0, codes), 0.0)
        inference.receive(messages.FinalRequest(f"c{n}", 1, len(codes), commit=True), 0.0)
        if n % 9 == 8:
            inference.receive(messages.CloseUtterance(f"c{n - 4}"), 0.0)
        for _ in range(n % 3):
            if (work := inference.choose()) is not None:
                together += bool(inference.begun and work.requests)
                texts |= heard(inference.perform(work))
    while (work := inference.choose()) is not None:
        texts |= heard(inference.perform(work))
    assert together > 50 and len(texts) > 150 and not len(made.kv_cache)
    assert texts == {name: alone[int(name[1:]) % len(alone)] for name in texts}


def heard(out: list[Any]) -> dict[str, str]:
    return {each.hypothesis.utterance_id: each.hypothesis.text for each in out if isinstance(each, messages.Heard)}


@cache
def served() -> QwenEngine:
    made = QwenEngine(load(TINY, device="cuda", dtype=torch.bfloat16), Shape(slots=64, batch=64))
    made.warm_up()
    return made


@pytest.fixture(scope="module")
def recordings() -> list[bytes]:
    """Digits, no two alike."""
    return sounds(8)


def test_a_kernel_that_is_wrong_is_not_used() -> None:
    """Each row sees a position less than it should: the engine goes on with `sdpa`."""
    from asr.engines.qwen.device.triton_kernels import Triton

    class Short(Triton):
        def plan(self, rows: Any, *more: Any) -> Any:
            return super().plan(replace(rows, context_lens=rows.context_lens - 1), *more)

    chosen = replace(for_device(GPU), kernels=Short())
    made = QwenEngine(load(TINY, device="cuda", dtype=torch.bfloat16), Shape(slots=16, batch=16), chosen)
    made.warm_up()
    assert made.execution.kernels.name == "sdpa" and "sdpa without graphs instead" in made.checked
    codes = customer()
    names = [f"u{n}" for n in range(8)]
    for name in names:
        made.open(Utterance(name, "PCMU"))
        made.append(name, codes)
    assert set(speak(made, names, 1, final=True, until=len(codes))) <= set(WORDS)


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [
        (Heads(16, 8, 128), torch.bfloat16),
        (Heads(16, 8, 128), torch.float16),
        (Heads(4, 2, 24), torch.bfloat16),
        (Heads(4, 2, 24), torch.float32),
        (Heads(8, 1, 64), torch.bfloat16),
    ],
)
def test_kernels_compute_what_torch_computes(heads: Heads, dtype: torch.dtype) -> None:
    """Compiled; `test_qwen_triton` has more mixes, in the interpreter."""
    from asr.engines.qwen.device.triton_kernels import Triton

    rng = random.Random(0)
    for seed in range(4):
        rows = [(rng.randrange(500), 1) for _ in range(rng.randrange(40))]
        mixes.rows(Triton(), [*rows, (0, 1)], heads, dtype, "cuda", seed=seed)
        rows += [(rng.randrange(300), rng.randrange(1, 200)) for _ in range(rng.randrange(1, 20))]
        mixes.rows(Triton(), rows, heads, dtype, "cuda", filled=seed * 50, spare=3 * seed, seed=seed)
    mixes.windows(Triton(), [rng.randrange(1, 105) for _ in range(30)], heads, dtype, "cuda", filled=99, spare=7)
    mixes.between(Triton(), 77, heads, dtype, "cuda")


def test_stale_graphs_are_not_used() -> None:
    class Stale(Captured):
        """Results stay those of the first run."""

        def run(self, key: Any, function: Any) -> torch.Tensor:
            out = super().run(key, function)
            return out.copy_(self.first.setdefault(key, out.clone()))

        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            self.first: dict[Any, torch.Tensor] = {}

    chosen = for_device(GPU)
    stale = Execution(chosen.kernels, Stale(GPU), chosen.staging)
    made = QwenEngine(load(TINY, device="cuda", dtype=torch.bfloat16), Shape(slots=8, batch=8), stale)
    made.warm_up()
    assert not made.execution.graphs.fixed and "triton without graphs instead" in made.checked


def test_a_configured_engine_uses_the_gpu() -> None:
    """Slots, batch and graphs by its memory, nothing on the CPU, and no warning."""
    made = build(Asr(model=str(TINY)), Qwen())
    made.warm_up()
    runtime = made.runtime()
    assert runtime.device.startswith("cuda") and runtime.graphs and runtime.self_check == "passed"
    assert runtime.warnings == () and runtime.batch >= 32 and 2 * runtime.slots_bytes < runtime.memory_bytes
    assert made.shape.captured_positions >= 75 * runtime.batch  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_words_are_nearly_the_same_in_8_bits(kind: Kind, recordings: list[bytes]) -> None:
    made = build(Asr(model=str(TINY)), Qwen(experimental=(kind,)))
    made.warm_up()
    assert made.runtime().graphs and made.runtime().self_check == "passed"
    texts = [[read_by(each, codes) for codes in recordings] for each in (served(), made)]
    assert sum(one == other for one, other in zip(*texts, strict=True)) >= len(recordings) - 2, texts


def read_by(made: QwenEngine, codes: bytes) -> str:
    made.open(Utterance("read", "PCMU"))
    made.append("read", codes)
    (text,) = speak(made, ["read"], 1, final=True, until=len(codes))
    made.close("read")
    return text


def test_words_are_the_same_in_16_bits() -> None:
    made, codes = engine(), customer()
    names = [f"u{n}" for n in range(8)]
    for name in names:
        made.open(Utterance(name, "PCMU"))
        made.append(name, codes)
    for revision, until in enumerate(range(4000, len(codes), 4000)):
        speak(made, names, revision, final=False, until=until)
    texts = speak(made, names, 99, final=True, until=len(codes))
    assert len(set(texts)) == 1 and texts[0] in WORDS


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device raises; only a wait for an event does not."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_waits_for_new_sound_and_for_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "longest", lambda seconds: 12)
    made, codes = engine(), noise(9.0, seed=1)
    names = [f"u{n}" for n in range(5)]
    for name in names:
        made.open(Utterance(name, "PCMU"))
        made.append(name, codes)
    speak(made, names, 0, final=False, until=30000)
    waits = made.packed.staging.waits
    with no_waiting():
        steps = 0
        requests = [Request(name, 1, Lane.FINAL, True, len(codes), 0.0) for name in names]
        while requests:
            done = {answer.request.utterance_id for answer in made.step(requests)}
            requests = [request for request in requests if request.utterance_id not in done]
            steps += 1
    assert made.packed.staging.waits - waits <= 2 * steps


def test_steps_take_no_memory_from_the_driver() -> None:
    made, codes = engine(), noise(9.0, seed=1)

    def round(number: int) -> None:
        for n in range(6):
            made.open(Utterance(f"{number}/{n}", "PCMU"))
            made.append(f"{number}/{n}", codes)
        names = [f"{number}/{n}" for n in range(6)]
        for revision, until in enumerate(range(4000, len(codes), 4000)):
            speak(made, names, revision, final=False, until=until)
        speak(made, names, 99, final=True, until=len(codes))
        for name in names:
            made.close(name)

    round(0)
    before = torch.cuda.memory_stats()["num_device_alloc"]
    for number in range(1, 4):
        round(number)
    assert torch.cuda.memory_stats()["num_device_alloc"] == before


def test_a_gpu_without_room_is_relieved() -> None:
    """The step fails with what says so, and goes again when there is room."""
    made, codes = QwenEngine(loaded(random_model().to(GPU)), Shape(slots=4, batch=4)), noise(20.0, seed=3)
    inference = Inference(made)
    made.open(Utterance("u", "PCMU"))
    made.append("u", codes)
    request = Request("u", 1, Lane.FINAL, True, len(codes), 0.0)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(EngineExhausted):
            made.step([request])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert inference.oom_backoff.on_exhausted([request]).give_up is request
    assert speak(made, ["u"], 1, final=True, until=len(codes))
