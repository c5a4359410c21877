"""The fields of a transcription request, as OpenAI's clients send them: checked, and turned into what is done. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from asr import languages
from config import Endpointing
from mediaworker.api.openai_errors import OpenAIError
from mediaworker.files.formats import FORMATS, Format
from mediaworker.files.messages import Channels
from mediaworker.files.options import Options

MAX_PROMPT_CHARS = 8000
GRANULARITIES = ("word", "segment")
TIMED: tuple[Format, ...] = ("srt", "vtt")
Fields = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Form:
    format: Format
    granularities: tuple[str, ...]
    stream: bool
    options: Options


@dataclass(frozen=True, slots=True)
class Can:
    """What there is here."""

    models: Collection[str]
    languages: Collection[str]
    words: bool
    endpointing: Endpointing


def parse(fields: Fields, can: Can) -> Form:
    """Raises OpenAIError 400, 404."""
    model = _one(fields, "model")
    if model and model not in can.models:
        known = ", ".join(sorted(can.models))
        raise OpenAIError(404, f"the model `{model}` is not here; there are {known}", param="model",
                          code="model_not_found")  # fmt: skip
    format = _choice(fields, "response_format", FORMATS, "json")
    granularities = tuple(_many(fields, "timestamp_granularities"))
    if unknown := [each for each in granularities if each not in GRANULARITIES]:
        raise _bad("timestamp_granularities", f"must be of {', '.join(GRANULARITIES)}, not {unknown[0]!r}")
    if granularities and format != "verbose_json":
        raise _bad("timestamp_granularities", "goes with response_format=verbose_json")
    if "word" in granularities and not can.words:
        raise _bad("timestamp_granularities", "there are no times of words here: asr.words is off")
    if "logprobs" in _many(fields, "include"):
        raise _bad("include", "there are no log probabilities here")
    if _many(fields, "known_speaker_references"):
        raise _bad("known_speaker_references", "speakers are told apart by channel, not by voice")
    _number(fields, "temperature", 0.0, 1.0)  # decoding is greedy: a repeated request has the same answer
    stream = _boolean(fields, "stream")
    if stream and format not in ("json", "text", "diarized_json"):
        raise _bad("stream", f"is not to be had with response_format={format}")
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
    return Form(format, granularities or ("segment",), stream, options)


def _language(fields: Fields, can: Can) -> str:
    name, code = "language", _one(fields, "language").strip().lower()
    if not code and len(several := _many(fields, "languages")) == 1:
        name, code = "languages", several[0].strip().lower()
    if code and languages.base(code) not in can.languages:
        raise _bad(name, f"{code!r} is none of the engine's: {', '.join(sorted(can.languages))}")
    return languages.base(code) if code else ""


def _prompt(fields: Fields) -> str:
    prompt, keywords = _one(fields, "prompt"), ", ".join(_many(fields, "keywords"))
    if len(prompt) > MAX_PROMPT_CHARS:
        raise _bad("prompt", f"is longer than {MAX_PROMPT_CHARS} characters")
    if len(both := " ".join(filter(None, (prompt, keywords)))) > MAX_PROMPT_CHARS:
        raise _bad("keywords", f"and prompt together are longer than {MAX_PROMPT_CHARS} characters")
    return both


def _endpointing(fields: Fields, own: Endpointing) -> Endpointing | None:
    """`chunking_strategy`: auto, or server_vad as JSON or as fields with brackets."""
    strategy: dict[str, Any] = {}
    for name, values in fields.items():
        if found := re.fullmatch(r"chunking_strategy\[(\w+)\]", name):
            strategy[found[1]] = values[-1]
    text = _one(fields, "chunking_strategy")
    if text.startswith("{"):
        try:
            strategy = msgspec.json.decode(text, type=dict[str, Any])
        except (ValueError, RecursionError):
            raise _bad("chunking_strategy", "is no JSON object") from None
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
        raise _bad("chunking_strategy", str(error)) from None


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _bad("chunking_strategy", "threshold must be a number") from None


def _one(fields: Fields, name: str) -> str:
    values = fields.get(name)
    return values[-1] if values else ""


def _many(fields: Fields, name: str) -> list[str]:
    """A list comes as `name[]`, or as `name`, once for each."""
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


def _bad(param: str, reason: str) -> OpenAIError:
    return OpenAIError(400, f"{param} {reason}", param=param, code="invalid_value")
