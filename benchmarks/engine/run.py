"""`mediaworker bench engine`: an engine beside two usual designs, in the same run and with the same arrivals.

No sockets and no sleeping: calls speak on a virtual clock, one process recognises. See `engine_run`.
This module imports nothing heavy.
"""

from __future__ import annotations

import gzip
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.engines import weights
from asr.engines.interface import EngineUnusable
from asr.engines.moonshine import plugin as moonshine
from audio.codecs.g711 import ulaw_encode
from benchmarks import ROOT
from benchmarks.engine import plan
from config.settings import Asr

if TYPE_CHECKING:
    from benchmarks.engine.designs import Designs
    from benchmarks.engine.moonshine_designs import Designs as MoonshineDesigns

MODEL = ROOT / "models" / "qwen3-asr-tiny"
CLIPS = ROOT / "tests" / "data" / "digits"
PROMPTS = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
"""Of the packages asterisk-core-sounds-en and asterisk-core-sounds-en-wav: recorded speech at 8 kHz."""
PROMPT_WORDS = Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
PACKAGE_NEEDS = ("filelock", "platformdirs", "requests", "tqdm")
"""Importing the package `moonshine_voice` needs these; the engine, which takes only the weights, does not."""


class BenchError(Exception):
    """It cannot be measured here; the message is one line and names the option that helps."""


def clips(files: Sequence[str]) -> list[bytes]:
    """µ-law of these files, or of those that a checkout has. Raises BenchError."""
    from mediaworker.cli.play import PlayError, load_pcm

    paths = [Path(file) for file in files] or sorted(CLIPS.glob("*.ulaw"))
    if not paths:
        raise BenchError(f"{CLIPS} has no clips, only a checkout has: --audio FILE… gives recorded speech")
    try:
        found = [bytes(ulaw_encode(load_pcm(path, 8000))) for path in paths]
    except PlayError as error:
        raise BenchError(f"--audio: {error}") from None
    if not any(plan.utterances(clip) for clip in found):
        raise BenchError("--audio: nobody speaks in these files")
    return found


def prompts() -> list[str]:
    """Files of recorded prompts in English; empty: they are not installed."""
    if not PROMPT_WORDS.is_file():
        return []
    found = []
    with gzip.open(PROMPT_WORDS, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, words = line.partition(":")
            path = PROMPTS / f"{name.strip()}.wav"
            # What stands in brackets is no speech: tones, music.
            if re.sub(r"\[[^\]]*\]", "", words).strip() and not name.startswith(";") and path.is_file():
                found.append(str(path))
    return found


def lacks_package() -> list[str]:
    """What has to be installed before the package `moonshine_voice` can be imported."""
    return [name for name in PACKAGE_NEEDS if find_spec(name) is None]


def moonshine_designs(*, threads: int, baseline: bool) -> MoonshineDesigns:
    """What is measured of Moonshine. Raises BenchError."""
    folder = moonshine.assets()
    if (lacking := moonshine.missing(Asr())) is not None or folder is None:
        raise BenchError(str(lacking))
    from benchmarks.engine.moonshine_designs import Designs

    return Designs(folder, threads=threads, refeed=baseline, package=baseline and not lacks_package())


def designs(model: str, *, baseline: bool) -> Designs:
    """What is measured, with this model. Raises BenchError."""
    folder = weights.find(model or str(MODEL))
    if folder is None:
        where = weights.missing(model) if model else f"{MODEL} is not there, only a checkout has it"
        raise BenchError(f"{where}: --model FOLDER-OR-NAME says which model to measure")
    try:
        from benchmarks.engine.designs import Designs
    except ImportError:
        raise BenchError("the engine needs the extra `qwen`: pip install 'mediaworker[qwen]'") from None
    try:
        return Designs(folder, baseline=baseline)
    except EngineUnusable as error:
        raise BenchError(f"--model: {error}") from None


def random_weights(options: dict[str, Any], keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The figures of a model whose weights mean nothing; `options`: fields of `engine_random.Options`; `keep` gets the
    figures so far. Raises BenchError."""
    if not MODEL.is_dir():
        raise BenchError(f"{MODEL} is not there, only a checkout has it: --random-weights takes its tokenizer")
    try:
        from benchmarks.engine.random_weights import Loads, Options
    except ImportError:
        raise BenchError("the engine needs the extra `qwen`: pip install 'mediaworker[qwen]'") from None
    try:
        loads = Loads(Options(**options), MODEL)
    except (ValueError, EngineUnusable) as error:
        raise BenchError(str(error)) from None
    return loads.measure(keep)


def host(**options: Any) -> dict[str, Any]:
    """What the host does for so many streams. `options`: fields of `engine.host.Options`. Raises BenchError."""
    if not MODEL.is_dir():
        raise BenchError(f"{MODEL} is not there, only a checkout has it: --host takes its tokenizer")
    try:
        from benchmarks.engine.host import Options, measure
    except ImportError:
        raise BenchError("the engine needs the extra `qwen`: pip install 'mediaworker[qwen]'") from None
    return measure(Options(**options), MODEL)


def predicted(**options: Any) -> dict[str, Any]:
    """`options`: fields of `engine.predict.Options`. Raises BenchError."""
    if not MODEL.is_dir():
        raise BenchError(f"{MODEL} is not there, only a checkout has it: --predict takes its tokenizer")
    try:
        from benchmarks.engine.predict import Options, predict
    except ImportError:
        raise BenchError("the engine needs the extra `qwen`: pip install 'mediaworker[qwen]'") from None
    return predict(Options(**options), MODEL, lambda line: print(line, file=sys.stderr, flush=True))


def predicted_table(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    heads = ("of objective", "ms/step", "rows/step", "positions/step", "host busy", "GPU busy", "RTFx")
    lines: list[tuple[str, ...]] = [("streams", "final p50/p95/p99", "first partial", "partial", *heads)]
    for row in sorted(figures["runs"], key=lambda row: row["streams"]):
        waits = [_waits(row["lanes"][name]) for name in ("final", "first_partial", "partial")]
        step = [_number(row[name], ".1f") for name in ("step_ms", "rows_per_forward", "positions_per_forward")]
        shares = (_share(row["host_share"]), _share(row["device_share"]), _number(row["rtfx"], ".0f"))
        lines.append((str(row["streams"]), *waits, f"{100 * row['used']:.0f} %", *step, *shares))
    return lines


def host_table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = [("streams", "batch", "slots", "answers", "steps", "µs/answer", "CPU s/s")]
    for row in rows:
        counts = (str(row[name]) for name in ("streams", "batch", "slots", "answers", "steps"))
        lines.append((*counts, _number(row["host_us_per_answer"], ".0f"), _number(row["host_cpu_s_per_s"], ".2f")))
    return lines


_EXACT = ("finals equal", "partials changed")
"""In both tables: how fast says nothing without how right."""
_SPENT = ("forwards", "tokens", "windows", "chunks")
_WAITS = ("design", "calls", "final p50/p95/p99", "first partial", "partial", "batch", "partials answered", *_EXACT)
_COSTS = (
    "design", "calls", *_SPENT, "CPU/partial", *_SPENT, "CPU/final", "rows/forward", "CPU s/audio s", "ratio", *_EXACT,
)  # fmt: skip


def tables(rows: Sequence[dict[str, Any]]) -> list[list[tuple[str, ...]]]:
    """How long answers take, and what they cost: lines of cells, the first one heads them."""
    waits: list[tuple[str, ...]] = [_WAITS]
    costs: list[tuple[str, ...]] = [_COSTS]
    for row in rows:
        who = (row["design"], str(row["calls"]))
        exact = (_share(row["finals_equal"]), _share(row["partials_changed"]))
        waits.append((*who, *map(_waits, row["lanes"].values()), _share(row["partials_answered"]), *exact))
        shared = _number(row["rows_per_forward"], ".2f")
        cost = (_number(row["cpu_s_per_audio_s"], ".4f"), _number(row["ratio"], ".1f"))
        costs.append((*who, *_spent(row, "partial"), *_spent(row, "final"), shared, *cost, *exact))
    return [waits, costs]


_MOONSHINE = (
    "design", "calls", "final p50/p95/p99", "first partial", "partial", "partials answered", "CPU/partial", "CPU/final",
    "CPU s/audio s", "ratio", *_EXACT,
)  # fmt: skip


def moonshine_table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """How long answers take and what they cost: lines of cells, the first one heads them."""
    lines: list[tuple[str, ...]] = [_MOONSHINE]
    for row in rows:
        cost = (f"{_number(row[f'cpu_ms_per_{kind}'], '.1f')} ms" for kind in ("partial", "final"))
        total = (_number(row["cpu_s_per_audio_s"], ".4f"), _number(row["ratio"], ".1f"))
        exact = (_share(row["finals_equal"]), _share(row["partials_changed"]))
        waits = (*map(_waits, row["lanes"].values()), _share(row["partials_answered"]))
        lines.append((row["design"], str(row["calls"]), *waits, *cost, *total, *exact))
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _waits(lane: dict[str, Any]) -> str:
    return "/".join(_number(lane[f"p{percent}_ms"], ".0f") for percent in (50, 95, 99)) + " ms"


def _spent(row: dict[str, Any], kind: str) -> tuple[str, ...]:
    counts = (_number(row[f"{what}_per_{kind}"], ".1f") for what in _SPENT)
    return *counts, _number(row[f"cpu_ms_per_{kind}"], ".1f") + " ms"


def _number(value: float | None, format: str) -> str:
    return "-" if value is None else f"{value:{format}}"


_LIVE = ("final p50/p95/p99", "first partial", "partial", "file")
_LOADS = ("design", "streams", "files", *_LIVE, "of objective", "partials answered", "words/s", "drafts kept", "RTFx")
_FOUND = ("design", "streams at the objective", "runs", "p99 with files / without: final", "first partial", "partial")
_STEPS = (
    "design", "streams", "files", "steps", "ms/step", "host ms/step", "rows/forward", "positions/forward", "GPU busy",
    "kernels/step", "waits/step", "allocations/step", "from the driver", "peak",
)  # fmt: skip


def random_tables(figures: dict[str, Any]) -> list[list[tuple[str, ...]]]:
    """How many streams were found, how long answers take with them, and what a step is."""
    loads: list[tuple[str, ...]] = [_LOADS]
    steps: list[tuple[str, ...]] = [_STEPS]
    for row in figures["runs"]:
        who = (row["design"], str(row["streams"]), str(row["files"]))
        used = f"{100 * row['used']:.0f} %{' (stopped)' if row['overloaded'] else ''}"
        held = (used, _share(row["partials_answered"]))
        said = (_number(row["tokens_per_audio_s"], ".2f"), _share(row["drafts_accepted"]), _number(row["rtfx"], ".1f"))
        loads.append((*who, *map(_waits, row["lanes"].values()), *held, *said))
        step = (str(row["steps"]), *(_number(row[name], ".2f") for name in _PER_STEP), _share(row["gpu_busy_share"]))
        gpu = (_number(row[name], ".1f") for name in _PER_GPU_STEP)
        steps.append((*who, *step, *gpu, f"{row['peak_memory_mb']:.0f} MB"))
    found: list[tuple[str, ...]] = [_FOUND]
    for design, ratios in figures["live_p99_ratio"].items():
        result = figures["found"].get(design)
        streams = "-" if result is None else str(result["streams"])
        if result is not None and (result["bound"] or result["limited"]):
            streams += " or more"
        runs = "-" if result is None else str(len(result["tried"]))
        found.append((design, streams, runs, *(_number(ratio, ".2f") for ratio in ratios.values())))
    return [found, loads, steps]


_PER_STEP = ("step_ms", "host_ms_per_step", "rows_per_forward", "positions_per_forward")
_PER_GPU_STEP = ("kernels_per_step", "syncs_per_step", "allocations_per_step", "device_allocations_per_step")


def limit_line(limit: dict[str, Any] | None) -> str:
    if limit is None:
        return "Computed limit: none for this device; --chip names one."
    share = limit["found_share"]
    found = "" if share is None else f"; found: {100 * share:.1f} % of the latter"
    return (
        f"Computed limit of {limit['chip']}: {limit['streams']} streams with partials alone, "
        f"{limit['streams_with_finals']} with finals{found}; re-feeding {limit['streams_refed']}; "
        f"files alone RTFx {limit['rtfx']:.0f}."
    )
