"""Small Qwen3-ForcedAligner models for tests, and what the library itself says of audio and text: the reference."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3ASRConfig, Qwen3ASRForTokenClassification, Qwen3ASRProcessor
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor

from asr import languages
from asr.engines.aligner import AlignRequest
from asr.engines.qwen.model.loader import LoadedAligner
from asr.samples import Wideband
from lab.engine.qwen_models import TINY, random_model, tokenizer
from tools.reference import checkpoints

CLASSES = 512
"""Of 80 ms: 41 s."""
TEMPLATE = (
    "{%- for message in messages -%}{%- for part in message.content -%}"
    "{%- if part.type == 'audio' -%}{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}"
    "{%- else -%}{{- part.text + '<timestamp><timestamp>' -}}{%- endif -%}"
    "{%- endfor -%}{%- endfor -%}"
)
PARTS = ("merges.txt", "processor_config.json", "tokenizer_config.json", "tokenizer.json", "vocab.json")


def random_aligner(seed: int = 0, *, window: int = 800) -> Any:
    """The published structure: that of the recogniser of `qwen_models`, with a head that says a class."""
    recogniser = random_model(seed, window=window)
    told = recogniser.config.to_dict()
    config = Qwen3ASRConfig(
        audio_config=told["audio_config"], text_config=told["text_config"], audio_token_id=told["audio_token_id"],
        timestamp_token_id=tokenizer().convert_tokens_to_ids("<timestamp>"), num_labels=CLASSES,
    )  # fmt: skip
    model: Any = Qwen3ASRForTokenClassification(config)
    model.model.load_state_dict(recogniser.model.state_dict())
    torch.nn.init.normal_(model.score.weight, std=0.5)
    return model.eval()


def loaded(model: Any) -> LoadedAligner:
    return LoadedAligner(model, tokenizer(), Qwen3ASRFeatureExtractor(), 80.0)


def save(model: Any, folder: Path) -> Path:
    """In the library's layout."""
    model.save_pretrained(folder)
    for part in PARTS:
        shutil.copy(TINY / part, folder)
    return folder


def save_original(model: Any, folder: Path) -> Path:
    """In the layout of the official package."""
    checkpoints.write(model, TINY, folder)
    return folder


@torch.inference_mode()
def library(model: Any, spoken: AlignRequest) -> tuple[list[dict[str, Any]], torch.Tensor]:
    """What the library's own processor and model say of it alone: in a batch its mel frames depend on the longest.
    Times by words, and probabilities of the classes at each time."""
    processor: Any = Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer(), chat_template=TEMPLATE)
    inputs, words = processor.prepare_forced_aligner_inputs(
        audio=Wideband(spoken.format).feed(spoken.audio),
        transcript=spoken.text,
        language=languages.name(spoken.language),
    )
    logits = model(**inputs).logits
    stamp = model.config.timestamp_token_id
    (times,) = processor.decode_forced_alignment(logits, inputs["input_ids"], words, stamp)
    return times, logits[inputs["input_ids"] == stamp].softmax(dim=-1)
