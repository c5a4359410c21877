"""What `make gpu` measures, in the order of worth: each part is a process of its own with a time limit of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Context:
    folder: Path
    """Where parts write their figures and logs."""
    rehearse: bool
    """On the CPU, with a tiny model, for a moment each."""

    def figures(self, name: str) -> Path:
        return self.folder / f"{name}.json"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    title: str
    settles: str
    """The question that this part answers, as a sentence for the page."""
    limit_s: float
    command: Callable[[Context, float], list[str]]
    """From the seconds that the part may take, which are more than `limit_s` when earlier parts left some over."""


def _module(name: str) -> Callable[[Context, float], list[str]]:
    def command(context: Context, seconds: float) -> list[str]:
        rehearse = ["--rehearse"] if context.rehearse else []
        module = ["-m", f"tools.gpu.{name}", "--json", str(context.figures(name)), "--seconds", f"{seconds:.0f}"]
        return [sys.executable, *module, *rehearse]

    return command


SEARCH_SHARE = 0.35
"""Of a part's time, for the search. The rest is for loading, recording the graphs and the closer look."""


def _streams(name: str, weights: str, start: int) -> Callable[[Context, float], list[str]]:
    def command(context: Context, seconds: float) -> list[str]:
        command = [sys.executable, "-m", "mediaworker.cli.main", "bench", "engine", "--no-baseline"]
        command += ["--json", str(context.figures(name))]
        if context.rehearse:
            loose = ["--objective-final-ms", "60000", "--objective-partial-ms", "60000"]
            small = ["--seconds", "1", "--utterance-s", "1", "--bound", "2", "--files", "2", "--device", "cpu"]
            return [*command, "--random-weights", "tiny", "--limit-s", "20", *small, *loose]
        search = ["--start", str(start), "--limit-s", f"{SEARCH_SHARE * seconds:.0f}", "--device", "cuda"]
        return [*command, "--random-weights", weights, "--seconds", "5", *search]

    return command


PARTS = (
    Part("environment", "Environment", "Which GPU, driver and libraries the figures below are of.", 30,
         _module("environment")),
    Part("self_check", "Self check", "Whether the engine's check at its start passes, or what it falls back to.", 55,
         _module("self_check")),
    Part("tests", "Tests", "Whether `tests/engine/test_qwen_gpu.py` passes: graphs, streams, memory and tokens.", 90,
         _module("tests")),
    Part("together", "Calls together against alone", "Whether an answer is the same beside others as it is alone.", 60,
         _module("together")),
    Part("checkpoints", "Checkpoints of full size", "Whether checkpoints of the published shapes load in both layouts, "
         "how long that takes, and how much memory it needs.", 65, _module("checkpoints")),
    Part("streams_06b", "Streams, 0.6B", "How many people may speak at once, what files get beside them and alone, and "
         "what files do to live answers.", 120, _streams("streams_06b", "0.6B", 64)),
    Part("steps", "A step: host and device, graphs, kernels, memory", "Where the time of a step goes, what graphs and "
         "kernels of attention are worth, and what is in memory.", 50, _module("steps")),
    Part("streams_17b", "Streams, 1.7B", "The same as for 0.6B.", 110, _streams("streams_17b", "1.7B", 32)),
)  # fmt: skip
