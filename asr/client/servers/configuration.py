"""What inference processes are told first, and what of it an engine is built from. Loads no engine."""

from __future__ import annotations

from asr import messages
from asr.engines import weights
from asr.engines.devices import shares
from config.settings import Settings


def configurations(engine: str, settings: Settings) -> list[messages.Configure]:
    """The first message to each process. How many there are is settled at the worker's start."""
    return [
        messages.Configure(engine, asr, settings.qwen, settings.log.level, settings.log.format)
        for asr in shares(settings.asr, engine)
    ]


def builds_from(engine: str, settings: Settings) -> tuple[object, ...]:
    """What an engine depends on that may change while the worker runs: settings, and the files of its models."""
    asr = settings.asr
    models = [model for model in (asr.model, asr.partials_model) if model] if engine == "qwen" else []
    files = tuple(map(weights.fingerprint, models))
    remote = asr.url, asr.url_key, asr.url_route, asr.url_parallel, asr.url_timeout_s, asr.url_partials
    return asr.model, asr.partials_model, asr.attention, asr.threads, remote, settings.qwen, files
