"""Moonshine for English and Whisper for the rest, as an engine that can be chosen; see `asr.engines.plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr.engines.moonshine import plugin as moonshine
from asr.engines.whisper import plugin as whisper
from config.settings import Asr, Qwen

if TYPE_CHECKING:
    from asr.engines.interface import Engine

languages = whisper.languages
words = False


def about(asr: Asr) -> str:
    return f"{moonshine.about(asr)}, and {whisper.about(asr)} for other languages"


def missing(asr: Asr) -> str | None:
    return moonshine.missing(asr) or whisper.missing(asr)


def partials(asr: Asr) -> tuple[str, ...]:
    return moonshine.languages


def create(asr: Asr, qwen: Qwen) -> Engine:
    from asr.engines.mixed.engine import MixedEngine
    from asr.engines.moonshine.engine import build

    threads = whisper.threads(asr)
    folder = moonshine.assets()
    assert folder is not None, "an engine that is missing is not selected"
    return MixedEngine(build(folder, threads), whisper.load_model(asr), threads, asr.languages)
