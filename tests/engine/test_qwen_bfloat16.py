"""In bfloat16 what is loaded says what the library's own bfloat16 model says: in both layouts, recogniser and aligner,
with buffers in float32, at positions up to 2,000."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ASRForConditionalGeneration, Qwen3ASRForTokenClassification

from asr.engines.interface import EngineUnusable
from asr.engines.qwen.device.execution import Graphs, Staging
from asr.engines.qwen.device.kernels import Kernels
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model import loader
from asr.engines.qwen.model.fused import fuse
from asr.engines.qwen.model.kv_cache import KvCache
from asr.engines.qwen.packed import Input, Packed, PackedRow
from lab.engine.aligner_models import random_aligner, save, save_original
from lab.engine.qwen_models import TINY, random_model
from tools.reference import checkpoints

POSITIONS = (30, 140, 400, 2000)
LIMIT = 0.04
"""Largest relative difference between two orders of the same operations in bfloat16. Rounded frequencies exceed it."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    base = tmp_path_factory.mktemp("checkpoints")
    recogniser, aligner = random_model(7), random_aligner(7)
    checkpoints.write(recogniser, TINY, base / "recogniser-original")
    save_original(aligner, base / "aligner-original")
    return {
        ("recogniser", "original"): base / "recogniser-original",
        ("recogniser", "native"): save(recogniser, base / "recogniser-native"),
        ("aligner", "original"): base / "aligner-original",
        ("aligner", "native"): save(aligner, base / "aligner-native"),
    }


LIBRARY: dict[str, Any] = {
    "recogniser": Qwen3ASRForConditionalGeneration, "aligner": Qwen3ASRForTokenClassification,
}  # fmt: skip
LOAD: dict[str, Callable[..., Any]] = {"recogniser": loader.load, "aligner": loader.load_aligner}


def ids_of(model: Any, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(model.config.get_text_config().vocab_size - 60, (1, count), generator=generator)


def hidden_of(model: Any, ids: Tensor) -> Tensor:
    states: Tensor = model.model.language_model(input_ids=ids).last_hidden_state
    return states


def heads_of(model: Any, hidden: Tensor) -> Tensor:
    out: Tensor = (model.lm_head if hasattr(model, "lm_head") else model.score)(hidden)
    return out


def off(mine: Tensor, theirs: Tensor) -> float:
    """Relative difference of all of it."""
    return float((mine.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.mark.parametrize("layout", ["original", "native"])
@pytest.mark.parametrize("kind", ["recogniser", "aligner"])
@torch.inference_mode()
def test_what_is_loaded_is_the_librarys_model(folders: dict[tuple[str, str], Path], kind: str, layout: str) -> None:
    theirs = LIBRARY[kind].from_pretrained(folders[kind, "native"], dtype=torch.bfloat16, local_files_only=True).eval()
    mine = LOAD[kind](folders[kind, layout], dtype=torch.bfloat16).model
    expected = dict(theirs.named_buffers())
    found = dict(mine.named_buffers())
    assert found.keys() == expected.keys() == loader.BUFFERS
    for name, buffer in found.items():
        assert buffer.dtype == torch.float32 and torch.equal(buffer, expected[name]), name
    assert {each.dtype for each in mine.parameters()} == {torch.bfloat16}
    frames = torch.randn(1, 128, 300, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    mask = torch.ones(1, 300, dtype=torch.long)
    heard = [each.model.get_audio_features(frames, mask, return_dict=True).pooler_output for each in (mine, theirs)]
    assert torch.equal(*heard)
    for count in POSITIONS:
        ids = ids_of(theirs, count)
        hidden, wanted = hidden_of(mine, ids), hidden_of(theirs, ids)
        assert torch.equal(hidden, wanted), f"{off(hidden, wanted):.1%} at {count} positions"
        assert torch.equal(heads_of(mine, hidden), heads_of(theirs, wanted))


@pytest.mark.parametrize("layout", ["original", "native"])
@torch.inference_mode()
def test_the_engines_layers_say_the_same(folders: dict[tuple[str, str], Path], layout: str) -> None:
    folder = folders["recogniser", "native"]
    theirs = LIBRARY["recogniser"].from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()
    mine = loader.load(folders["recogniser", layout], dtype=torch.bfloat16).model
    fuse(mine)
    text = mine.config.get_text_config()
    for count in POSITIONS:
        cpu = torch.device("cpu")
        cache = KvCache(text, pages=32, positions=2048, device=cpu, dtype=torch.bfloat16)
        packed = Packed(mine, cache, Kernels(), Graphs(), Staging(), never=0, rows=1, positions=2048)
        ids = ids_of(theirs, count)
        last, _ = packed.observe([PackedRow(cache.allocate("u", 32), 0, Input(ids[0].tolist()), 1)])
        difference = off(last[0], hidden_of(theirs, ids)[0, -1])
        assert difference < LIMIT, f"{difference:.1%} at {count} positions"


@torch.inference_mode()
def test_rounded_frequencies_would_be_noticed(folders: dict[tuple[str, str], Path]) -> None:
    """The comparison above is one that can fail: this is what `model.to(bfloat16)` did to buffers."""
    model = loader.load(folders["recogniser", "original"], dtype=torch.bfloat16).model
    ids = ids_of(model, 400)
    right = hidden_of(model, ids)
    rotary = model.model.language_model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.to(torch.bfloat16)
    assert off(hidden_of(model, ids), right) > LIMIT


def test_a_library_that_has_moved_things_is_refused_before_the_first_call(
    folders: dict[tuple[str, str], Path],
) -> None:
    for moved in ("self_attn.q_norm", "self_attn.o_proj", "mlp.down_proj"):
        loaded = loader.load(folders["recogniser", "native"])
        part, _, name = moved.partition(".")
        delattr(getattr(loaded.model.model.language_model.layers[0], part), name)
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            QwenEngine(loaded, Shape(slots=1, batch=1)).warm_up()
    other = loader.load(folders["recogniser", "native"]).model
    other.model.register_buffer("new", torch.zeros(1))
    with pytest.raises(EngineUnusable, match=r"buffers that the engine does not know: model\.new"):
        loader._settled(other)
