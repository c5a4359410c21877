"""Recognises a finished utterance in this process, for benchmarks and tests.

Engine, scheduler and clean-up are those of the inference process, so the text is what a live call's final must equal.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from msgspec.structs import replace

from asr import messages
from asr.engines.plugin import find
from asr.engines.selection import select
from asr.inference.inference import Inference
from asr.utterance import Format, Hypothesis, Utterance
from config.settings import Asr, Qwen, Settings

_ids = count()


def transcribe(settings: Settings, format: Format, audio: bytes, *, language: str = "", context: str = "") -> str:
    """The text of `audio` taken as one utterance. Raises RuntimeError when the engine fails on it."""
    return recognize(settings, Utterance(f"offline-{next(_ids)}", format, language, context, live=False), audio).text


def recognize(settings: Settings, utterance: Utterance, audio: bytes) -> Hypothesis:
    """The final hypothesis. Raises RuntimeError when the engine fails on it."""
    inference = _inference(select(settings.asr).engine, settings.asr, settings.qwen)
    inference.receive(messages.Open(utterance), 0.0)
    inference.receive(messages.Append(utterance.id, 0, audio), 0.0)
    inference.receive(messages.FinalRequest(utterance.id, 1, len(audio), commit=True), 0.0)
    while (work := inference.choose()) is not None:
        for message in inference.perform(work):
            if isinstance(message, messages.Heard) and message.hypothesis.utterance_id == utterance.id:
                if message.hypothesis.error is not None:
                    raise RuntimeError(message.hypothesis.error)
                return message.hypothesis
    raise RuntimeError(f"{utterance.id}: no answer")


@lru_cache(maxsize=1)
def _inference(engine: str, asr: Asr, qwen: Qwen) -> Inference:
    return Inference(find(engine).create(replace(asr, threads=1), qwen))
