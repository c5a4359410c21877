"""Calls that are recognised together, against each of them alone: the tokens must be the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.loader import load
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from benchmarks.engine.plan import cut, utterances
from benchmarks.engine.run import MODEL, clips
from benchmarks.engine.weights import build
from tools.gpu.options import Options, options

CALLS, FEWER, REHEARSED = (1, 2, 4, 8, 12, 16, 32, 64), (1, 8), (1, 4)
"""Of a large model with random weights no answer ends before the longest that is allowed: each alone takes seconds."""
MODELS = (
    ("tiny", "bfloat16", CALLS), ("tiny", "float32", CALLS), ("0.6B", "float32", FEWER), ("0.6B", "bfloat16", FEWER),
)  # fmt: skip
PARTIAL = 4000
"""µ-law codes between two partials: half a second."""
TIES = 0.01
"""Of the answers may differ."""
STEPS = 5000
"""No answer takes as many."""


def sounds(count: int) -> list[bytes]:
    """`count` utterances of recorded digits, no two alike: other pieces, or another length of quiet before them."""
    known = [(clip, where) for clip in clips(()) for where in utterances(clip)]
    found = []
    for number in range(count):
        pieces = [known[(number + 3 * each) % len(known)] for each in range(1 + number % 2)]
        parts = [cut(clip, where, 40 + 20 * (number // len(known))) for clip, where in pieces]
        found.append(b"".join(parts))
    return found


def say(engine: QwenEngine, sounds: dict[str, bytes]) -> tuple[dict[str, list[list[int]]], int]:
    """The tokens of every answer of these utterances, which are spoken at once: partials, then a final. And how many
    steps that took."""
    tokens: dict[str, list[list[int]]] = {name: [] for name in sounds}
    for name, codes in sounds.items():
        engine.open(Utterance(name, "PCMU"))
        engine.append(name, codes)
    steps = 0
    for revision, until in enumerate(range(PARTIAL, max(map(len, sounds.values())) + PARTIAL, PARTIAL)):
        requests = []
        for name, codes in sounds.items():
            if until < len(codes) + PARTIAL:
                final = until >= len(codes)
                lane = Lane.FINAL if final else Lane.PARTIAL
                requests.append(Request(name, revision, lane, final, min(until, len(codes)), 0.0))
        waiting = {request.utterance_id: request for request in requests}
        while waiting:
            steps += 1
            assert steps < STEPS, "an answer does not come"
            for answer in engine.step(list(waiting.values())):
                name = answer.request.utterance_id
                tokens[name].append(engine.last_tokens(name))
                del waiting[name]
    for name in sounds:
        engine.close(name)
    return tokens, steps


def compared(
    alone: dict[str, list[list[int]]], together: dict[str, list[list[int]]]
) -> tuple[int, int, list[dict[str, Any]]]:
    """(answers, equal ones, the first three that differ: whose, and both texts of ids)."""
    answers = equal = 0
    differ: list[dict[str, Any]] = []
    for name, mine in together.items():
        for number, (one, other) in enumerate(zip(alone[name], mine, strict=True)):
            answers, equal = answers + 1, equal + (one == other)
            if one != other and len(differ) < 3:
                differ.append({"utterance": name, "answer": number, "alone": one, "together": other})
    return answers, equal, differ


def engine(weights: str, kind: str, device: str, slots: int) -> tuple[QwenEngine, str]:
    """And what it computes with."""
    dtype: torch.dtype = getattr(torch, kind)
    loaded = (
        load(MODEL, device=device, dtype=dtype)
        if weights == "tiny"
        else build(weights, MODEL, device=device, dtype=dtype)
    )
    made = QwenEngine(loaded, Shape(slots=slots, positions=512, batch=slots, captured_positions=512))
    made.warm_up()
    return made, made.execution.described  # what its self check has left


def measure(given: Options, weights: str, kind: str, calls: Sequence[int]) -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # else convolutions in 32 bits are rounded to 10 bits of mantissa
    made, attention = engine(weights, kind, given.device, max(calls))
    spoken = {f"u{number}": codes for number, codes in enumerate(sounds(max(calls)))}
    alone = {name: say(made, {name: codes})[0][name] for name, codes in spoken.items()}
    for count in calls:
        if given.over:
            given.figures["left_out"].append(f"{weights} in {kind}, {count} calls: the time was over")
            continue
        start_s = time.perf_counter()
        together, steps = say(made, dict(list(spoken.items())[:count]))
        took_ms = 1000 * (time.perf_counter() - start_s)
        answers, equal, differ = compared(alone, together)
        row = {"model": weights, "dtype": kind, "attention": attention, "calls": count, "answers": answers}
        row |= {"equal": equal, "ms_per_step": round(took_ms / steps, 2), "differ": differ}
        given.figures["rows"].append(row)
        given.keep()


def main() -> int:
    given = options()
    given.figures = {"rows": [], "left_out": []}
    for weights, kind, calls in MODELS[:2] if given.rehearse else MODELS:
        try:
            measure(given, weights, kind, REHEARSED if given.rehearse else calls)
        except EngineUnusable as error:  # a kernel that this GPU or this torch does not have
            given.figures["left_out"].append(str(error))
        given.keep()
    # In 16 bits two tokens may tie, and either may be said: often with random weights, hardly ever with trained ones.
    wrong = [row for row in given.figures["rows"] if row["answers"] - row["equal"] > TIES * row["answers"]]
    wrong = [row for row in wrong if (row["model"], row["dtype"]) != ("0.6B", "bfloat16")]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(given.figures['rows'])} rows have answers that differ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
