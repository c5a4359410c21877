"""An engine of another package that says where it computes: the listener, as it would be on a GPU."""

from __future__ import annotations

from asr.runtime import Runtime
from config.settings import Asr, Qwen
from lab.engine.listener import Listener, ListenerPlugin


class OnGpu(Listener):
    name = "on_gpu"

    def runtime(self) -> Runtime:
        return Runtime(
            "cuda:1", "H200", "bfloat16", "triton", True, "passed", torch="2.11", slots_bytes=3 << 30, slots=624,
            warnings=("A fan is loud",),
        )  # fmt: skip


class OnGpuPlugin(ListenerPlugin):
    def create(self, asr: Asr, qwen: Qwen) -> Listener:
        return OnGpu()


plugin = OnGpuPlugin()
