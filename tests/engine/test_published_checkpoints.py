"""Checkpoints with the published names, ids, dtype, shards and files load in both layouts; their numbers are random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model import loader
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from lab.engine.qwen_models import noise
from tools.make_checkpoint import ADDED, VOCABULARY, Layout, Model, write


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[tuple[str, str], Path] = {}
    base = tmp_path_factory.mktemp("published")

    def folder(model: Model, layout: Layout) -> Path:
        if (model, layout) not in made:
            made[model, layout] = write(base / f"{model}-{layout}", model, layout, shrink=True, shard="6MB")
        return made[model, layout]

    return folder


@pytest.mark.parametrize("model", ["0.6B", "1.7B", "aligner"])
def test_both_layouts_load_as_the_same_model(folders: Any, model: Model) -> None:
    load: Any = loader.load_aligner if model == "aligner" else loader.load
    found = {}
    for layout in ("original", "hf"):
        folder = folders(model, layout)
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert len(set(index["weight_map"].values())) > 1, "in shards"
        found[layout] = load(folder, dtype=torch.bfloat16)
        assert (folder / "tokenizer.json").is_file() == (layout == "hf")
        tokenizer = found[layout].tokenizer
        assert {name: tokenizer.convert_tokens_to_ids(name) for name in ADDED} == ADDED
    one, other = (each.model.state_dict() for each in found.values())
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert len(one["model.language_model.embed_tokens.weight"]) == VOCABULARY
    if model != "aligner":
        assert found["original"].ends == found["hf"].ends == (151_645, 151_643)


def test_the_engine_answers_with_one(folders: Any) -> None:
    made = QwenEngine(loader.load(folders("0.6B", "original"), dtype=torch.bfloat16), Shape(slots=1, batch=1))
    sound = noise(1.0, seed=1)
    made.open(Utterance("a", "PCMU", context="Miller <asr_text>", language="en"))
    made.append("a", sound)
    request = Request("a", 1, Lane.FINAL, True, len(sound), 0.0)
    assert any(made.step([request]) for _ in range(100))
