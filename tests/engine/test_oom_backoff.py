"""A step that needs more memory than there is: what is done again, what is shed, what fails, and how it recovers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from asr.engines.qwen.device import memory
from lab.worker.peers import ROOT

SHORT_OF_MEMORY = """
import json, resource, torch
from asr import messages
from asr.server.inference import Inference
from asr.engines.qwen import session
from asr.engines.qwen.engine import QwenEngine, Shape
from asr.server.scheduler import Lane
from asr.utterance import Utterance
from lab.engine.qwen_models import loaded, noise, random_model

session.longest = lambda seconds: 6
session.is_loop = lambda tokens: False
model = random_model()
# So wide that what a step needs between two layers is most of it: 0.5 MB a position.
for layer in model.model.language_model.layers[:1]:
    layer.mlp.gate_proj, layer.mlp.up_proj = (torch.nn.Linear(48, 65536, bias=False) for _ in range(2))
    layer.mlp.down_proj = torch.nn.Linear(65536, 48, bias=False)
with torch.inference_mode():
    inference = Inference(QwenEngine(loaded(model), Shape(slots=8, batch=8)))
    inference.engine.warm_up()
    names = [f"live-{n}" for n in range(7)] + ["file"]
    codes = {name: noise(6.0, seed=n) for n, name in enumerate(names)}
    for name in names:
        inference.receive(messages.Open(Utterance(name, "PCMU", live=name != "file")), 0.0)
        inference.receive(messages.Append(name, 0, codes[name]), 0.0)
        partial = messages.PartialRequest(name, 1, 48000)
        asked = partial if name in names[:3] else messages.FinalRequest(name, 1, 48000, True)
        inference.receive(asked, 0.0)
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + 320 * 2**20, resource.RLIM_INFINITY))
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
    for again in range(160):
        inference.receive(messages.PartialRequest("live-0", 2 + again, 48000), 0.0)
        work()
print(json.dumps([heard, dropped, tight, [inference.oom_backoff.limit, inference.oom_backoff.files]]))
"""


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


def test_an_engine_short_of_memory_answers_all_finals_and_recovers() -> None:
    """A real limit on the memory of a process, and an engine that needs more of it for a full step."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    heard, (partials, exhausted), tight, after = json.loads(done.stdout)
    assert {f"live-{n}": None for n in range(3, 7)} | {"file": None} == {
        name: error for name, error in heard.items() if name not in ("live-0", "live-1", "live-2")
    }
    assert partials >= 1 and exhausted >= 2 and tight != [8, True]
    assert after == [8, True]


TOO_LARGE = """
import resource
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.build import build
from config.settings import Asr, Qwen
from lab.worker.peers import TINY

used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
try:
    build(Asr(model=str(TINY)), Qwen(slots=4096)).warm_up()
except EngineUnusable as error:
    print(error)
"""


def test_more_slots_than_there_is_memory_for_are_refused_with_a_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_LARGE], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "qwen.slots = 4096, each of 1024 positions" in done.stdout and "memory" in done.stdout
