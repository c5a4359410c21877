"""`mediaworker bench engine`: the engine beside two usual designs, in the same run and with the same arrivals.

No sockets and no sleeping: calls speak on a virtual clock, one process recognises. See `engine_run`.
This module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr import weights
from asr.engine import EngineUnusable
from audio.g711 import ulaw_encode
from mediaworker.bench import engine_plan

if TYPE_CHECKING:
    from mediaworker.bench.engine_designs import Designs

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "models" / "qwen3-asr-tiny"
CLIPS = ROOT / "tests" / "data" / "digits"


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
    if not any(engine_plan.utterances(clip) for clip in found):
        raise BenchError("--audio: nobody speaks in these files")
    return found


def designs(model: str, *, baseline: bool) -> Designs:
    """What is measured, with this model. Raises BenchError."""
    folder = weights.find(model or str(MODEL))
    if folder is None:
        where = weights.missing(model) if model else f"{MODEL} is not there, only a checkout has it"
        raise BenchError(f"{where}: --model FOLDER-OR-NAME says which model to measure")
    try:
        from mediaworker.bench.engine_designs import Designs
    except ImportError:
        raise BenchError("the engine needs the extra `qwen`: pip install 'mediaworker[qwen]'") from None
    try:
        return Designs(folder, baseline=baseline)
    except EngineUnusable as error:
        raise BenchError(f"--model: {error}") from None


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


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _waits(lane: dict[str, Any]) -> str:
    return "/".join(_number(lane[f"p{percent}_ms"], ".0f") for percent in (50, 95, 99)) + " ms"


def _spent(row: dict[str, Any], kind: str) -> tuple[str, ...]:
    counts = (_number(row[f"{what}_per_{kind}"], ".1f") for what in _SPENT)
    return *counts, _number(row[f"cpu_ms_per_{kind}"], ".1f") + " ms"


def _number(value: float | None, format: str) -> str:
    return "-" if value is None else f"{value:{format}}"
