"""What weights in 8 bits change: tokens and words of finals, memory and time, beside 16 and 32 bits.

By default the tiny model and its recorded digits, varied: where the audio is cut, how loud it is, with noise, and three
pieces in one breath. With `--audio` these files, cut at their pauses; FILE.txt beside a file holds what is said in it.
On a CPU times are of the processor, on a GPU of the clock; and on a CPU, layers of a published model's size are timed.
All versions of the model are held at once: 12 GB for the one of 0.6 B parameters.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr import text
from asr.engines import weights
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.loader import load
from asr.engines.qwen.model.prompt import Prompt
from asr.engines.qwen.model.quantise import Int8, Kind, quantise
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from audio.codecs.g711 import ulaw_decode, ulaw_encode
from benchmarks.engine.plan import BREATH_MS, LEADS_MS, TAIL_MS, cut, utterances
from benchmarks.engine.run import CLIPS, MODEL, clips

LONG = "one two three four five six seven eight nine zero"
SAID = {  # as tests/data/digits/README.md has it
    "agent": ["zero six two", "one eight four nine"],
    "customer": ["four seven one two", "nine oh five three eight"],
    "long": [f"{LONG} {LONG}"],
}
JOINED, PIECES = 12, 3
COMPARED = ("float32", "bfloat16")
SHAPES = ((1024, 1024), (3072, 1024), (1024, 3072), (3584, 896))
"""(out, in) of linear layers of the 0.6B model."""
ROWS, ROUNDS = (1, 8, 40, 128), 15


@dataclass(frozen=True)
class Spoken:
    source: str
    variant: str
    codes: bytes
    said: str | None
    """In all of its source and variant, when that is known."""


@dataclass
class Version:
    """The model in one precision, and what it has said."""

    name: str
    dtype: torch.dtype
    kind: Kind | None = None
    head: bool = False
    """Its head in 8 bits as well."""
    tokens: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    weight_bytes: int = 0
    engine: QwenEngine = field(init=False)

    def load(self, folder: Path, device: str) -> None:
        loaded = load(folder, device=device, dtype=self.dtype)
        model = loaded.model
        fuse(model)
        if self.kind is not None:
            quantise(model, self.kind)
        if self.head:
            model.lm_head = Int8(model.lm_head)
        stored = {each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}
        self.weight_bytes = sum(stored.values())
        self.engine = QwenEngine(loaded, Shape(slots=2, batch=1))
        read = self.engine.prompts.read

        def noted(tokens: list[int], prompt: Prompt) -> tuple[str, str]:
            self.tokens.append(list(tokens))
            return read(tokens, prompt)

        self.engine.warm_up()
        self.engine.prompts.read = noted  # type: ignore[method-assign]

    def hear(self, codes: bytes, clock: Callable[[], float]) -> None:
        engine, began = self.engine, clock()
        engine.open(Utterance("u", "PCMU"))
        engine.append("u", codes)
        request = Request("u", 1, Lane.FINAL, True, len(codes), 0.0)
        while not (answers := engine.step([request])):
            pass
        engine.close("u")
        self.seconds += clock() - began
        evidence = text.Evidence(seconds=len(codes) / 8000, peak_dbfs=0.0)
        self.texts.append(text.clean(answers[0].text, evidence=evidence))


def versions() -> list[Version]:
    return [
        Version("float32", torch.float32),
        Version("bfloat16", torch.bfloat16),
        Version("int8 in float32", torch.float32, "int8"),
        Version("int8 in bfloat16", torch.bfloat16, "int8"),
        Version("int8 in bfloat16, head too", torch.bfloat16, "int8", head=True),
        Version("fp8 in bfloat16", torch.bfloat16, "fp8"),
    ]


# -- what is said ------------------------------------------------------------------------------------------------------


def digits() -> list[Spoken]:
    """The recorded digits in many ways."""
    rng, noise = random.Random(1), np.random.default_rng(1)
    pieces = [
        (clip, where, said)
        for path, clip in zip(sorted(CLIPS.glob("*.ulaw")), clips([]), strict=True)
        for where, said in zip(utterances(clip), SAID[path.stem], strict=True)
    ]
    takes = [(cut(clip, where, lead_ms), said) for clip, where, said in pieces for lead_ms in LEADS_MS[::3]]
    for _ in range(JOINED):
        chosen = rng.choices(pieces, k=PIECES)
        codes = b"".join(cut(clip, where, BREATH_MS - TAIL_MS) for clip, where, _ in chosen)
        takes.append((codes, " ".join(said for _, _, said in chosen)))
    return [
        Spoken(f"{number}", name, change(codes, noise), said)
        for number, (codes, said) in enumerate(takes)
        for name, change in CHANGES.items()
    ]


def _changed(gain_db: float, snr_db: float | None) -> Callable[[bytes, np.random.Generator], bytes]:
    def change(codes: bytes, noise: np.random.Generator) -> bytes:
        samples = ulaw_decode(codes).astype(np.float64) * 10 ** (gain_db / 20)
        if snr_db is not None:
            level = np.sqrt(np.square(samples).mean()) * 10 ** (-snr_db / 20)
            samples += level * noise.standard_normal(len(samples))
        return bytes(ulaw_encode(np.clip(samples, -32768, 32767).astype(np.int16)))

    return change


CHANGES = {
    "as recorded": _changed(0, None), "20 dB quieter": _changed(-20, None), "noise at 10 dB": _changed(0, 10),
    "noise at 3 dB": _changed(0, 3), "noise at -3 dB": _changed(0, -3),
}  # fmt: skip


def files(names: Sequence[str]) -> list[Spoken]:
    spoken = []
    for name, clip in zip(names, clips(names), strict=True):
        beside = Path(name).with_suffix(".txt")
        said = beside.read_text(encoding="utf-8") if beside.is_file() else None
        spoken += [Spoken(name, "as recorded", cut(clip, where, LEADS_MS[0]), said) for where in utterances(clip)]
    return spoken


# -- figures -----------------------------------------------------------------------------------------------------------


def distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Insertions, deletions and replacements between two sequences."""
    row = list(range(len(other) + 1))
    for count, left in enumerate(one, 1):
        before, row[0] = row[0], count
        for at, right in enumerate(other, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (left != right))
    return row[-1]


def agreement(mine: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> dict[str, float]:
    pairs = list(zip(mine, theirs, strict=True))
    wrong, tokens = sum(distance(*pair) for pair in pairs), sum(len(other) for _, other in pairs)
    return {"utterances": sum(one == other for one, other in pairs) / len(pairs), "tokens": 1 - wrong / max(1, tokens)}


def plain(said: str) -> list[str]:
    return re.findall(r"[\w']+", said.lower())


def word_errors(version: Version, spoken: Sequence[Spoken]) -> float | None:
    """Against what is said."""
    heard: dict[tuple[str, str, str], list[str]] = {}
    for each, words in zip(spoken, version.texts, strict=True):
        if each.said is not None:
            heard.setdefault((each.source, each.variant, each.said), []).extend(plain(words))
    wrong = sum(distance(found, plain(said)) for (_, _, said), found in heard.items())
    total = sum(len(plain(said)) for _, _, said in heard)
    return wrong / total if total else None


def row(version: Version, spoken: Sequence[Spoken], against: Sequence[Version]) -> dict[str, Any]:
    audio_s = sum(len(each.codes) for each in spoken) / 8000
    return {
        "version": version.name,
        "agreement": {other.name: agreement(version.tokens, other.tokens) for other in against},
        "word_error_rate": word_errors(version, spoken),
        "weight_bytes": version.weight_bytes,
        "seconds_per_audio_s": version.seconds / audio_s,
    }


def layers() -> list[dict[str, Any]]:
    """Linear layers with the shapes of the 0.6B model and random weights: µs of CPU for so many rows, medians."""
    found = []
    for out, width in SHAPES:
        linear = torch.nn.Linear(width, out, bias=False)
        made = {"float32": linear, "int8": Int8(linear), "bfloat16": copy.deepcopy(linear).bfloat16()}
        for rows in ROWS:
            input = torch.randn(rows, width)
            inputs = {name: input.to(torch.bfloat16 if name == "bfloat16" else torch.float32) for name in made}
            spent: dict[str, list[float]] = {name: [] for name in made}
            for _ in range(ROUNDS):
                for name, layer in made.items():
                    began = time.thread_time()
                    layer(inputs[name])
                    spent[name].append(1e6 * (time.thread_time() - began))
            us = {name: statistics.median(each[2:]) for name, each in spent.items()}
            found.append({"layer": f"{width} → {out}", "rows": rows, "us": us})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(MODEL), metavar="FOLDER-OR-NAME", help="default: the tiny one")
    parser.add_argument("--audio", nargs="+", default=[], metavar="FILE", help="what is said (default: digits)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = weights.find(arguments.model)
    if folder is None:
        raise SystemExit(weights.missing(arguments.model))
    spoken = files(arguments.audio) if arguments.audio else digits()
    chosen = versions()
    try:
        for version in chosen:
            version.load(folder, arguments.device)
    except EngineUnusable as error:
        raise SystemExit(str(error)) from None
    clock = time.thread_time if arguments.device == "cpu" else time.perf_counter
    for each in spoken:
        for version in chosen:  # in turn: a machine whose speed changes treats all of them alike
            version.hear(each.codes, clock)
    against = [version for version in chosen if version.name in COMPARED]
    figures: dict[str, Any] = {
        "utterances": len(spoken),
        "audio_s": sum(len(each.codes) for each in spoken) / 8000,
        "tokens": sum(map(len, chosen[0].tokens)),
        "versions": [row(version, spoken, against) for version in chosen],
    }
    show(figures)
    if arguments.device == "cpu":
        with torch.inference_mode():
            figures["layers"] = layers()
        show_layers(figures["layers"])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['utterances']} finals, {figures['audio_s']:.0f} s of audio, {figures['tokens']} tokens")
    heads = [f"finals equal, tokens equal to {name}" for name in COMPARED]
    line("version", *heads, "word errors", "weights, MB", "s per s of audio")
    for each in figures["versions"]:
        equal = [f"{share(each['agreement'][name]['utterances'])}, {share(each['agreement'][name]['tokens'])}"
                 for name in COMPARED]  # fmt: skip
        line(each["version"], *equal, share(each["word_error_rate"]), f"{each['weight_bytes'] / 1e6:.2f}",
             f"{each['seconds_per_audio_s']:.4f}")  # fmt: skip


def show_layers(found: Sequence[dict[str, Any]]) -> None:
    print("µs of CPU for a layer of the 0.6B model")
    line("layer", "rows", *found[0]["us"], "float32 / int8")
    for each in found:
        us = each["us"]
        cells = [f"{value:.0f}" for value in us.values()]
        line(each["layer"], str(each["rows"]), *cells, f"{us['float32'] / us['int8']:.1f}")


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
