"""Checks the fields of a transcription request, as OpenAI's clients send them, and turns them into options. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from asr import languages
from config import Endpointing
from mediaworker.files.messages import Channels
from mediaworker.files.options import Options
from mediaworker.http.problem import Problem, described
from mediaworker.transcripts.file import FORMATS, Format

MAX_PROMPT_CHARS = 8000
GRANULARITIES = ("word", "segment")
TIMED: tuple[Format, ...] = ("srt", "vtt")
STREAMED: tuple[Format, ...] = ("json", "text", "diarized_json")
Fields = Mapping[str, Sequence[str]]


ALIASES = (
    "whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-4o-transcribe-diarize",
)  # fmt: skip
"""OpenAI's names (`AudioModel` of its SDK), which stand for the worker's model: clients have them as defaults."""
FAMILY = re.compile(r"whisper-[\w.-]+|gpt-([\w.]+-)*transcribe(-[\w.]+)*")
"""The pattern of OpenAI's names for models that transcribe, so that future names are accepted as well."""


@dataclass(frozen=True, slots=True)
class TranscriptionForm:
    format: Format
    granularities: tuple[str, ...]
    stream: bool
    options: Options


@dataclass(frozen=True, slots=True)
class Can:
    """The capabilities of this worker that a request is checked against."""

    models: Collection[str]
    languages: Collection[str]
    words: bool
    endpointing: Endpointing


def parse(fields: Fields, can: Can) -> TranscriptionForm:
    """Raises Problem 400, 404."""
    model = _one(fields, "model")
    if model and not is_model(model, can.models):
        raise no_model(model, can.models)
    format = _choice(fields, "response_format", FORMATS, "json")
    granularities = tuple(_many(fields, "timestamp_granularities"))
    if unknown := [each for each in granularities if each not in GRANULARITIES]:
        raise _bad("timestamp_granularities", f"must be one of {', '.join(GRANULARITIES)}, not {unknown[0]!r}")
    # Clients send `segment`, the default, with any format, so only `word` is checked.
    if "word" in granularities and format != "verbose_json":
        raise _bad("timestamp_granularities", "words can only be combined with response_format=verbose_json")
    if "word" in granularities and not can.words:
        raise _bad("timestamp_granularities", "this worker does not time words (see asr.word_timestamps)")
    if "logprobs" in _many(fields, "include"):
        raise _bad("include", "log probabilities are not available")
    if _many(fields, "known_speaker_references"):
        raise _bad("known_speaker_references", "not supported, since speakers are told apart by channel, not by voice")
    _number(fields, "temperature", 0.0, 1.0)  # checked and ignored: decoding is greedy
    stream = _boolean(fields, "stream")
    if stream and format not in STREAMED:
        if not model.startswith("whisper-"):
            raise _bad("stream", f"cannot be combined with response_format={format}")
        stream = False  # OpenAI ignores it with its Whisper models
    channels: Channels = "split" if format == "diarized_json" else "mix"
    options = Options(
        language=_language(fields, can),
        prompt=_prompt(fields),
        channels=_choice(fields, "channels", ("mix", "split"), channels),
        speakers=_many(fields, "known_speaker_names"),
        words=can.words and ("word" in granularities or format in TIMED),
        condition_on_previous_text=_boolean(fields, "condition_on_previous_text"),
        endpointing=_endpointing(fields, can.endpointing),
    )
    return TranscriptionForm(format, granularities or ("segment",), stream, options)


def is_model(name: str, models: Collection[str]) -> bool:
    """Return whether a request may name this model."""
    return name in models or FAMILY.fullmatch(name) is not None


def no_model(name: str, models: Collection[str]) -> Problem:
    known = ", ".join(sorted(models))
    reason = f"the model `{name}` does not exist here; available are {known}"
    return Problem(404, reason, field="model", code="model_not_found")


def _language(fields: Fields, can: Can) -> str:
    """Return the requested language. Empty: the engine detects it, also when the request allows several."""
    name, asked = "language", [_one(fields, "language")]
    if not languages.requested(asked[0]):
        name, asked = "languages", [each for each in _many(fields, "languages") if languages.requested(each)]
    wanted = [languages.requested(each) for each in asked]
    if wanted and not set(wanted) & set(can.languages):
        unknown = ", ".join(map(repr, asked))
        raise _bad(name, f"the engine does not know {unknown}; it knows {', '.join(sorted(can.languages))}")
    return wanted[0] if len(wanted) == 1 else ""


def _prompt(fields: Fields) -> str:
    prompt, keywords = _one(fields, "prompt"), ", ".join(_many(fields, "keywords"))
    if len(prompt) > MAX_PROMPT_CHARS:
        raise _bad("prompt", f"must be at most {MAX_PROMPT_CHARS} characters long")
    if len(both := " ".join(filter(None, (prompt, keywords)))) > MAX_PROMPT_CHARS:
        raise _bad("keywords", f"must be at most {MAX_PROMPT_CHARS} characters long, together with prompt")
    return both


def _endpointing(fields: Fields, own: Endpointing) -> Endpointing | None:
    """Return the settings of `chunking_strategy`: `server_vad` as JSON or as fields with brackets; None for `auto`."""
    strategy: dict[str, Any] = {}
    for name, values in fields.items():
        if found := re.fullmatch(r"chunking_strategy\[(\w+)\]", name):
            strategy[found[1]] = values[-1]
    text = _one(fields, "chunking_strategy")
    if text.startswith("{"):
        try:
            strategy = msgspec.json.decode(text, type=dict[str, Any])
        except (ValueError, RecursionError):
            raise _bad("chunking_strategy", "must be auto or a JSON object of type server_vad") from None
    elif text not in ("", "auto"):
        raise _bad("chunking_strategy", "must be auto or an object of type server_vad")
    if not strategy:
        return None
    if strategy.get("type") != "server_vad":
        raise _bad("chunking_strategy", "must be auto or an object of type server_vad")
    names = {"threshold": "enter", "silence_duration_ms": "min_silence_ms", "prefix_padding_ms": "pre_roll_ms"}
    wanted = {names[name]: value for name, value in strategy.items() if name in names and value is not None}
    if "enter" in wanted:
        wanted["exit"] = min(own.exit, _float(wanted["enter"]))
    known = {name: getattr(own, name) for name in Endpointing.__struct_fields__}
    try:
        return msgspec.convert(known | wanted, Endpointing, strict=False)
    except msgspec.ValidationError as error:
        raise _bad("chunking_strategy", described(error, {own: name for name, own in names.items()})) from None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _bad("chunking_strategy", "threshold must be a number") from None


def _one(fields: Fields, name: str) -> str:
    values = fields.get(name)
    return values[-1] if values else ""


def _many(fields: Fields, name: str) -> list[str]:
    """Return the values of a list, which clients send as repeated fields `name[]` or `name`."""
    return [*fields.get(f"{name}[]", ()), *fields.get(name, ())]


def _choice(fields: Fields, name: str, choices: tuple[Any, ...], default: Any) -> Any:
    value = _one(fields, name) or default
    if value not in choices:
        raise _bad(name, f"must be one of {', '.join(choices)}, not {value!r}")
    return value


def _boolean(fields: Fields, name: str) -> bool:
    value = _one(fields, name).lower()
    if value not in ("", "true", "false", "1", "0"):
        raise _bad(name, "must be true or false")
    return value in ("true", "1")


def _number(fields: Fields, name: str, low: float, high: float) -> None:
    text = _one(fields, name)
    try:
        fits = not text or low <= float(text) <= high
    except ValueError:
        fits = False
    if not fits:
        raise _bad(name, f"must be a number from {low:g} to {high:g}")


def _bad(param: str, reason: str) -> Problem:
    return Problem(400, f"{param}: {reason}", field=param, code="invalid_value")
