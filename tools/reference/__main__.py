"""Asks both, compares, prints the table; exits 1 when something differs without a reason, 2 without the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr import languages
from asr.engines.qwen.model.loader import load, load_aligner
from lab.engine.aligner_models import random_aligner
from lab.engine.qwen_models import TINY, random_model
from tools.reference import checkpoints, deviations, environment, report, times, words
from tools.reference.cases import PARTIAL_S, Case, Talk, cases, talks
from tools.reference.compare import Ours, Row, Stream, compare, streamed

MODELS = ("tiny", "random")
ALIGNERS = {"tiny": "tiny-aligner", "random": "random-aligner"}
"""Folders of the aligners."""
STREAMED = ("customer", "noise-3", "noise-12")
CHUNKS_S = (PARTIAL_S, 3 * PARTIAL_S)


def main() -> int:
    begun = time.monotonic()
    try:
        python = environment.python()
    except environment.NoReference as error:
        print(f"reference: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoints.write(load(TINY).model, TINY, folder / "tiny")
        checkpoints.write(random_model(), TINY, folder / "random")
        ours = Ours(folder, MODELS)
        tiny = TINY.with_name("qwen3-aligner-tiny")
        checkpoints.write(load_aligner(tiny).model, tiny, folder / ALIGNERS["tiny"])
        checkpoints.write(random_aligner(), TINY, folder / ALIGNERS["random"])
        aligned = times.Ours({name: folder / place for name, place in ALIGNERS.items()})
        if not ask(python, folder, ours):
            print("reference: the official package failed", file=sys.stderr)
            return 2
        said = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
        with np.load(folder / "arrays.npz") as arrays:
            rows = [compare(case, said["answers"][case.name], arrays, ours) for case in cases()]
            timed = [times.compare(each, said["times"][each.name], arrays, aligned) for each in times.questions()]
    by_name = {talk.name: talk for talk in talks()}
    anew = {(each["name"], each["chunk_s"]): each for each in said["streams"] if not each["rolls_back"]}
    streams = [
        streamed(each, anew[each["name"], each["chunk_s"]], by_name[each["name"]], ours) for each in said["streams"]
    ]
    rules = [words.rule(tuple(theirs), words.ours(*raw)) for raw, theirs in zip(words.RAW, said["parsed"], strict=True)]
    wrong = [*different(rows, streams), *unlike(said)]
    wrong += [f"{row.question.name}: {each}" for row in timed for each in row.wrong]
    wrong += [f"text of {raw}" for raw, rule in zip(words.RAW, rules, strict=True) if rule is None]
    report.show(rows, streams, rules, timed, wrong, time.monotonic() - begun)
    return 1 if wrong else 0


def ask(python: Path, folder: Path, ours: Ours) -> bool:
    """Have the official package answer into `folder`."""
    (folder / "questions.json").write_text(json.dumps(questions(ours)), encoding="utf-8")
    sounds = [talk.sound for talk in talks()] + [line.sound for each in times.questions() for line in each.lines]
    np.savez(folder / "sounds.npz", **{sound.name: sound.samples for sound in sounds})
    script = Path(__file__).parent / "official.py"
    # Offline: it has all it needs, and a hub that cannot be reached would only cost time.
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return subprocess.run([str(python), str(script), str(folder)], env=environ).returncode == 0


def different(rows: Sequence[Row], streams: Sequence[Stream]) -> Iterator[str]:
    """Answers that differ without a reason."""
    for row in rows:
        yield from (f"{row.case.name}: {each}" for each in row.wrong)
    for stream in streams:
        if not stream.rolls_back and stream.same < stream.count:
            yield f"{stream.name} every {stream.chunk_s} s: the streaming recipe, made anew"


def unlike(said: Mapping[str, Any]) -> Iterator[str]:
    """Settings that are not those of the engine."""
    if names := set(said["languages"]) ^ set(languages.QWEN3_ASR.values()):
        yield f"languages: {sorted(names)}"
    if said["decoding"] != {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0}:
        yield f"decoding: {said['decoding']}, and the engine is greedy"


def questions(ours: Ours) -> dict[str, object]:
    """What `official.py` reads."""
    asked = []
    for case in cases():
        engine, talk = ours.engines[case.talk.model], case.talk
        asked.append(
            told(talk)
            | {
                "name": case.name, "samples": len(case.samples), "budget": case.budget, "final": case.final,
                "placeholder": engine.placeholder, "prompt": engine.prompt(case),
                "switches": deviations.switches(case),
            }
        )  # fmt: skip
    streams = [
        told(talk)
        | {
            "name": talk.name, "budget": Case(talk, 0).budget,
            "chunks_s": [each for each in CHUNKS_S if each >= talk.step_s],
        }
        for talk in talks()
        if talk.step_s and talk.sound.name in STREAMED
    ]  # fmt: skip
    ends = ours.engines[MODELS[0]].ends
    return {
        "models": MODELS, "ends": ends, "cases": asked, "streams": streams, "raw": words.RAW,
        "aligners": ALIGNERS, "times": [each.told() for each in times.questions()],
    }  # fmt: skip


def told(talk: Talk) -> dict[str, str]:
    language = (languages.name(talk.language) or "") if talk.language else ""
    return {"model": talk.model, "sound": talk.sound.name, "language": language, "context": talk.context}


sys.exit(main())
