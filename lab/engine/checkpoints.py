"""Ways to spoil a checkpoint, each with one thing that is missing or different."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))


def lacks(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        del tensors[name]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return edit


def configured(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", lambda tree: tree.update(values))


def has_more(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors") | {"model.audio_tower.proj1.weight": torch.zeros(2)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def other_tokenizer(folder: Path) -> None:
    """Without `<asr_text>`."""
    change(folder / "tokenizer.json", lambda tree: tree.update(
        added_tokens=[each for each in tree["added_tokens"] if each["content"] != "<asr_text>"]
    ))  # fmt: skip
