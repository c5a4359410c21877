"""The engine on a GPU, with its graphs and streams. Collected only where there is one; elsewhere `test_qwen_execution`
says what can be said without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from asr.engine import EngineExhausted
from asr.inference import Inference
from asr.qwen import session
from asr.qwen.engine import QwenEngine, Shape
from asr.qwen.execution import for_device
from asr.qwen.graphs import Captured
from asr.qwen.loader import load
from asr.scheduler import Lane, Request
from asr.utterance import Utterance
from tests import test_qwen_engine
from tests.peers import ROOT, TINY
from tests.qwen_models import loaded, noise, random_model
from tests.test_qwen_engine import said  # noqa: F401

GPU = torch.device("cuda")
WORDS = ["four seven one two", "nine oh five three eight"]


def engine(dtype: torch.dtype = torch.bfloat16, **shape: Any) -> QwenEngine:
    """The tiny model as it is served."""
    means = for_device(GPU, dtype)
    made = QwenEngine(load(TINY, device="cuda", dtype=dtype), Shape(**{"slots": 8, "batch": 8} | shape), means)
    assert isinstance(means.graphs, Captured)
    made.warm_up()
    return made


def speak(made: QwenEngine, names: list[str], revision: int, *, final: bool, until: int) -> list[str]:
    requests = [
        Request(name, revision, Lane.FINAL if final else Lane.PARTIAL, final, until, 0.0) for name in names
    ]
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
    graphs: bool, said: list[list[int]], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """In 32 bits, where it can be held against the library token for token."""
    torch.set_float32_matmul_precision("highest")
    plain = test_qwen_engine.loaded
    monkeypatch.setattr(test_qwen_engine, "loaded", lambda model: plain(model.to(GPU)))
    monkeypatch.setattr(
        "asr.qwen.engine.for_device", lambda device, dtype: for_device(device, dtype, graphs=graphs)
    )
    test_qwen_engine.test_any_mix_of_calls_and_files_says_what_each_alone_says(7, said, monkeypatch)


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


def test_a_step_waits_for_its_tokens_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert made.packed.staging.waits - waits <= steps


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
    assert inference.pressure.failed([request]).give_up is request
    assert speak(made, ["u"], 1, final=True, until=len(codes))
