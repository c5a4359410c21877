"""The engine `openai` as one that can be chosen; see `asr.engines.plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr.engines.whisper import plugin as whisper
from asr.languages import QWEN3_ASR
from config.settings import Asr, Qwen

if TYPE_CHECKING:
    from asr.engines.interface import Engine

languages = tuple(sorted({*whisper.languages, *QWEN3_ASR}))
"""The languages of Whisper and of Qwen3-ASR together: a server does not say which languages its model knows."""
words = False


def about(asr: Asr) -> str:
    return f"{asr.model} at {asr.url}"


def missing(asr: Asr) -> str | None:
    return None if asr.url else "asr.url is empty: it names the server, as in https://asr.example.com/v1"


def partials(asr: Asr) -> tuple[str, ...]:
    return languages if asr.url_partials else ()


def create(asr: Asr, qwen: Qwen) -> Engine:
    from asr.engines.openai.client import TranscriptionClient
    from asr.engines.openai.engine import RemoteEngine

    return RemoteEngine(
        TranscriptionClient(asr), parallel=asr.url_parallel, timeout_s=asr.url_timeout_s, partials=asr.url_partials
    )
