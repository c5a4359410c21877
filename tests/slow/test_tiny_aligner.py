"""The tiny forced aligner through the library's own classes, on clips whose word times are known."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoProcessor
from transformers.models.qwen3_asr import Qwen3ASRForTokenClassification

from audio.codecs.g711 import ulaw_decode
from audio.resample import Upsampler
from lab.house import ROOT

ALIGNER, RECOGNIZER = ROOT / "models" / "qwen3-aligner-tiny", ROOT / "models" / "qwen3-asr-tiny"
CLIPS = ROOT / "tests" / "data" / "aligned"
TIMES: dict[str, list[dict[str, Any]]] = json.loads((CLIPS / "words.json").read_text(encoding="utf-8"))
AUDIO = {"audio_kwargs": {"sampling_rate": 16000}}


@cache
def aligner() -> tuple[Any, Any]:
    model, info = Qwen3ASRForTokenClassification.from_pretrained(
        ALIGNER, local_files_only=True, output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval(), AutoProcessor.from_pretrained(ALIGNER, local_files_only=True)


def heard(clip: str) -> NDArray[np.float32]:
    return Upsampler().feed(ulaw_decode((CLIPS / f"{clip}.ulaw").read_bytes()))


@torch.inference_mode()
def align(samples: NDArray[np.float32], text: str) -> list[dict[str, Any]]:
    """Of each word `text`, `start_time` and `end_time` in seconds."""
    model, processor = aligner()
    inputs, words = processor.prepare_forced_aligner_inputs(samples, text, "English", processor_kwargs=AUDIO)
    logits = model(**inputs).logits
    (found,) = processor.decode_forced_alignment(logits, inputs["input_ids"], words, model.config.timestamp_token_id)
    return list(found)


def misses_ms(clip: str) -> list[float]:
    """By how much each word's worse end is wrong."""
    said = TIMES[clip]
    found = align(heard(clip), " ".join(word["word"] for word in said))
    assert [word["text"] for word in found] == [word["word"] for word in said]
    return [
        max(abs(1000 * at["start_time"] - word["begin_ms"]), abs(1000 * at["end_time"] - word["end_ms"]))
        for at, word in zip(found, said, strict=True)
    ]


def test_nine_words_in_ten_are_where_they_are_said() -> None:
    misses = {clip: misses_ms(clip) for clip in TIMES}
    every = [miss for clip in misses.values() for miss in clip]
    assert len(every) > 30
    assert np.mean(np.array(every) <= 150) >= 0.9, misses


def test_a_wrong_word_in_the_transcript_moves_no_more_than_the_one_behind_it() -> None:
    said = [word["word"] for word in TIMES["number"]]
    at = said.index("one")
    right = align(heard("number"), " ".join(said))
    wrong = align(heard("number"), " ".join([*said[:at], "six", *said[at + 1 :]]))
    moved = [abs(old["start_time"] - new["start_time"]) for old, new in zip(right, wrong, strict=True)]
    assert max([*moved[:at], *moved[at + 2 :]]) < 0.2, (right, wrong)


def test_the_template_writes_words_and_marks_behind_the_audio_and_nothing_else() -> None:
    _, processor = aligner()
    inputs, words = processor.prepare_forced_aligner_inputs(heard("yes"), "yes, no", "English", processor_kwargs=AUDIO)
    assert words == [["yes", "no"]]
    marks = "<timestamp><timestamp>"
    text = processor.tokenizer.decode(inputs["input_ids"][0])
    assert text.replace("<|audio_pad|>", "") == f"<|audio_start|><|audio_end|>yes{marks}no{marks}"


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "merges.txt", "preprocessor_config.json"])
def test_recognizer_and_aligner_share_their_tokens_and_features(name: str) -> None:
    assert (ALIGNER / name).read_bytes() == (RECOGNIZER / name).read_bytes()
