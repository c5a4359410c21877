"""`mediaworker bench engine --random-weights`: how many people may speak at once, what files get meanwhile, and where
the time goes, with a model of the published dimensions whose answers are driven.

Imports torch: loaded only when the engine is measured.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from asr.engines.qwen.device.execution import for_device
from asr.engines.qwen.device.memory import CAPTURED, PARTIAL, POSITIONS, Shape
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.quantise import quantise
from benchmarks.engine import limit
from benchmarks.engine.arrivals import ANSWERED, Clock
from benchmarks.engine.device import FIELDS, GpuWatch, free_bytes, peak_mb
from benchmarks.engine.driven import Driven, DrivenEngine, DrivenRefeed, DrivenRollback
from benchmarks.engine.limit import CHIPS, Chip, Dimensions, chip_of
from benchmarks.engine.load import SEED, Load, steady_load
from benchmarks.engine.objective import Objective
from benchmarks.engine.plan import CODES_PER_MS, babble
from benchmarks.engine.script import Script
from benchmarks.engine.search import Found, search
from benchmarks.engine.weights import build, dimensions, words
from config.settings import Asr, Qwen

ENGINE = "engine"
LOADED = 0.8
"""Of the streams that were found: what is looked at closely."""
PIECE_S = 20.0
"""Of a file."""
SLOTS_SHARE = 0.5
"""Of the memory that is free on a GPU."""
SOUND_S = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """As the command line has them; None: by the device."""

    weights: str
    device: str = "auto"
    dtype: str = "auto"
    chip: str | None = None
    objective: Objective = field(default_factory=Objective)
    seconds: float = 20.0
    utterance_s: float = 5.0
    context: int = 0
    """Words that each gives the engine beside what is said."""
    partial_ms: int = Asr().partial_ms
    window_s: float | None = None
    streams: tuple[int, ...] = ()
    """Measured at these and not searched for."""
    start: int | None = None
    bound: int | None = None
    limit_s: float | None = None
    """Of the search of each design; None: until the number is known."""
    files: int | None = None
    slots: int | None = None
    batch: int | None = None
    batch_tokens: int = Qwen().batch_tokens
    graphs: str = "on"
    quantise: Literal["none", "int8", "fp8"] = "none"
    clock: str = "real"
    baseline: bool = True


class Loads:
    """The designs, and runs of them."""

    def __init__(self, options: Options, folder: Path) -> None:
        """`folder`: of the tiny model. Raises ValueError or EngineUnusable with a sentence about an option."""
        self.options = options
        self.device = _device(options.device)
        gpu = self.device != "cpu"
        if gpu and options.clock == "cpu":
            raise ValueError("--clock cpu: a GPU's work takes no CPU time; --device cpu, or leave it out")
        torch.set_num_threads(1)
        self.name = torch.cuda.get_device_name() if gpu else "CPU"
        self.chip: Chip | None = CHIPS[options.chip] if options.chip else chip_of(self.name)
        self.dtype = options.dtype if options.dtype != "auto" else "bfloat16" if gpu else "float32"
        self.files = (16 if gpu else 4) if options.files is None else options.files
        self.bound = options.bound or (4096 if gpu else 64)
        self.start = min(options.start or (16 if gpu else 1), self.bound)
        dtype = getattr(torch, self.dtype)
        ours = build(options.weights, folder, device=self.device, dtype=dtype)
        if options.quantise != "none":
            fuse(ours.model)
            quantise(ours.model, options.quantise)
        self.model: Dimensions = dimensions(ours.model.config)
        script = Script(words(ours.tokenizer), ours.ends[0], SEED)
        usual = build(options.weights, folder, device=self.device, dtype=dtype) if options.baseline else None
        batch = options.batch or (128 if gpu else 16)
        self.shape = Shape(
            slots=options.slots or self._slots(),
            positions=POSITIONS,
            batch=batch,
            captured_positions=max(CAPTURED, PARTIAL * batch),
            batch_tokens=options.batch_tokens,
            window_s=options.window_s,
        )
        means = for_device(torch.device(self.device), graphs=options.graphs == "on")
        try:
            engine = DrivenEngine(ours, self.shape, script, means)
        except ValueError as error:
            raise ValueError(f"--window-s {options.window_s}: {error}") from None
        self.designs: dict[str, Driven] = {ENGINE: engine}
        if usual is not None:
            both = (DrivenRefeed(usual, script), DrivenRollback(usual, script))
            self.designs |= {design.name: design for design in both}
        for design in self.designs.values():
            design.warm_up()
        used = engine.execution  # what its self check has left
        self.means = {"attention": used.kernels.name, "graphs": used.graphs.fixed, "self_check": engine.checked}
        self._sound = babble(SOUND_S, SEED)
        self._tried: list[dict[str, Any]] = []
        """Runs of the searches so far."""

    def _slots(self) -> int:
        wanted = max((self.bound, *self.options.streams)) + self.files
        if self.device == "cpu":
            return min(wanted, 128)
        each = POSITIONS * self.model.kv_bytes * (2 if self.dtype == "float32" else 1)
        return max(1, min(wanted, int(SLOTS_SHARE * free_bytes(self.device) / each)))

    # -- runs -------------------------------------------------------------------------------------------------------

    def run(
        self, design: str, streams: int, *, files: bool, searching: bool = False, watch: GpuWatch | None = None
    ) -> Load:
        seconds = self.options.seconds
        load = self._load(design, streams, files=files, seconds=seconds, searching=searching, watch=watch)
        beside = ", files" if files else ""
        sys.stderr.write(f"{design}, {streams} streams{beside}: {100 * load.used():.0f} % of the objective\n")
        sys.stderr.flush()
        return load

    def _load(
        self, design: str, streams: int, *, files: bool, seconds: float, searching: bool = False,
        watch: GpuWatch | None = None,
    ) -> Load:  # fmt: skip
        options = self.options
        load = steady_load(
            self.designs[design], self._sound, self._pieces(), streams=streams, files=self.files if files else 0,
            utterance_s=options.utterance_s, seconds=seconds, partial_ms=options.partial_ms, context=options.context,
            objective=options.objective, searching=searching, watch=watch, clock=Clock(cpu=options.clock == "cpu"),
        )  # fmt: skip
        load.run()
        return load

    def _pieces(self) -> Iterator[bytes]:
        rng = random.Random(SEED)
        length = int(1000 * CODES_PER_MS * min(PIECE_S, self.options.seconds))
        while True:
            at = rng.randrange(len(self._sound) - length)
            yield self._sound[at : at + length]

    def row(self, design: str, streams: int, *, files: bool, watched: bool = False) -> dict[str, Any]:
        """What goes into the JSON of one run. `watched`: with a second one, in which the GPU is looked at."""
        figures = self.run(design, streams, files=files).figures()
        seen: dict[str, Any] = dict.fromkeys(FIELDS)
        if watched and self.device != "cpu":
            watch = GpuWatch()
            self.run(design, streams, files=files, watch=watch)
            watch.close()
            seen = watch.figures
        on_gpu = self.device != "cpu" and design == ENGINE
        waited_ms, step_ms = figures["waited_ms_per_step"], figures["step_ms"]
        host_ms = round(step_ms - waited_ms, 4) if on_gpu and step_ms is not None else None
        head = {"design": design, "streams": streams, "files": self.files if files else 0}
        return head | figures | {"host_ms_per_step": host_ms} | seen | {"peak_memory_mb": peak_mb(self.device)}

    # -- all of it --------------------------------------------------------------------------------------------------

    def measure(self, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """`keep` gets the figures so far: it takes minutes, and what was measured shall outlive what goes wrong."""
        options = self.options
        rows: list[dict[str, Any]] = []
        found: dict[str, Any] = {}

        def add(row: dict[str, Any]) -> None:
            rows.append(row)
            keep(self._figures(rows, found))

        for design in self.designs:
            ours = design == ENGINE
            self._load(design, 1, files=ours, seconds=1.0)  # what is slow only the first time
            at = list(options.streams)
            if not at:
                result = self._search(design, files=ours, keep=lambda: keep(self._figures(rows, found)))
                found[design] = asdict(result)
                at = [max(1, int(LOADED * result.streams)) if result.streams else self.start]
            for streams in at:
                add(self.row(design, streams, files=True, watched=ours))
                add(self.row(design, streams, files=False))
            if ours:
                add(self.row(ENGINE, 0, files=True))
        return self._figures(rows, found)

    def _figures(self, rows: list[dict[str, Any]], found: dict[str, Any]) -> dict[str, Any]:
        """Of what has been measured so far."""
        ratios = {design: live_p99_ratio(rows, design) for design in self.designs}
        return self._described() | {
            "found": found,
            "tried": self._tried,
            "live_p99_ratio": {design: ratio for design, ratio in ratios.items() if ratio},
            "limit": self._limit(found.get(ENGINE, {}).get("streams")),
            "runs": rows,
        }

    def _search(self, design: str, *, files: bool, keep: Callable[[], None]) -> Found:
        def used(streams: int) -> float:
            load = self.run(design, streams, files=files, searching=True)
            self._tried.append({"design": design, "streams": streams} | load.figures())
            keep()
            return load.used()

        limit_s, start_s = self.options.limit_s, time.monotonic()
        return search(
            used, bound=self.bound, start=self.start if design == ENGINE else 1,
            over=lambda: limit_s is not None and time.monotonic() - start_s > limit_s,
        )  # fmt: skip

    def _described(self) -> dict[str, Any]:
        options = self.options
        return {
            "weights": options.weights,
            "device": self.name,
            "dtype": self.dtype,
            "quantise": options.quantise,
            "clock": options.clock,
            "torch": torch.__version__,
            "objective": asdict(options.objective),
            "seconds": options.seconds,
            "utterance_s": options.utterance_s,
            "context": options.context,
            "partial_ms": options.partial_ms,
            "driven_tokens_per_s": limit.TOKENS_PER_S,
            "shape": asdict(self.shape),
            **self.means,
        }

    def _limit(self, streams: int | None) -> dict[str, Any] | None:
        """What the chip could do at best, and how much of it was found."""
        if self.chip is None:
            return None
        options = self.options
        known = {"utterance_s": options.utterance_s, "partial_s": options.partial_ms / 1000}
        window_s = options.window_s or 8.0
        most = limit.streams_with_finals(self.model, self.chip, window_s=window_s, **known)
        return {
            "chip": self.chip.name,
            "streams": limit.streams(self.model, self.chip, window_s=window_s, **known),
            "streams_with_finals": most,
            "streams_refed": limit.streams(self.model, self.chip, window_s=None, **known),
            "rtfx": round(limit.rtfx(self.model, self.chip, piece_s=PIECE_S), 1),
            "found_share": None if streams is None else round(streams / most, 4),
        }


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here")
    return wanted


def live_p99_ratio(rows: list[dict[str, Any]], design: str) -> dict[str, float | None]:
    """Of the first number of streams: each lane's p99 with files over that without; empty until both are known."""
    both = [row["lanes"] for row in rows if row["design"] == design and row["streams"]][:2]
    if len(both) < 2:
        return {}
    beside, alone = both
    ratios: dict[str, float | None] = {}
    for lane in ANSWERED:
        name = lane.name.lower()
        with_ms, without_ms = (lanes[name]["p99_ms"] for lanes in (beside, alone))
        ratios[name] = round(with_ms / without_ms, 3) if with_ms is not None and without_ms else None
    return ratios
