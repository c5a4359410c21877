"""Write a checkpoint as it is published, with random numbers: `python -m tools.make_checkpoint FOLDER --model 0.6B`.

Names, shapes, dtype, shards with their index, configuration and tokenizer files of Qwen3-ASR and of the forced aligner,
in the layout of the official package or of `transformers` (`-hf`). For tests of all that comes before words mean
something.

Known from public configurations: the dimensions, the ids of the special tokens, the names of the tensors. Not known
here, and made up: the words of the vocabulary (those of the tiny model, and fillers up to the published number), how
tensors are divided into shards, the number of the aligner's classes, and keys of the configuration that nothing reads.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration, Qwen3ASRForTokenClassification

from benchmarks.engine.limit import PUBLISHED
from tools.reference import checkpoints

ROOT = Path(__file__).parent.parent
TINY = ROOT / "models" / "qwen3-asr-tiny"
Model = Literal["0.6B", "1.7B", "aligner"]
Layout = Literal["original", "hf"]
WORDS, VOCABULARY, LAST = 151_643, 151_936, 151_705
"""Ids of words, rows of the embeddings, and the last id of an added token."""
ADDED = {
    "<|endoftext|>": 151_643, "<|im_start|>": 151_644, "<|im_end|>": 151_645, "<|audio_start|>": 151_669,
    "<|audio_end|>": 151_670, "<|audio_pad|>": 151_676, "<asr_text>": 151_704, "<timestamp>": LAST,
}  # fmt: skip
NOT_SPECIAL = ("<asr_text>", "<timestamp>")
CLASSES = 5000
"""Of the aligner, 80 ms each: more than the five minutes that its paper gives as its limit."""
SPREAD = 0.02
SHARD = "2GB"
SHRUNK_AUDIO = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32}
SHRUNK_TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def configuration(model: Model, *, shrink: bool) -> Any:
    text = PUBLISHED["1.7B" if model == "1.7B" else "0.6B"]
    audio = PUBLISHED["0.6B" if model == "0.6B" else "1.7B"]  # the aligner has the larger encoder
    heard = {
        "model_type": "qwen3_asr_encoder", "num_mel_bins": 128, "encoder_layers": audio.encoder_layers,
        "encoder_attention_heads": audio.encoder_heads, "encoder_ffn_dim": audio.encoder_ffn,
        "d_model": audio.encoder_width, "n_window": 50, "n_window_infer": 800, "output_dim": text.width,
        "downsample_hidden_size": audio.channels,
    }  # fmt: skip
    written = {
        "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": text.width, "intermediate_size": text.ffn,
        "num_hidden_layers": text.layers, "num_attention_heads": text.heads, "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_width, "max_position_embeddings": 65_536, "tie_word_embeddings": model != "aligner",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }  # fmt: skip
    if shrink:
        heard |= SHRUNK_AUDIO | {"output_dim": SHRUNK_TEXT["hidden_size"], "downsample_hidden_size": 8}
        written |= SHRUNK_TEXT
    library: Any = Qwen3ASRConfig
    named: dict[str, Any] = {"audio_token_id": ADDED["<|audio_pad|>"], "timestamp_token_id": ADDED["<timestamp>"]}
    if model == "aligner":
        named |= {"num_labels": CLASSES, "architectures": ["Qwen3ASRForTokenClassification"]}
    else:
        named |= {"architectures": ["Qwen3ASRForConditionalGeneration"], "tie_word_embeddings": True}
    return library(audio_config=heard, text_config=written, dtype="bfloat16", **named)


def tensors(model: Model, config: Any, seed: int) -> dict[str, Tensor]:
    """By their names in the library's layout."""
    library: Any = Qwen3ASRForTokenClassification if model == "aligner" else Qwen3ASRForConditionalGeneration
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in library(config).state_dict().items()}
    if config.tie_word_embeddings and model != "aligner":
        shapes.pop("lm_head.weight")  # the same as the embeddings
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            made[name] = (torch.randn(shape, generator=generator) * SPREAD).to(torch.bfloat16)
        else:
            made[name] = torch.full(shape, float(name.endswith(".weight")), dtype=torch.bfloat16)  # norms, and biases
    return made


def write(
    folder: Path, model: Model, layout: Layout, *, shrink: bool = False, shard: str = SHARD, seed: int = 1
) -> Path:
    config = configuration(model, shrink=shrink)
    folder.mkdir(parents=True)
    named = tensors(model, config, seed)
    if layout == "original":
        named = {checkpoints.old(name): tensor for name, tensor in named.items()}
        _json(folder / "config.json", checkpoints.config(config, times=model == "aligner"))
    else:
        config.save_pretrained(folder)
    save_torch_state_dict(named, folder, max_shard_size=shard, metadata={"format": "pt"})
    _tokenizer(folder, layout)
    return folder


def _tokenizer(folder: Path, layout: Layout) -> None:
    known = json.loads((TINY / "vocab.json").read_text(encoding="utf-8"))
    words = {piece: at for at, piece in enumerate(each for each in known if each not in ADDED)}
    words |= {f"\u0120filler{at}": at for at in range(len(words), WORDS)}
    names = {at: f"<|reserved_{at}|>" for at in range(WORDS, LAST + 1)} | {at: name for name, at in ADDED.items()}
    added = {
        str(at): {
            "content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": name not in NOT_SPECIAL,
        }
        for at, name in names.items()
    }  # fmt: skip
    shutil.copy(TINY / "merges.txt", folder)
    shutil.copy(TINY / "chat_template.jinja", folder)
    _json(folder / "vocab.json", words)
    tokenizer = json.loads((TINY / "tokenizer_config.json").read_text(encoding="utf-8"))
    _json(folder / "tokenizer_config.json", tokenizer | {"added_tokens_decoder": added})
    shutil.copy(TINY / "preprocessor_config.json", folder)
    if layout == "original":
        return  # published without tokenizer.json and processor_config.json
    shutil.copy(TINY / "processor_config.json", folder)
    whole = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    whole["added_tokens"] = [{"id": int(at)} | each for at, each in added.items()]
    whole["model"]["vocab"] = words
    _json(folder / "tokenizer.json", whole)


def _json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="must not exist")
    parser.add_argument("--model", choices=["0.6B", "1.7B", "aligner"], default="0.6B")
    parser.add_argument("--layout", choices=["original", "hf"], default="original")
    parser.add_argument("--shrink", action="store_true", help="two narrow layers instead of the published ones")
    parser.add_argument("--shard", default=SHARD, help="most bytes of a file, as 500MB")
    args = parser.parse_args()
    write(args.folder, args.model, args.layout, shrink=args.shrink, shard=args.shard)


if __name__ == "__main__":
    main()
