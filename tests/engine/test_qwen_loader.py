"""What is loaded is the model that the folder holds, in both layouts; what does not fit is refused with a sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asr.engines.interface import EngineUnusable
from asr.engines.plugin import find
from asr.engines.qwen.build import build
from asr.engines.qwen.model.loader import load
from config.settings import Asr, Qwen
from lab.engine.checkpoints import change, configured, has_more, lacks, other_tokenizer
from lab.engine.qwen_models import TINY, ends, random_model, tokenizer
from lab.house import ROOT
from tools.reference.checkpoints import old

PARTS = (
    "chat_template.jinja", "merges.txt", "processor_config.json", "tokenizer_config.json", "tokenizer.json",
    "vocab.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in the library's layout."""
    folder = tmp_path_factory.mktemp("native")
    random_model(7).save_pretrained(folder)
    for part in PARTS:
        shutil.copy(TINY / part, folder)
    return folder


@pytest.fixture
def copy(native: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(native, tmp_path / "model"))


@pytest.fixture
def original(native: Path, tmp_path: Path) -> Path:
    """The same model in the layout of the official package."""
    folder = tmp_path / "original"
    folder.mkdir()
    for part in PARTS:
        shutil.copy(native / part, folder)
    config = json.loads((native / "config.json").read_text())
    scaling = {"rope_type": "default", "mrope_section": [4, 2, 2]}
    text = config["text_config"] | {"rope_theta": 1e6, "rope_scaling": scaling}
    thinker = {"audio_config": config["audio_config"], "text_config": text, "audio_token_id": config["audio_token_id"]}
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_asr", "thinker_config": thinker}))
    tensors = load_file(native / "model.safetensors")
    half = sorted(tensors)[: len(tensors) // 2]
    for number, names in enumerate((half, tensors.keys() - set(half))):
        part = folder / f"model-0000{number + 1}-of-00002.safetensors"
        save_file({old(name): tensors[name] for name in names}, part)
    return folder


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items()}


def test_both_layouts_hold_the_same_model(native: Path, original: Path) -> None:
    one, other = load(native), load(original)
    mine, theirs = weights_of(one.model), weights_of(other.model)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert one.ends == other.ends == ends() and not one.model.training


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lacks("model.audio_tower.layers.1.fc1.weight"), "the checkpoint lacks model.audio_tower.layers.1.fc1.weight"),
        (lacks("model.language_model.norm.weight"), "the checkpoint lacks model.language_model.norm.weight"),
        (has_more, "has, and should not, model.audio_tower.proj1.weight"),
        (other_tokenizer, "does not know <asr_text>"),
        (configured(audio_token_id=5), "audio goes to token 5"),
        (configured(model_type="whisper"), "holds a whisper"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "model"),
        (lambda folder: [(folder / name).unlink() for name in PARTS if name[0] in "tvm"], "does not know <|im_start|>"),
        (
            lambda folder: change(
                folder / "processor_config.json", lambda tree: tree["feature_extractor"].update(hop_length=80)
            ),
            "hop_length is 80",
        ),
    ],
)
def test_what_does_not_fit_is_refused(copy: Path, spoil: Callable[[Path], Any], says: str) -> None:
    spoil(copy)
    with pytest.raises(EngineUnusable) as refused:
        load(copy)
    sentence = str(refused.value)
    assert says in sentence and str(copy) in sentence and "\n" not in sentence


def test_an_original_checkpoint_is_counted_too(original: Path) -> None:
    """The library itself would fill the gaps with random numbers."""
    part = original / "model-00002-of-00002.safetensors"
    tensors = load_file(part)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, part)
    with pytest.raises(EngineUnusable, match="the checkpoint lacks"):
        load(original)


def test_a_model_that_is_not_here_says_what_to_do() -> None:
    with pytest.raises(EngineUnusable, match="`mediaworker models pull nobody/nothing` downloads them"):
        find("qwen").create(Asr(model="nobody/nothing"), Qwen())


@pytest.mark.parametrize(
    ("devices", "settings", "says"),
    [
        (("cuda",), Qwen(), "sees no GPU here"),
        (("gpu",), Qwen(), "asr.devices: 'gpu' is no device"),
    ],
)
def test_what_this_machine_cannot_do_is_said(
    native: Path, devices: tuple[str, ...], settings: Qwen, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # where there is one, too
    with pytest.raises(EngineUnusable, match=says):
        build(Asr(model=str(native), devices=devices), settings)


def test_a_gpu_that_is_not_there_is_said(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(EngineUnusable, match="asr.devices: 'cuda:2', and torch sees 2 GPUs here"):
        build(Asr(model=str(native), devices=("cuda:2",)), Qwen())


def test_the_configuration_reaches_the_engine(native: Path) -> None:
    settings = Qwen(slots=3, batch=2, experimental=("short_windows",), dtype="bfloat16")
    engine = build(Asr(model=str(native)), settings)
    assert (
        engine.kv_cache.free == 3 * 16
        and engine.kv_cache.positions == 1024
        and engine.kv_cache.keys.dtype == torch.bfloat16
    )
    assert engine.capabilities.batch == 2 and engine.encoder.window == 200
    engine.warm_up()
    assert len(tokenizer()) and not len(engine.kv_cache)


def test_pulling_without_a_network_says_what_to_do(tmp_path: Path) -> None:
    environ = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "mediaworker.cli.main", "models", "pull"]
    done = subprocess.run([*command, "Qwen/Qwen3-ASR-1.7B"], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 1 and "the hub cannot be reached" in done.stderr and "Traceback" not in done.stderr
    done = subprocess.run([*command, "not/a/name"], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 2 and "OWNER/NAME" in done.stderr


def test_attention_can_no_longer_be_chosen() -> None:
    """The setting is taken for a release, and said to do nothing."""
    engine = build(Asr(model=str(TINY), attention="varlen", devices=("cpu",)), Qwen(slots=1, batch=1))
    assert [each.split(" and will")[0] for each in engine.runtime().warnings] == [
        "asr.attention = 'varlen' has no effect any more"
    ]
