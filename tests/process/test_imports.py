"""What a process of ours loads, and what only others need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lab.house import ROOT


@pytest.mark.parametrize("module", ["mediaworker.service.worker", "mediaworker.cli.main"])
def test_media_process_imports_nothing_heavy(module: str) -> None:
    """Not even when it has looked for every engine, and whether it could run."""
    code = f"""
import {module}, sys
from asr.engines import plugin
from config.settings import Asr
for name in plugin.BUILT_IN:
    plugin.find(name).missing(Asr()), plugin.find(name).about(Asr())
print(*sorted(m for m in sys.modules if '.' not in m))"""
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split())
    assert "mediaworker" in loaded
    heavy = {"torch", "onnxruntime", "av", "moonshine_voice", "transformers", "silero_vad", "scipy", "rich"}
    assert not loaded & heavy, f"{module} loads {loaded & heavy}"


def test_one_worker_alone_imports_nothing_of_a_cluster() -> None:
    code = "import mediaworker.service.worker, mediaworker.cli.serve, sys; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()
    assert "asr.client.recognizer" in loaded
    parts = ("asr.network", "asr.client.server_pool", "mediaworker.cluster", "nats")
    assert not [name for name in loaded if name.startswith(parts)]


def test_a_worker_without_traces_loads_nothing_of_them() -> None:
    """Nor does an engine server, once they are made."""
    code = """
import asyncio, sys
from config.load import parse
from mediaworker.service.engine import EngineService
from mediaworker.service.worker import Worker
async def make():
    Worker(parse({"cluster": {"nats": ["nats://127.0.0.1:4222"]}}))
    EngineService(parse({"asr": {"listen": "tcp://127.0.0.1:9095"}, "cluster": {"token": "none"}}))
asyncio.run(make())
print(*sys.modules)"""
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()
    assert "mediaworker.tracing.traces" in loaded
    parts = ("opentelemetry", "google.protobuf", "requests", "urllib3", "mediaworker.tracing.otlp")
    assert not [name for name in loaded if name.startswith(parts)]


def test_generated_documents_are_current() -> None:
    done = subprocess.run([sys.executable, "tools/gen_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make schema`: {done.stdout}{done.stderr}"


def test_reading_the_weights_imports_nothing_heavy() -> None:
    code = "import sys; from audio.vad.silero import SileroVad; SileroVad(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "onnxruntime", "silero_vad", "G722", "asyncio"} & set(modules)


def test_a_detector_with_one_leg_is_small() -> None:
    """Resident memory over numpy's own, in MB; and neither torch, onnxruntime nor asyncio come along."""
    code = """
import sys, numpy
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
before = resident()
from audio import Codec, Detector, RtpPacket
from config import Endpointing
detector = Detector()
leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
for n in range(100):
    leg.receive_rtp(bytes(RtpPacket(0, n, n * 160, 1, bytes(160))), n * 0.02)
    for _ in detector.step(n * 0.02): pass
print(resident() - before, *sys.modules)
"""
    environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": ""}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    used, *modules = run.stdout.split()
    assert float(used) < 20
    assert not {"torch", "onnxruntime", "silero_vad", "G722", "asyncio"} & set(modules)
