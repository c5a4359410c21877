"""A step that needs more memory than there is: what is done again, what is shed, what fails, and how it recovers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from asr.engines.qwen.device import memory
from lab.patience import seconds
from lab.worker.peers import ROOT

PROCESS = """
import json, resource, torch
from asr import messages
from asr.engines.interface import EngineUnusable
from asr.engines.qwen import session
from asr.engines.qwen.build import build
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.scheduling import oom_backoff
from asr.inference.inference import Inference
from asr.utterance import Utterance
from config.settings import Asr, Qwen
from lab.engine.qwen_models import TINY, loaded, noise, random_model

session.longest = lambda seconds: 6
session.is_loop = lambda tokens: False
model = random_model()
# So wide that what a step needs between two layers is most of it: 0.5 MB a position.
for layer in model.model.language_model.layers[:1]:
    layer.mlp.gate_proj, layer.mlp.up_proj = (torch.nn.Linear(48, 65536, bias=False) for _ in range(2))
    layer.mlp.down_proj = torch.nn.Linear(65536, 48, bias=False)

def allow(more_mb):
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + more_mb * 2**20, resource.RLIM_INFINITY))

with torch.inference_mode():
    inference = Inference(QwenEngine(loaded(model), Shape(slots=8, batch=8, positions=192)))
    inference.engine.warm_up()
    names = [f"live-{n}" for n in range(7)] + ["file"]
    codes = {name: noise(3.0, seed=n) for n, name in enumerate(names)}
    for name in names:
        inference.receive(messages.Open(Utterance(name, "PCMU", live=name != "file")), 0.0)
        inference.receive(messages.Append(name, 0, codes[name]), 0.0)
        partial = messages.PartialRequest(name, 1, 24000)
        asked = partial if name in names[:3] else messages.FinalRequest(name, 1, 24000, True)
        inference.receive(asked, 0.0)
    allow(160)
    heard, dropped = {}, [0, 0]
    def work():
        while (chosen := inference.choose()) is not None:
            for message in inference.perform(chosen):
                if isinstance(message, messages.Dropped):
                    dropped[0] += message.partials
                    dropped[1] += message.exhausted
                else:
                    heard[message.hypothesis.utterance_id] = message.hypothesis.error
    work()
    tight = inference.oom_backoff.limit, inference.oom_backoff.files
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    oom_backoff.STEPS_BEFORE_GROWTH = 4
    for again in range(20):
        inference.receive(messages.PartialRequest("live-0", 2 + again, 24000), 0.0)
        work()
after = inference.oom_backoff.limit, inference.oom_backoff.files
refusal = ""
allow(1024)
try:
    build(Asr(model=str(TINY)), Qwen(slots=4096)).warm_up()
except EngineUnusable as error:
    refusal = str(error)
print(json.dumps([heard, dropped, tight, after, refusal]))
"""


@pytest.fixture(scope="module")
def said() -> Any:
    """By a process with a real limit on its memory."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], cwd=ROOT, capture_output=True, text=True, timeout=seconds(60)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA error: out of memory\nCUDA kernel errors might be",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuFFT error: CUFFT_ALLOC_FAILED",
        "cuFFT error: CUFFT_INTERNAL_ERROR", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 B",
    ],
)  # fmt: skip
def test_memory_that_is_not_there_is_known_in_all_its_words(words: str) -> None:
    error = torch.OutOfMemoryError(words) if words.startswith("CUDA out") else RuntimeError(words)
    assert memory.exhausted(error)
    assert not memory.exhausted(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_an_engine_short_of_memory_answers_all_finals_and_recovers(said: Any) -> None:
    """The engine needs more memory than there is for a full step."""
    heard, (partials, exhausted), tight, after, _ = said
    assert {f"live-{n}": None for n in range(3, 7)} | {"file": None} == {
        name: error for name, error in heard.items() if name not in ("live-0", "live-1", "live-2")
    }
    assert partials >= 1 and exhausted >= 2 and tight != [8, True]
    assert after == [8, True]


def test_more_slots_than_there_is_memory_for_are_refused_with_a_sentence(said: Any) -> None:
    assert "qwen.slots = 4096, each of 1024 positions" in said[-1] and "memory" in said[-1]
