"""Whisper models with random weights in CTranslate2's layout: of any shape, a few megabytes, with the tokenizer of the
real one. They say nothing sensible, and show how an engine treats a model that it has not been measured with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import WhisperSpec

from asr.engines.whisper import base

WIDTH, HEADS, LAYERS = 64, 2, 2
FRAMES, POSITIONS = 1500, 448
MORE = 50256
"""The token that the tokenizer of many languages has more than the English one, before all special tokens."""


def random_model(folder: Path, *, mel_bins: int = 80, multilingual: bool = True) -> Path:
    """A model in this folder."""
    real = base.find()
    assert real is not None, "the setup brings it"
    random = np.random.default_rng(1)
    words = (real / "vocabulary.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    words = words if multilingual else words[:MORE] + words[MORE + 1 :]
    spec = WhisperSpec(LAYERS, HEADS, LAYERS, HEADS)
    _convolution(random, spec.encoder.conv1, mel_bins)
    _convolution(random, spec.encoder.conv2, WIDTH)
    spec.encoder.position_encodings.encodings = _numbers(random, FRAMES, WIDTH)
    spec.decoder.position_encodings.encodings = _numbers(random, POSITIONS, WIDTH)
    spec.decoder.embeddings.weight = _numbers(random, len(words), WIDTH)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        _attention(random, layer.self_attention, (3, 1))
        if hasattr(layer, "attention"):
            _attention(random, layer.attention, (1, 2, 1))
        _linear(random, layer.ffn.linear_0, 4 * WIDTH, WIDTH)
        _linear(random, layer.ffn.linear_1, WIDTH, 4 * WIDTH)
        _norm(layer.ffn.layer_norm)
    _norm(spec.encoder.layer_norm)
    _norm(spec.decoder.layer_norm)
    spec.register_vocabulary(words)
    real_config = json.loads((real / "config.json").read_text(encoding="utf-8"))
    for key in ("suppress_ids", "suppress_ids_begin", "lang_ids"):
        setattr(spec.config, key, real_config[key] if multilingual or key == "suppress_ids_begin" else [])
    spec.config.alignment_heads = [[LAYERS - 1, 0]]
    spec.validate()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    shutil.copy(real / "tokenizer.json", folder)
    if not multilingual:
        _make_english(folder / "tokenizer.json")
    return folder


def _make_english(tokenizer: Path) -> None:
    written = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary = written["model"]["vocab"]
    written["model"]["vocab"] = {
        token: number - (number > MORE) for token, number in vocabulary.items() if number != MORE
    }
    for special in written["added_tokens"]:
        special["id"] -= 1
    for special in written["post_processor"]["special_tokens"].values():
        special["ids"] = [number - 1 for number in special["ids"]]
    tokenizer.write_text(json.dumps(written), encoding="utf-8")


def _numbers(random: np.random.Generator, *shape: int) -> Any:
    return (random.standard_normal(shape) / WIDTH**0.5).astype(np.float32)


def _linear(random: np.random.Generator, spec: Any, rows: int, columns: int) -> None:
    spec.weight, spec.bias = _numbers(random, rows, columns), _numbers(random, rows)


def _convolution(random: np.random.Generator, spec: Any, channels: int) -> None:
    spec.weight, spec.bias = _numbers(random, WIDTH, channels, 3), _numbers(random, WIDTH)


def _norm(spec: Any) -> None:
    spec.gamma, spec.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)


def _attention(random: np.random.Generator, spec: Any, parts: tuple[int, ...]) -> None:
    """`parts`: how many matrices lie in each of the layers."""
    for linear, count in zip(spec.linear, parts, strict=True):
        _linear(random, linear, count * WIDTH, WIDTH)
    _norm(spec.layer_norm)
