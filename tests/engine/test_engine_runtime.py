"""Where the engine computes is seen: in the ready line of the log, in `/readyz` and in metrics. A CPU that nobody has
asked for is a warning that says why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from asr import messages
from asr.client.recognizer import Recognizer
from asr.engines import devices
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.build import build
from asr.engines.qwen.device import placement
from asr.runtime import Runtime
from asr.utterance import EngineStatus
from config.process.framing import Frames, encode
from config.settings import Asr, Qwen, Settings
from lab.engine.listener import LISTENER_PATH
from lab.engine.recognizer import client
from lab.patience import until
from lab.worker.peers import TINY, worker

TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading "
    "and installing a new version\nfrom elsewhere"
)


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch for CUDA 13 with a driver for 12."""

    def init() -> None:
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_driver_that_is_too_old_is_said(cuda_build: None) -> None:
    assert placement.place(Asr(), Qwen(), TINY) == ("cpu", torch.float32)
    (warning,) = placement.warnings(Asr(), "cpu")
    assert warning.startswith("Qwen3-ASR computes on the CPU") and "for CUDA 13.0 cannot use a GPU" in warning
    assert "driver on your system is too old (found version 12020)" in warning and "elsewhere" not in warning
    assert placement.warnings(Asr(devices=("cpu",)), "cpu") == () == placement.warnings(Asr(), "cuda")
    with pytest.raises(EngineUnusable, match=r"asr.devices: 'cuda', and torch sees no GPU here: .* too old"):
        placement.place(Asr(devices=("cuda",)), Qwen(), TINY)


@pytest.mark.parametrize("there", [False, True])
def test_a_build_for_cpus_is_said(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(devices, "GPU_NODES", (tmp_path if there else tmp_path / "none",))
    why = placement.why_no_gpu()
    assert "is a build for CPUs" in why and ("this machine has a GPU" in why) is there


def test_precision_is_that_of_the_chosen_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Turing beside an Ampere, which is the current one until it is told otherwise."""
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    capabilities = {None: (8, 0), 0: (8, 0), 1: (7, 5)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda chosen: capabilities[chosen.index])
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda kind: None)
    assert placement.place(Asr(devices=("cuda:1",)), Qwen(), TINY) == ("cuda:1", torch.float16)
    assert placement.place(Asr(), Qwen(), TINY) == ("cuda", torch.bfloat16)
    assert placement.place(Asr(devices=("auto:1",)), Qwen(), TINY) == ("cuda:1", torch.float16), "one of several"
    assert current == ["cuda:1", "cuda:1"], "nothing of the process is on another GPU"


@pytest.mark.parametrize(
    ("preload", "engine", "place", "there", "expected"),
    [
        ("auto", "qwen", "auto", True, True),
        ("auto", "qwen", "auto", False, False),
        ("auto", "qwen", "cpu", True, False),
        ("auto", "moonshine", "auto", True, False),
        (False, "qwen", "auto", True, False),
        (True, "moonshine", "auto", False, True),
    ],
)
async def test_a_gpu_is_not_started_for_a_call(
    preload: Any, engine: str, place: str, there: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asr.preload`, which also keeps it when no call has come for `asr.idle_s`."""
    monkeypatch.setattr(devices, "GPU_NODES", (Path("/"),) if there else ())
    where = () if place == "auto" else (place,)
    settings = Settings(asr=Asr(engine=engine, model=str(TINY), preload=preload, devices=where))
    recognizer = Recognizer(settings, on_state=lambda *_: None)
    assert recognizer.preloads is expected


async def test_an_engine_server_loads_its_engine_at_the_start() -> None:
    for preload, expected in (("auto", True), (False, False)):
        asr = Asr(engine="moonshine", listen="tcp://127.0.0.1:9095", preload=preload)
        assert Recognizer(Settings(asr=asr), on_state=lambda *_: None).preloads is expected


def test_runtimes_travel() -> None:
    for known in (Runtime(), Runtime("cuda:1", "H200", "bfloat16", "sdpa", True, "passed", warnings=("a", "b"))):
        ready = messages.EngineReady("qwen", (), known)
        (body,) = Frames().feed(encode(ready))
        assert messages.decode_from_engine(body) == ready
    assert Runtime(free_bytes=1).shown() == {"device": "cpu", "free_bytes": 1}


async def test_an_engine_that_says_nothing_is_on_the_cpu() -> None:
    async with client(Settings(asr=Asr(engine="moonshine", threads=1))) as c:
        c.recognizer.keep_alive(True)
        await c.ready()
        assert c.recognizer.runtime == Runtime() and c.recognizer.state is EngineStatus.READY


def test_qwen_says_where_it_computes() -> None:
    runtime = build(Asr(model=str(TINY)), Qwen(slots=2)).runtime()
    assert (runtime.device, runtime.dtype, runtime.attention, runtime.graphs) == ("cpu", "float32", "sdpa", False)
    assert runtime.torch == torch.__version__ and runtime.slots_bytes > 2**20
    (warning,) = runtime.warnings
    assert warning.startswith("Qwen3-ASR computes on the CPU")


def test_a_worker_shows_where_its_engine_computes(tmp_path: Path) -> None:
    environment = {"ASR__ENGINE": "on_gpu", "ASR__PRELOAD": "true", "SIP__ENABLED": "false"}
    with worker(tmp_path, LISTENER_PATH, **environment) as running:
        until(lambda: 'mediaworker_asr_state{state="ready"} 1.0' in running.get("/metrics"), 60)
        shown = running.get("/readyz")
        engine = shown["engine"]
        assert (engine["name"], engine["state"], engine["device"]) == ("on_gpu", "ready", "cuda:1")
        assert (engine["dtype"], engine["attention"], engine["graphs"]) == ("bfloat16", "triton", True)
        assert "processes" not in engine, "there is one"
        assert engine["torch"] == "2.11" and engine["slots_bytes"] == 3 << 30
        assert shown["warnings"] == ["A fan is loud"]
        metrics = running.get("/metrics")
        (line,) = re.findall(r"^mediaworker_asr_device_info\{.*", metrics, re.MULTILINE)
        labels = {"device": "cuda:1", "dtype": "bfloat16", "attention": "triton", "graphs": "on", "torch": "2.11"}
        assert all(f'{name}="{value}"' in line for name, value in labels.items()) and line.endswith("} 1.0")
        (slots,) = re.findall(
            r'^mediaworker_asr_device_memory_bytes\{kind="slots",process="0"\} (.*)', metrics, re.MULTILINE
        )
        assert float(slots) == 3 << 30
        log = running.log.read_text()
        assert re.search(r"engine ready.*device\W+cuda:1", log) and "A fan is loud" in log


def test_a_large_model_computes_in_bfloat16_on_a_cpu_that_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(int(placement.LARGE_BYTES))
    cpu = Asr(devices=("cpu",))
    for flags, expected in (("avx512_bf16", torch.bfloat16), ("amx_bf16", torch.bfloat16), ("avx2", torch.float32)):
        monkeypatch.setattr(placement, "cpu_flags", lambda flags=flags: {"fpu", flags})
        assert placement.place(cpu, Qwen(), tmp_path) == ("cpu", expected)
        assert placement.place(cpu, Qwen(), TINY) == ("cpu", torch.float32), "a small one"
        assert placement.place(cpu, Qwen(dtype="float32"), tmp_path) == ("cpu", torch.float32)
    assert devices.cpu_flags(), "this processor says what it can"


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = devices.free_memory_bytes()
    assert 2**28 < free < 2**50
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    (tmp_path / "memory.current").write_text("300\n")
    for limit, expected in (("1000\n", 700), ("200\n", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert devices.free_memory_bytes() == expected
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.free_memory_bytes() > 2**28
