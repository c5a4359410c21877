"""The folder that `from_pretrained` takes: half-precision weights, tokenizer, and a card with its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoProcessor, Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

from tools.train_tiny import tokenizer
from tools.train_tiny.card import card
from tools.train_tiny.evaluation import SETS, growing, held_out, placeholder_margin, score
from tools.train_tiny.model import parameters
from tools.train_tiny.training import averaged

MAX_BYTES = 4_000_000


def export(checkpoint: Path, folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    processor = tokenizer.save(folder)
    model, training = averaged(checkpoint, processor)
    model.to(torch.float16).save_pretrained(folder)
    amend(folder / "config.json", dtype="float32")
    processor.feature_extractor.save_pretrained(folder)

    model, processor = load(folder)
    figures = {name: score(model, processor, held_out(name, count)) for name in SETS}
    digits = held_out("digits, clean µ-law", count)
    for label, options in (("language forced", {"language": "English"}), ("with a context", {"context": "Acme seven"})):
        figures[f"digits, clean µ-law, {label}"] = score(model, processor, digits, **options)
    partials = growing(model, processor, digits[: count // 3])
    margin = placeholder_margin(model, processor, digits[: count // 3])
    assert margin < -5, f"the audio placeholder is within {-margin:.1f} of being said"
    (folder / "README.md").write_text(card(parameters(model), training, figures, partials), encoding="utf-8")
    for name, total in figures.items():
        print(f"{name}: {total.accuracy:.2%} of {total.words}, exact {total.exact}/{total.sentences}", flush=True)
    print(f"partials that took a word back: {partials.taken_back} of {partials.count}; placeholder {margin:.1f}")
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size <= MAX_BYTES, f"{folder} has {size} bytes"


def load(folder: Path, kind: type[Any] = Qwen3ASRForConditionalGeneration) -> tuple[Any, Qwen3ASRProcessor]:
    """Strictly: the native classes fill what a folder lacks with random numbers, and say so only here."""
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    wrong = {what: keys for what, keys in info.items() if keys}
    assert not wrong, wrong
    assert model.dtype == torch.float32, model.dtype
    return model.eval(), AutoProcessor.from_pretrained(folder)


def amend(path: Path, **values: str) -> None:
    """Weights are stored in half precision and computed with in full: a CPU is slow at halves."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | values, indent=2) + "\n", encoding="utf-8")
