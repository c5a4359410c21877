"""The engine `openai` as one that can be chosen; see `asr.engines.plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from config.settings import Asr, Qwen

if TYPE_CHECKING:
    from asr.engines.interface import Engine

CODES = (
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fil fo fr gl gu ha haw he hi hr ht hu hy "
    "id is it ja jv ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa "
    "sd si sk sl sn so sq sr su sv sw ta te tg th tk tr tt uk ur uz vi yi yo yue zh"
)
"""The languages of Whisper and of Qwen3-ASR together: a server does not say which languages its model knows."""
languages = tuple(CODES.split())
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
