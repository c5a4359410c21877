"""Requests to a transcription server, and what its answers mean."""

from __future__ import annotations

import base64
import io
import json
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.engines.openai import wire
from asr.engines.openai.wire import Dialect, Recognised, RequestFailed, RequestSimplified, ServerBusy
from asr.samples import decode
from asr.scheduling.request import Lane
from asr.utterance import Format, Utterance
from config import ConfigError
from config.load import parse

PLAIN = Utterance("u", "PCMU")
GERMAN = Utterance("u", "PCMA", language="de", context="Grüße, Frau Weiß")


@pytest.mark.parametrize(("format", "rate"), [("PCMU", 8000), ("PCMA", 8000), ("L16", 16000)])
def test_audio_is_a_wav_file_of_its_own_rate(format: Format, rate: int) -> None:
    audio = np.random.default_rng(1).bytes(3200)
    with wave.open(io.BytesIO(wire.wav(format, audio))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert np.array_equal(samples, decode(format, audio))
    assert len(wire.wav(format, b"")) == 44


def test_a_transcription_says_what_is_known_of_the_utterance() -> None:
    asked = wire.build_request(Dialect(), "whisper-1", GERMAN, b"\x55" * 80, Lane.FINAL)
    assert asked.path == "/audio/transcriptions" and asked.body is None and asked.file == wire.wav("PCMA", b"\x55" * 80)
    assert asked.form == {
        "model": "whisper-1", "response_format": "verbose_json", "language": "de", "prompt": "Grüße, Frau Weiß",
    }  # fmt: skip
    assert wire.build_request(Dialect(verbose=False), "m", PLAIN, b"", Lane.FINAL).form == {
        "model": "m", "response_format": "json",
    }  # fmt: skip


def test_a_chat_has_priority_context_and_language() -> None:
    asked = wire.build_request(Dialect(chat=True), "Qwen/Qwen3-ASR-1.7B", GERMAN, b"\x55" * 80, Lane.PARTIAL)
    assert asked.path == "/chat/completions" and asked.body is not None
    system, user, assistant = asked.body["messages"]
    assert (system["content"], assistant["content"]) == ("Grüße, Frau Weiß", "language German<asr_text>")
    head, _, data = user["content"][0]["audio_url"]["url"].partition(",")
    assert head == "data:audio/wav;base64" and base64.b64decode(data) == wire.wav("PCMA", b"\x55" * 80)
    assert asked.body["continue_final_message"] is True and asked.body["add_generation_prompt"] is False
    priorities = [
        wire.build_request(Dialect(chat=True), "m", PLAIN, b"", lane).body["priority"]  # type: ignore[index]
        for lane in (Lane.FINAL, Lane.SPECULATIVE, Lane.FIRST_PARTIAL, Lane.PARTIAL, Lane.BATCH)
    ]
    assert priorities == sorted(set(priorities)), "lower goes first"
    simple = wire.build_request(Dialect(chat=True, priority=False, forced=False), "m", GERMAN, b"", Lane.FINAL)
    assert set(simple.body or {}) == {"model", "messages", "temperature"} and len((simple.body or {})["messages"]) == 2


def read(status: int, answer: object, utterance: Utterance = PLAIN, *, chat: bool = False, **headers: str) -> object:
    dialect = Dialect(chat=chat)
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    asked = wire.build_request(dialect, "m", utterance, b"", Lane.FINAL)
    return wire.parse_response(
        dialect, asked, utterance, status, {key.replace("_", "-"): v for key, v in headers.items()}, body
    )


def message(content: object) -> dict[str, object]:
    return {"choices": [{"message": {"content": content}}]}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (read(200, {"text": " Hello. "}), Recognised("Hello.", "")),
        (read(200, {"text": "Hello.", "language": "english"}), Recognised("Hello.", "en")),
        (read(200, {"text": "Hello.", "language": "pt-BR"}), Recognised("Hello.", "pt")),
        (read(200, {"text": "Hello.", "language": None}), Recognised("Hello.", "")),
        (read(200, b'{"text": "Hello \\ud800."}'), Recognised("Hello ?.", "")),
        (read(200, {"text": "Hallo.", "language": "dutch"}, GERMAN), Recognised("Hallo.", "de")),
        (read(200, {"text": "language English<asr_text>Hello."}), Recognised("Hello.", "en")),
        (read(200, message("language German<asr_text>Hallo."), chat=True), Recognised("Hallo.", "de")),
        (read(200, message("Hallo."), GERMAN, chat=True), Recognised("Hallo.", "de")),
        (read(200, message(None), chat=True), RequestFailed("the server's answer has no text", True)),
        (read(200, {"txt": "Hello."}), RequestFailed("the server's answer has no text", True)),
        (read(200, b"<html>"), RequestFailed("the server's answer has no text", True)),
        (read(200, [1]), RequestFailed("the server's answer has no text", True)),
        (read(429, b"", retry_after="3"), ServerBusy("the server is busy (429)", 3.0)),
        (read(503, b"", retry_after="999"), ServerBusy("the server is busy (503)", 30.0)),
        (read(503, b"", retry_after="soon"), ServerBusy("the server is busy (503)", None)),
        (
            read(
                503,
                b"",
                retry_after="Sun, 22 Nov 2026 10:00:07 GMT",
                date="Sun, 22 Nov 2026 10:00:00 GMT",
            ),
            ServerBusy("the server is busy (503)", 7.0),
        ),
        (read(503, b"", retry_after="Sun, 22 Nov 2026 10:00:07 GMT"), ServerBusy("the server is busy (503)", None)),
        (
            read(500, {"error": {"message": "out of memory"}}),
            RequestFailed("the server answered 500: out of memory", True),
        ),
        (read(404, {"detail": "Not Found"}), RequestFailed("the server answered 404: Not Found", False)),
        (read(401, {"error": "a key is needed"}), RequestFailed("the server answered 401: a key is needed", False)),
        (read(400, {"message": "no such model"}), RequestFailed("the server answered 400: no such model", False)),
        (read(502, b"<h1>\n Bad \x00gateway"), RequestFailed("the server answered 502: <h1> Bad \x00gateway", True)),
        (read(502, b""), RequestFailed("the server answered 502: no reason", True)),
        (read(301, b""), RequestFailed("the server answered 301: no reason", False)),
    ],
)
def test_what_an_answer_means(outcome: object, expected: object) -> None:
    assert outcome == expected


def test_what_a_server_does_not_understand_is_not_asked_of_it_again() -> None:
    dialect = Dialect(chat=True)
    asked = wire.build_request(dialect, "m", GERMAN, b"", Lane.PARTIAL)
    no_priority = b'{"error": {"message": "Got priority 3 but Priority scheduling is not enabled."}}'
    assert (
        wire.parse_response(dialect, asked, GERMAN, 400, {}, no_priority) == RequestSimplified()
        and not dialect.priority
    )
    # One that was under way at the same time has learned it too.
    assert wire.parse_response(dialect, asked, GERMAN, 400, {}, no_priority) == RequestSimplified()
    asked = wire.build_request(dialect, "m", GERMAN, b"", Lane.PARTIAL)
    unexpected = b'{"detail": "Unexpected fields in the request: {\'continue_final_message\'}"}'
    assert (
        wire.parse_response(dialect, asked, GERMAN, 422, {}, unexpected) == RequestSimplified() and not dialect.forced
    )
    asked = wire.build_request(dialect, "m", GERMAN, b"", Lane.PARTIAL)
    assert isinstance(wire.parse_response(dialect, asked, GERMAN, 422, {}, unexpected), RequestFailed), (
        "nothing is left to leave out"
    )
    plain = Dialect()
    asked = wire.build_request(plain, "m", GERMAN, b"", Lane.FINAL)
    assert wire.parse_response(plain, asked, GERMAN, 400, {}, b"verbose_json is not supported") == RequestSimplified()
    assert wire.build_request(plain, "m", PLAIN, b"", Lane.FINAL).form["response_format"] == "json"


@pytest.mark.parametrize(
    ("route", "model", "status", "body", "chat", "why"),
    [
        ("auto", "Qwen/Qwen3-ASR-1.7B", 200, {"data": [{"id": "x", "owned_by": "vllm"}]}, True, ""),
        ("auto", "openai/whisper-large-v3", 200, {"data": [{"id": "x", "owned_by": "vllm"}]}, False, ""),
        ("auto", "Qwen/Qwen3-ASR-1.7B", 200, {"data": [{"id": "x", "owned_by": "mediaworker"}]}, False, ""),
        ("auto", "Qwen/Qwen3-ASR-1.7B", 404, {}, False, ""),
        ("auto", "m", 500, [], False, ""),
        ("chat", "m", 500, [], True, ""),
        ("transcriptions", "Qwen3-ASR", 200, {"data": [{"owned_by": "vllm"}]}, False, ""),
        ("auto", "m", 401, {}, False, "the server refuses asr.url_key (401)"),
        ("auto", "m", 403, {}, False, "the server refuses asr.url_key (403)"),
    ],
)
def test_a_server_is_recognised(route: str, model: str, status: int, body: object, chat: bool, why: str) -> None:
    dialect = Dialect()
    assert wire.recognise(dialect, route, model, status, json.dumps(body).encode()) == why
    assert dialect.chat is chat


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "language", "error", "message", "choices", "content", "data"]), inner
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from([200, 400, 401, 422, 429, 500, 503]),
    st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text(max_size=30)),
    st.booleans(),
)
def test_no_answer_is_too_strange(status: int, body: bytes, headers: dict[str, str], chat: bool) -> None:
    dialect = Dialect(chat=chat)
    asked = wire.build_request(dialect, "m", GERMAN, b"", Lane.FINAL)
    outcome = wire.parse_response(dialect, asked, GERMAN, status, headers, body)
    assert isinstance(outcome, Recognised | ServerBusy | RequestSimplified | RequestFailed) and (
        status == 200
    ) >= isinstance(outcome, Recognised)
    assert isinstance(wire.recognise(Dialect(), "auto", "m", status, body), str)


@pytest.mark.parametrize(
    ("asr", "why"),
    [
        ({"engine": "openai", "url": "asr.example.com"}, "expected http:// or https://"),
        ({"engine": "openai", "url": "ftp://asr.example.com"}, "expected http:// or https://"),
        ({"engine": "openai", "url": "http://"}, "expected http:// or https://"),
        ({"engine": "openai", "url": "http://a:b@c/v1"}, "expected http:// or https://"),
        ({"engine": "openai", "url": "http://a:99999/v1"}, "expected http:// or https://"),
        ({"engine": "openai", "url": "http://a/v1?key=1"}, "expected http:// or https://"),
        ({"engine": "qwen", "url": "http://a/v1"}, "is used with asr.engine = 'openai' alone"),
        ({"engine": "openai", "url": "http://a/v1", "url_partials": True}, "must be at least 1000"),
    ],
)
def test_settings_that_cannot_work(asr: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why.replace("(", r"\(")):
        parse({"asr": asr})


def test_settings_that_can_work() -> None:
    asr = {"engine": "openai", "url": "https://asr.example.com/v1", "url_partials": True, "partial_ms": 1000}
    assert parse({"asr": asr}).asr.url_key == ""
