"""The metrics of recognition: the counters of all utterances, and the state of each inference process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr.client.recognizer import Recognizer
from asr.runtime import Runtime
from asr.utterance import EngineStatus
from config.metrics.registry import MetricsRegistry
from config.process.child_process import resident_bytes

if TYPE_CHECKING:
    from asr.network.relay import ServedEngines


def add_metrics(metrics: MetricsRegistry, recognizer: Recognizer | ServedEngines) -> None:
    metrics.counters("asr", recognizer.counters)
    metrics.gauge(
        "asr_backlog_bytes",
        "Shows how much audio is kept in memory for utterances that have no final yet.",
        lambda: recognizer.backlog_bytes,
    )
    metrics.gauge(
        "asr_spilled_bytes",
        "Shows how much audio waits for the engine on disk because it does not fit into memory.",
        lambda: recognizer.spilled_bytes,
    )
    metrics.gauge(
        "asr_open_utterances", "Shows how many utterances the engine is working on.", lambda: recognizer.open_utterances
    )
    metrics.gauge(
        "asr_state",
        "Is 1 for the state that the engine is in, and 0 for the other states; ready while one process is.",
        lambda: {state.value: state is recognizer.state for state in EngineStatus},
        "state",
    )
    _add_inference_processes(metrics, recognizer)


def _add_inference_processes(metrics: MetricsRegistry, recognizer: Recognizer | ServedEngines) -> None:
    metrics.gauge(
        "asr_process_state",
        "Is 1 for the state that each inference process is in, and 0 for the other states.",
        lambda: {
            (server.name, state.value): state is server.state
            for server in recognizer.servers
            for state in EngineStatus
        },
        "process", "state",
    )  # fmt: skip
    metrics.gauge(
        "asr_process_legs",
        "Shows how many legs of calls have their place at each inference process.",
        lambda: {server.name: server.user.legs for server in recognizer.servers},
        "process",
    )
    metrics.gauge(
        "asr_process_open_utterances",
        "Shows how many utterances each inference process has.",
        lambda: {server.name: server.user.open_utterances for server in recognizer.servers},
        "process",
    )
    metrics.gauge(
        "asr_device_info",
        "Is 1, and its labels say where the engine computes; absent until it has been ready once.",
        lambda: {
            _device_labels(server.name, server.runtime): 1
            for server in recognizer.servers
            if server.runtime is not None
        },
        "process", "device", "name", "dtype", "attention", "graphs", "torch", "cuda",
    )  # fmt: skip
    metrics.gauge(
        "asr_device_memory_bytes",
        (
            "Shows the memory of the engine's GPU: total, free when the engine was last ready, "
            "and reserved for keys and values (slots)."
        ),
        lambda: {
            (server.name, kind): value
            for server in recognizer.servers
            if server.runtime is not None
            for kind, value in _device_memory(server.runtime).items()
        },
        "process", "kind",
    )  # fmt: skip
    metrics.gauge(
        "asr_process_resident_memory_bytes",
        "Shows the resident memory of each inference process, 0 while there is none.",
        lambda: {server.name: resident_bytes(server.pid) if server.pid else 0.0 for server in recognizer.servers},
        "process",
    )


def _device_labels(name: str, runtime: Runtime) -> tuple[str, ...]:
    graphs = "on" if runtime.graphs else "off"
    return (
        name, runtime.device, runtime.device_name, runtime.dtype, runtime.attention, graphs, runtime.torch,
        runtime.cuda,
    )  # fmt: skip


def _device_memory(runtime: Runtime) -> dict[str, int]:
    return {"total": runtime.memory_bytes, "free": runtime.free_bytes, "slots": runtime.slots_bytes}
