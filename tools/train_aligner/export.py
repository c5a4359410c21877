"""The folder that `from_pretrained` takes: half-precision weights, tokenizer, and a card with its figures."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification

from tools.train_aligner import tokenizer
from tools.train_aligner.card import card
from tools.train_aligner.evaluation import SETS, errors, held_out
from tools.train_aligner.training import averaged
from tools.train_tiny.export import MAX_BYTES, amend, load
from tools.train_tiny.model import parameters


def export(checkpoint: Path, folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    processor = tokenizer.save(folder)
    model, training = averaged(checkpoint, processor)
    model.to(torch.float16).save_pretrained(folder)
    amend(folder / "config.json", dtype="float32")
    processor.feature_extractor.save_pretrained(folder)

    model, processor = load(folder, Qwen3ASRForTokenClassification)
    figures = {name: errors(model, processor, held_out(name, count)) for name in SETS}
    digits = held_out("digits, clean µ-law", count)
    for fault in ("wrong", "missing"):
        figures[f"the same digits, one word {fault} in the transcript"] = errors(model, processor, digits, fault)
    (folder / "README.md").write_text(card(parameters(model), training, figures), encoding="utf-8")
    for name, found in figures.items():
        print(f"{name}: {found}, within 150 ms {found.within(150):.2%} of {len(found.starts)}", flush=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size <= MAX_BYTES, f"{folder} has {size} bytes"
