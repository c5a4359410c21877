"""The figures of a run as a page: Markdown that stands alone, with every figure and every failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

NOTHING = "-"
REHEARSAL = (
    "> **A rehearsal on a CPU with a tiny model.** Every figure on this page shows only that the code runs; none says "
    "anything about a GPU, about the published models, or about their speed."
)


def cell(value: Any, form: str = "") -> str:
    """For a table: None is a dash, and a bar would end the cell."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (f"{value:{form}}" if form else str(value)).replace("|", "\\|").replace("\n", " ")


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [[cell(value) for value in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(heads), ["---"] * len(heads), *lines)] if lines else []


def _lane(row: dict[str, Any], name: str) -> str:
    lane = row["lanes"][name]
    return " / ".join(cell(lane[f"p{percent}_ms"], ".0f") for percent in (50, 95, 99))


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


# -- sections ----------------------------------------------------------------------------------------------------------


def _environment(figures: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, Any]] = [(name, version) for name, version in figures["packages"].items()]
    rows += [("Python", figures["python"]), ("system", figures["system"]), ("processors", figures["processors"])]
    rows += [("CUDA of torch", figures["cuda_of_torch"]), ("cuDNN", figures.get("cudnn"))]
    rows += [("torch sees a GPU", figures["cuda_available"])]
    for gpu in figures["gpus"]:
        told = f"{gpu['name']}, compute capability {gpu['capability']}, {gpu['multiprocessors']} multiprocessors"
        rows.append(("GPU", f"{told}, {gpu['free_mb']:,} of {gpu['memory_mb']:,} MB free"))
    rows += [("driver", seen.get("driver_version")) for seen in figures["driver"]]
    return table(("what", "found"), rows)


def _fields(figures: dict[str, Any]) -> list[str]:
    """A part whose figures are plain values, and lists of rows with the same fields."""
    plain = [(name, value) for name, value in figures.items() if not isinstance(value, list | dict)]
    lines = table(("what", "found"), plain)
    for name, rows in figures.items():
        if isinstance(rows, dict):
            rows = [rows]
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            heads = list(dict.fromkeys(key for row in rows for key in row))
            lines += ["", f"{name}:", "", *table(heads, [[row.get(key) for key in heads] for row in rows])]
        elif isinstance(rows, list) and rows:
            lines += ["", f"{name}: {'; '.join(map(str, rows))}"]
    return lines


def _tests(figures: dict[str, Any]) -> list[str]:
    rows = [(f"`{each['name']}`", each["outcome"], each["seconds"], each["message"]) for each in figures["items"]]
    return [f"`{figures['file']}`:", "", *table(("test", "outcome", "s", "message"), rows)]


def _together(figures: dict[str, Any]) -> list[str]:
    rows = [
        (row["model"], row["dtype"], row["attention"], row["calls"], row["answers"], row["equal"], row["ms_per_step"])
        for row in figures["rows"]
    ]
    lines = table(("model", "precision", "attention", "calls", "answers", "equal to alone", "ms per step"), rows)
    for row in figures["rows"]:
        for each in row["differ"]:
            which = f"answer {each['answer']} of {each['utterance']} is `{each['together']}`, alone `{each['alone']}`"
            lines += ["", f"- {row['calls']} calls, {row['model']}, {row['dtype']}: {which}."]
    if figures.get("left_out"):
        lines += ["", "Left out:", *(f"- {reason}" for reason in figures["left_out"])]
    return lines


_LOADS = (
    "streams", "files", "final p50 / p95 / p99, ms", "first partial", "partial", "of the objective", "RTFx of files",
)  # fmt: skip
_COSTS = (
    "streams", "files", "ms per step", "host's own", "rows per forward", "positions", "GPU busy", "kernels per step",
    "waits", "allocations", "from the driver", "peak memory, MB",
)  # fmt: skip


def _streams(figures: dict[str, Any]) -> list[str]:
    shape = figures["shape"]
    graphs = "on" if figures["graphs"] else "off"
    what = f"{figures['weights']} in {figures['dtype']} on {figures['device']}, attention {figures['attention']}"
    lines = [f"{what}, graphs {graphs}, {shape['slots']} slots, {shape['batch']} requests a step."]
    objective = figures["objective"]
    wanted = f"p99 of finals ≤ {objective['final_ms']:g} ms, of partials ≤ {objective['partial_ms']:g} ms, files beside"
    for found in figures["found"].values():
        more = " or more: the search ended for its time" if found["limited"] else " or more" if found["bound"] else ""
        tried = ", ".join(f"{streams}: {100 * used:.0f} %" for streams, used in found["tried"])
        lines += ["", f"**{found['streams']} streams{more}** ({wanted}). Tried, of the objective: {tried}."]
    if limit := figures["limit"]:
        told = f"{limit['streams_with_finals']} streams, and files alone at {limit['rtfx']} times real time"
        lines += ["", f"Computed limit of {limit['chip']}: {told}."]
    rows = figures["runs"]
    loads = [
        (row["streams"], row["files"], *(_lane(row, name) for name in ("final", "first_partial", "partial")),
         _percent(row["used"]), cell(row["rtfx"], ".0f"))
        for row in rows
    ]  # fmt: skip
    lines += ["", *table(_LOADS, loads)]
    for ratios in figures["live_p99_ratio"].values():
        told = ", ".join(f"{name.replace('_', ' ')} {cell(ratio)}" for name, ratio in ratios.items())
        lines += ["", f"Live p99 with files over that without: {told}."]
    costs = [
        (row["streams"], row["files"], row["step_ms"], row["host_ms_per_step"], row["rows_per_forward"],
         row["positions_per_forward"], _percent(row["gpu_busy_share"]), row["kernels_per_step"], row["syncs_per_step"],
         row["allocations_per_step"], row["device_allocations_per_step"], row["peak_memory_mb"])
        for row in rows
    ]  # fmt: skip
    lines += ["", *table(_COSTS, costs)]
    for row in rows:
        if row["kernels"]:
            seen = [(f"`{k['name'][:90]}`", k["calls_per_step"], k["us_per_step"]) for k in row["kernels"][:10]]
            lines += ["", f"Kernels at {row['streams']} streams with files:", ""]
            lines += table(("kernel", "calls a step", "µs a step"), seen)
    return lines


def _steps(figures: dict[str, Any]) -> list[str]:
    lines = [f"{figures['model']} in {figures['dtype']}; medians of a forward of the text model, with the head.", ""]
    forwards = [
        (row["work"], row["variant"], row["attention"], row["graphs"], row["rows"], row["positions"], row["ms"],
         row["host_ms"], row["device_ms"])
        for row in figures["forwards"]
    ]  # fmt: skip
    heads = ("work", "variant", "attention", "graphs", "rows", "positions", "ms", "host's own ms", "device ms")
    lines += table(heads, forwards)
    for each in figures["kernels"]:
        seen = [(f"`{kernel['name'][:90]}`", kernel["calls"], kernel["us"]) for kernel in each["top"]]
        told = f"{each['variant']}, {each['work']}, {each['rows']} rows: {each['kernels_per_forward']:g} kernels"
        lines += ["", f"{told}, together {each['busy_us_per_forward']:g} µs; the ten longest:", ""]
        lines += table(("kernel", "calls", "µs"), seen)
    if memory := figures["memory"]:
        heads = list(dict.fromkeys(key for row in memory for key in row))
        lines += ["", "Memory:", "", *table(heads, [[row.get(key) for key in heads] for row in memory])]
    if figures["left_out"]:
        lines += ["", "Left out:", *(f"- {reason}" for reason in figures["left_out"])]
    return lines


SECTIONS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "environment": _environment,
    "tests": _tests,
    "together": _together,
    "streams_06b": _streams,
    "streams_17b": _streams,
    "steps": _steps,
}


# -- the whole ---------------------------------------------------------------------------------------------------------


WRONG = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading figures raises that a part had not finished: no reason to lose the page."""


def summary(rows: Sequence[dict[str, Any]], *, rehearsal: bool) -> dict[str, Any]:
    """The figures that are looked for first, flat."""
    found: dict[str, Any] = {}
    for row in rows:
        headline, model = HEADLINES.get(row["name"], (None, ""))
        if headline is None or not row["figures"]:
            continue
        about = f" (tiny for {model}, rehearsal)" if rehearsal and model else f" ({model})" if model else ""
        with suppress(*WRONG):
            found |= {f"{key}{about}": value for key, value in headline(row["figures"]).items()}
    return found


def _tests_headline(figures: dict[str, Any]) -> dict[str, Any]:
    passed = sum(each["outcome"] == "passed" for each in figures["items"])
    return {"tests passed": f"{passed} of {len(figures['items'])}"}


def _checks_headline(figures: dict[str, Any]) -> dict[str, Any]:
    passed = sum(row["found"] == "passed" for row in figures["starts"])
    return {"starts whose self check passed": f"{passed} of {len(figures['starts'])}"}


def _checkpoints_headline(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{row['weights']}, layout of {row['layout']}: loaded in s; peak of the host and the GPU, MB": (
            f"{row['load_s']}; {row['host_peak_mb']:.0f}; {cell(row['gpu_peak_mb'])}"
        )
        for row in figures["rows"]
        if not row["error"]
    }


def _together_headline(figures: dict[str, Any]) -> dict[str, Any]:
    equal = sum(row["equal"] == row["answers"] for row in figures["rows"])
    return {"rows in which calls together say what each says alone": f"{equal} of {len(figures['rows'])}"}


def _streams_headline(figures: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if found := figures["found"].get("engine"):
        more = " or more" if found["bound"] or found["limited"] else ""
        told["streams at the objective"] = f"{found['streams']}{more}"
    if beside := next((row for row in figures["runs"] if row["streams"] and row["files"]), None):
        told |= {"at streams": beside["streams"], "final p99, ms": beside["lanes"]["final"]["p99_ms"]}
        told |= {"first partial p99, ms": beside["lanes"]["first_partial"]["p99_ms"]}
        told |= {"files beside, RTFx": _whole(beside["rtfx"]), "ms per step": beside["step_ms"]}
        told |= {"peak memory, MB": beside["peak_memory_mb"]}
    if alone := next((row for row in figures["runs"] if not row["streams"]), None):
        told["files alone, RTFx"] = _whole(alone["rtfx"])
    for lane, ratio in figures["live_p99_ratio"].get("engine", {}).items():
        told[f"p99 with files over without, {lane.replace('_', ' ')}"] = ratio
    return told


HEADLINES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "self_check": (_checks_headline, ""),
    "tests": (_tests_headline, ""),
    "together": (_together_headline, ""),
    "checkpoints": (_checkpoints_headline, ""),
    "streams_06b": (_streams_headline, "0.6B"),
    "streams_17b": (_streams_headline, "1.7B"),
}


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def page(whole: dict[str, Any]) -> str:
    rehearsal, rows = whole["rehearsal"], whole["parts"]
    mark = " (rehearsal: CPU, tiny model)" if rehearsal else ""
    lines = [f"# The engine on a GPU{mark}", ""]
    lines += [REHEARSAL, ""] if rehearsal else []
    lines += [f"`make gpu{' GPU=--rehearse' if rehearsal else ''}`, {whole['begun']}, {whole['seconds']:.0f} s.", ""]
    lines += table(
        ("part", "what it settles", "result", "s"),
        [(row["title"], row["settles"], row["status"], row["seconds"]) for row in rows],
    )
    if told := whole["summary"]:
        lines += ["", f"## In short{mark}", "", *table(("figure", f"value{mark}"), told.items())]
    for row in rows:
        lines += ["", f"## {row['title']}{mark}", ""]
        if row["status"] != "passed":
            lines += [f"**{row['status'].capitalize()}** after {row['seconds']:.0f} s: {row['error']}.", ""]
        if row["figures"]:
            lines += _section(row)
        if row["output"]:
            output = [line.replace("```", "'''") for line in row["output"]]
            lines += ["", "The end of its output:", "", "```", *output, "```"]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _section(row: dict[str, Any]) -> list[str]:
    """What a part that was ended has not written is no reason to lose the page."""
    try:
        return SECTIONS.get(row["name"], _fields)(row["figures"])
    except WRONG as error:
        return [f"These figures are not complete ({type(error).__name__}: {error}); gpu.json has what there is."]
