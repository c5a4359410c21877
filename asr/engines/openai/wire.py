"""Requests to a transcription server and what its answers mean. No I/O.

The route is OpenAI's `POST /v1/audio/transcriptions`. For Qwen3-ASR at vLLM it is `POST /v1/chat/completions`, which
alone takes a priority (lower goes first, with vLLM's `--scheduling-policy priority`).
"""

from __future__ import annotations

import base64
import io
import json
import wave
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from asr import languages, text
from asr.samples import RATE_HZ, decode
from asr.scheduling.request import Lane
from asr.utterance import Format, Utterance

PRIORITY = {
    Lane.FINAL: 0, Lane.SPECULATIVE: 1, Lane.FIRST_PARTIAL: 2, Lane.PARTIAL: 3, Lane.WORDS: 3, Lane.BATCH: 10,
}  # fmt: skip
MAX_REASON = 200
"""Characters of a server's error that are passed on."""
RETRY_MIN_S, RETRY_MAX_S = 0.1, 30.0


@dataclass(frozen=True, slots=True)
class Recognised:
    """The text that the server has recognised."""

    text: str
    language: str
    """ISO 639 code, or empty: most servers do not name it."""


@dataclass(frozen=True, slots=True)
class ServerBusy:
    """The server has too much to do, or is not there just now: it is asked again later."""

    reason: str
    retry_s: float | None = None
    """The seconds that the server has asked to wait; None when it has not."""
    lost: bool = False
    """The connection broke off: the server may have ended over the request, or has turned it away before it was
    read."""


@dataclass(frozen=True, slots=True)
class RequestSimplified:
    """The server does not understand all of the request: it is asked again at once, for less."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer. `again`: another attempt may have one."""

    reason: str
    again: bool


Outcome = Recognised | ServerBusy | RequestSimplified | RequestFailed


@dataclass(slots=True)
class Dialect:
    """The parts of a request that the server understands, as far as it has shown."""

    chat: bool = False
    """Chat completions of Qwen3-ASR, instead of transcriptions."""
    priority: bool = True
    """It schedules by priority."""
    forced: bool = True
    """It goes on behind the tag of a language."""
    verbose: bool = True
    """It knows the format `verbose_json`, which has the language."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request."""

    path: str
    """The path behind `asr.url`."""
    body: dict[str, Any] | None = None
    """The body to be sent as JSON; None: a form."""
    form: dict[str, str] = field(default_factory=dict)
    file: bytes = b""


def build_request(dialect: Dialect, model: str, utterance: Utterance, audio: bytes, lane: Lane) -> HttpRequest:
    """The request for an utterance's first bytes of audio."""
    file = wav(utterance.format, audio)
    if dialect.chat:
        return HttpRequest("/chat/completions", _chat(dialect, model, utterance, file, lane))
    form = {"model": model, "response_format": "verbose_json" if dialect.verbose else "json"}
    if utterance.language:
        form["language"] = utterance.language
    if utterance.context:
        form["prompt"] = utterance.context
    return HttpRequest("/audio/transcriptions", None, form, file)


def parse_response(
    dialect: Dialect, request: HttpRequest, utterance: Utterance, status: int, headers: dict[str, str], body: bytes
) -> Outcome:
    """Read an answer. `dialect` learns from it."""
    if status in (429, 503):
        return ServerBusy(f"the server is busy ({status})", _retry_after(headers))
    if status in (400, 422) and _simpler(dialect, request, body):
        return RequestSimplified()
    if status != 200:
        return RequestFailed(
            f"the server answered {status}: {_reason(body)}", again=status in (408, 409, 425) or status >= 500
        )
    try:
        answer = json.loads(body)
        content = answer["choices"][0]["message"]["content"] if request.body is not None else answer["text"]
        language = answer.get("language") or ""
        if not isinstance(content, str) or not isinstance(language, str):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError):
        return RequestFailed("the server's answer has no text", again=True)
    # A server that knows nothing of Qwen3-ASR passes the tag of its language on.
    spoken, words = text.parse_output(content.encode("utf-8", "replace").decode())
    named = languages.code(language) or languages.base(language)
    return Recognised(words, spoken or utterance.language or named)


def recognise(dialect: Dialect, route: str, model: str, status: int, body: bytes) -> str:
    """Read the answer to `GET /models`, a route that not every server has. Returns the reason why the
    server is of no use, or an empty string."""
    if status in (401, 403):
        return f"the server refuses asr.url_key ({status})"
    dialect.chat = route == "chat"
    if route != "auto":
        return ""
    try:
        found = [each.get("owned_by") for each in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""
    dialect.chat = any(owner == "vllm" for owner in found) and "qwen3-asr" in model.lower()
    return ""


def wav(format: Format, audio: bytes) -> bytes:
    """16-bit PCM at the utterance's own rate, in a RIFF file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE_HZ[format], 0, "NONE", ""))
        out.writeframes(decode(format, audio).astype("<i2", copy=False).tobytes())
    return file.getvalue()


def _chat(dialect: Dialect, model: str, utterance: Utterance, file: bytes, lane: Lane) -> dict[str, Any]:
    url = f"data:audio/wav;base64,{base64.b64encode(file).decode()}"
    messages: list[dict[str, Any]] = []
    if utterance.context:
        messages.append({"role": "system", "content": utterance.context})
    messages.append({"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": url}}]})
    body: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0.0}
    if dialect.priority:
        body["priority"] = PRIORITY[lane]
    if dialect.forced and (name := languages.name(utterance.language)) is not None:
        # The model is made to go on behind the tag that it would begin with.
        messages.append({"role": "assistant", "content": f"language {name}{text.ASR_TAG}"})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def _simpler(dialect: Dialect, request: HttpRequest, body: bytes) -> bool:
    """True when the server can do without the part that it does not understand; later requests leave it out."""
    reason, sent = body.decode("utf-8", "replace").lower(), request.body or request.form
    if "priority" in sent and "priority" in reason:
        dialect.priority = False
    elif "continue_final_message" in sent and ("continue_final_message" in reason or "add_generation" in reason):
        dialect.forced = False
    elif sent.get("response_format") == "verbose_json" and ("response_format" in reason or "verbose_json" in reason):
        dialect.verbose = False
    else:
        return False
    return True


def _reason(body: bytes) -> str:
    """The message of an error in OpenAI's form, else the beginning of the body."""
    try:
        answer = json.loads(body)
        error = answer.get("error", answer)
        found = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        found = body.decode("utf-8", "replace")
    return " ".join(str(found or "no reason").split())[:MAX_REASON]


def _retry_after(headers: dict[str, str]) -> float | None:
    """RFC 9110 section 10.2.3: seconds, or a date, which is compared with the server's own."""
    value = headers.get("retry-after", "")
    try:
        seconds = (
            float(value)
            if value.isdecimal()
            else (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds()
        )
    except (ValueError, LookupError, TypeError, OverflowError):
        return None
    return min(max(seconds, RETRY_MIN_S), RETRY_MAX_S)
