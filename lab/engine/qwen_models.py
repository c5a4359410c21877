"""Small Qwen3-ASR models for tests, and what the library itself makes of audio: the reference for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, Qwen3ASRConfig, Qwen3ASRForConditionalGeneration
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor

from asr.engines.qwen.model.loader import LoadedModel, load
from asr.engines.qwen.model.prompt import AUDIO_PAD, END_OF_TEXT, IM_END, Prompt, Prompts
from audio.codecs.g711 import ulaw_decode, ulaw_encode
from audio.resample import Upsampler
from lab.worker.peers import TINY

torch.set_num_threads(1)


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY, local_files_only=True)


def ends() -> tuple[int, ...]:
    return tuple(tokenizer().convert_tokens_to_ids(token) for token in (IM_END, END_OF_TEXT))


def random_model(seed: int = 0, *, window: int = 800) -> Any:
    """The published structure with weights that mean nothing, and are large enough for an error to show."""
    ids = tokenizer().convert_tokens_to_ids
    torch.manual_seed(seed)
    model = Qwen3ASRForConditionalGeneration(
        Qwen3ASRConfig(
            audio_config={
                "model_type": "qwen3_asr_encoder", "num_mel_bins": 128, "encoder_layers": 2,
                "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "d_model": 64, "n_window": 50,
                "n_window_infer": window, "output_dim": 48,
                "downsample_hidden_size": 8,
            },
            text_config={
                "model_type": "qwen3", "vocab_size": len(tokenizer()), "hidden_size": 48, "intermediate_size": 96,
                "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
            audio_token_id=ids(AUDIO_PAD), pad_token_id=ids(END_OF_TEXT), eos_token_id=list(ends()),
        )
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        if "self_attn" in name:
            # Weak attention looks at everything alike, and would not notice a window that is missing.
            parameter.data.mul_(3)
    return model.eval()


@cache
def reference() -> Any:
    """A random model that no engine takes over, to hold others against."""
    return random_model()


def loaded(model: Any) -> LoadedModel:
    return LoadedModel(model, tokenizer(), Qwen3ASRFeatureExtractor(), ends())


TIE = 3e-4
"""Of logits: two tokens as near to each other fall either way, with the order in which a processor adds."""


def _inputs(model: Any, codes: bytes, prompt: Prompt, said: Sequence[int] = ()) -> dict[str, Any]:
    """What the library makes of the whole of the audio at once, and of an answer that has been begun."""
    samples = Upsampler().feed(ulaw_decode(codes))
    features = Qwen3ASRFeatureExtractor()(
        [samples], sampling_rate=16000, padding="longest", return_tensors="pt", return_attention_mask=True
    )
    mel, mask = features["input_features"].to(model.dtype), features["attention_mask"]
    count = len(model.model.get_audio_features(mel, mask, return_dict=True).pooler_output)
    ids = torch.tensor([[*prompt.head, *[_pad()] * count, *prompt.tail, *said]])
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": mel, "input_features_mask": mask,
    }  # fmt: skip


def _pad() -> int:
    return int(tokenizer().convert_tokens_to_ids(AUDIO_PAD))


@torch.inference_mode()
def generate(model: Any, codes: bytes, prompt: Prompt, limit: int) -> list[int]:
    """Tokens of the library's own greedy `generate()` on the whole of the audio at once, without the end."""
    inputs = _inputs(model, codes, prompt)
    out = model.generate(
        **inputs, max_new_tokens=limit, do_sample=False, eos_token_id=list(ends()), pad_token_id=ends()[1],
        suppress_tokens=[_pad()],
    )[0, inputs["input_ids"].shape[1] :].tolist()  # fmt: skip
    stops = [out.index(end) for end in ends() if end in out]
    tokens: list[int] = out[: min(stops)] if stops else out
    return tokens


@torch.inference_mode()
def check_said(tokens: Sequence[int], model: Any, codes: bytes, prompt: Prompt, limit: int) -> None:
    """Assert that these are the tokens of `generate()`: the library's model says of each that it is the most likely one
    after those before it, or ties with that. One forward shows it for all of them, in a fourth of the time."""
    assert len(tokens) <= limit
    logits = model(**_inputs(model, codes, prompt, tokens)).logits[0, -len(tokens) - 1 :]
    logits[:, _pad()] = -torch.inf
    most, stop = logits.amax(dim=1), logits[:, list(ends())].amax(dim=1)
    for at, token in enumerate(tokens):
        assert token not in ends() and most[at] - logits[at, token] < TIE, f"{list(tokens)}: token {at} is another"
    assert len(tokens) == limit or most[-1] - stop[-1] < TIE, f"{list(tokens)} is not the end"


@cache
def loaded_tiny() -> LoadedModel:
    """The tiny model as the library has it, for reference."""
    return load(TINY)


def prompts(model: LoadedModel) -> Prompts:
    return Prompts(model.tokenizer, ends=model.ends)


def noise(seconds: float, seed: int) -> bytes:
    """µ-law that grows louder in syllables, so that the loudest moment keeps moving."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * 8000)) / 8000
    envelope = (0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)) ** 2 * (0.01 + 0.1 * (time / max(time[-1], 1e-3)) ** 2)
    sound: NDArray[np.float64] = rng.standard_normal(len(time)) * envelope * 20000
    return bytes(ulaw_encode(sound.astype(np.int16)))
