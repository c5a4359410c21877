"""Our models as folders in the official package's layout: the reverse of what `asr.engines.qwen.model.loader` does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from asr.engines.qwen.model.loader import CLASS_MS
from asr.engines.qwen.model.prompt import AUDIO_END, AUDIO_PAD, AUDIO_START

TOKENIZER = ("merges.txt", "tokenizer.json", "vocab.json")
MADE_WITH = "4.57.6"
"""The version of transformers that the package is pinned to, and would note in a folder of its own."""


def write(model: Any, source: Path, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """`model`: of the library's class, a recogniser or an aligner; `source`: the folder with its tokenizer; `dtype`: of
    the tensors in the file."""
    folder.mkdir(parents=True)
    for name in TOKENIZER:
        shutil.copy(source / name, folder)
    tokenizer = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    kept = ("add_prefix_space", "bos_token", "eos_token", "model_max_length", "pad_token", "unk_token")
    _write(
        folder / "tokenizer_config.json",
        {key: tokenizer[key] for key in kept}
        | {"tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen3ASRProcessor"}
        | {
            "extra_special_tokens": {
                "audio_token": AUDIO_PAD, "audio_bos_token": AUDIO_START, "audio_eos_token": AUDIO_END
            }
        },
    )  # fmt: skip
    filters = json.loads((source / "preprocessor_config.json").read_text(encoding="utf-8"))
    _write(
        folder / "preprocessor_config.json",
        {key: value for key, value in filters.items() if key not in ("min_length", "n_window")}
        | {"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "Qwen3ASRProcessor"},
    )
    shutil.copy(source / "chat_template.jinja", folder)
    _write(folder / "config.json", config(model.config, times=hasattr(model, "score")))
    tensors = {old(name): tensor.to(dtype) for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def old(name: str) -> str:
    """A tensor's name in the official layout."""
    if name == "score.weight":  # an aligner's head stands where a recogniser's head for words does
        return "thinker.lm_head.weight"
    name = name.removeprefix("model.")
    name = name.replace("multi_modal_projector.linear_", "audio_tower.proj").replace("language_model.", "model.")
    return f"thinker.{name}"


def config(native: Any, *, times: bool) -> dict[str, Any]:
    """config.json of the same model in the official layout. `times`: it is an aligner."""
    told = native.to_dict()
    audio, text = dict(told["audio_config"]), dict(told["text_config"])
    rope = text.pop("rope_parameters")
    half = text["head_dim"] // 2
    # Three kinds of positions share the rotations; for sound and text all three are the same number.
    section = [half - 2 * (half // 3), half // 3, half // 3]
    text |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": section},
    }
    for part in (audio, text):
        for key in ("model_type", "layer_types", "transformers_version", "dtype", "max_position_embeddings"):
            part.pop(key, None)
    thinker = {
        "audio_config": audio,
        "text_config": text | {"max_position_embeddings": native.text_config.max_position_embeddings},
        "audio_token_id": told["audio_token_id"],
    }
    top = {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "support_languages": ["English"],
        "thinker_config": thinker,
        "transformers_version": MADE_WITH,
    }
    if times:
        thinker |= {"model_type": "qwen3_forced_aligner", "classify_num": native.num_labels}
        # Else the package would put the embeddings in the place of the head.
        thinker["text_config"]["tie_word_embeddings"] = False
        top |= {"timestamp_token_id": native.timestamp_token_id, "timestamp_segment_time": int(CLASS_MS)}
    return top


def _write(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
