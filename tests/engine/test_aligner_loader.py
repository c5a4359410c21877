"""Checkpoints of the forced aligner: both layouts hold the same model; what does not fit is refused with a sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from asr import languages
from asr.engines.interface import EngineUnusable
from asr.engines.qwen.model.loader import load_aligner as load
from asr.engines.qwen.plugin import create_aligner
from asr.engines.selection import select_words
from config.settings import Asr, Qwen
from lab.engine.aligner_models import CLASSES, random_aligner, save, save_original
from lab.engine.checkpoints import change, configured, has_more, lacks, other_tokenizer
from lab.engine.qwen_models import TINY


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_aligner(7), tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_original(random_aligner(7), tmp_path_factory.mktemp("folder") / "original")


def test_both_layouts_hold_the_same_model(native: Path, original: Path) -> None:
    one, other = load(native), load(original)
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert one.class_ms == other.class_ms == 80 and not one.model.training and not other.model.training
    for each in (one, other):
        config = each.model.config
        assert config.num_labels == CLASSES == len(each.model.score.weight)
        assert each.tokenizer.convert_tokens_to_ids("<timestamp>") == config.timestamp_token_id


def test_the_length_of_a_class_is_that_of_the_folder(native: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(native, tmp_path / "model"))
    change(folder / "processor_config.json", lambda tree: tree.update(timestamp_segment_time=40))
    assert load(folder).class_ms == 40
    change(folder / "processor_config.json", lambda tree: tree.update(timestamp_segment_time="40"))
    with pytest.raises(EngineUnusable, match="timestamp_segment_time is '40'"):
        load(folder)


def other_timestamp(folder: Path) -> None:
    change(folder / "config.json", lambda tree: tree.update(timestamp_token_id=5))


def fewer_classes(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["score.weight"] = tensors["score.weight"][:100].contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lacks("score.weight"), "the checkpoint lacks score.weight"),
        (lacks("model.audio_tower.layers.1.fc1.weight"), "lacks model.audio_tower.layers.1.fc1.weight"),
        (has_more, "has, and should not, model.audio_tower.proj1.weight"),
        (fewer_classes, ""),
        (other_tokenizer, "does not know <asr_text>"),
        (other_timestamp, "times stand at token 5 and <timestamp> is token"),
        (configured(audio_token_id=5), "audio goes to token 5"),
        (configured(architectures=["Qwen3ASRForConditionalGeneration"]), "holds no Qwen3-ForcedAligner"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "model"),
    ],
)
def test_what_does_not_fit_is_refused(native: Path, tmp_path: Path, spoil: Callable[[Path], Any], says: str) -> None:
    folder = Path(shutil.copytree(native, tmp_path / "model"))
    spoil(folder)
    with pytest.raises(EngineUnusable) as refused:
        load(folder)
    sentence = str(refused.value)
    assert says in sentence and str(folder) in sentence and "\n" not in sentence


def unplaced(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("thinker.lm_head.weight")
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (unplaced, "the checkpoint lacks score.weight"),
        (lambda folder: change(folder / "config.json", lambda tree: tree["thinker_config"].update(classify_num=9)), ""),
        (lambda folder: change(folder / "config.json", lambda tree: tree.pop("timestamp_token_id")), "timestamp_token"),
        (
            lambda folder: change(folder / "config.json", lambda tree: tree["thinker_config"].pop("classify_num")),
            "holds no Qwen3-ForcedAligner",
        ),
    ],
)
def test_an_original_one_is_counted_too(
    original: Path, tmp_path: Path, spoil: Callable[[Path], Any], says: str
) -> None:
    folder = Path(shutil.copytree(original, tmp_path / "model"))
    spoil(folder)
    with pytest.raises(EngineUnusable) as refused:
        load(folder)
    assert says in str(refused.value) and str(folder) in str(refused.value)


def test_a_recogniser_is_no_aligner() -> None:
    with pytest.raises(EngineUnusable, match="holds no Qwen3-ForcedAligner"):
        load(TINY)


def test_what_is_configured_is_what_is_used(native: Path) -> None:
    asr = Asr(word_timestamps=True, aligner=str(native))
    aligner = create_aligner(asr, Qwen(dtype="bfloat16"))
    assert aligner is not None
    assert aligner.languages == select_words(asr).languages == languages.alignable()
    assert (aligner.longest_s, aligner.together_s) == (30.0, 0.0), "on a CPU"
    aligner.warm_up()
    with pytest.raises(EngineUnusable, match="torch sees"):
        create_aligner(msgspec.structs.replace(asr, devices=("cuda:7",)), Qwen())


def test_what_is_not_wanted_or_not_here_is_not_used(native: Path) -> None:
    off = Asr(word_timestamps=False, aligner=str(native))
    assert select_words(off).languages == () and not select_words(off).reason and not select_words(off).aligner
    missing = select_words(Asr(word_timestamps=True, aligner="nobody/nothing"))
    assert missing.languages == () and "`mediaworker models pull nobody/nothing` downloads them" in missing.reason
    with pytest.raises(EngineUnusable, match="nobody/nothing"):
        create_aligner(Asr(word_timestamps=True, aligner="nobody/nothing"), Qwen())
