"""What a log line or a printed configuration shows: no secret, and nothing that looks like another line."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from config import ConfigError, mask_credentials, secrets_of
from config.load import describe, load, parse
from config.log.console import ConsoleRenderer
from config.log.text import coloured, printable, printable_json
from sip.protocol import trace

ESCAPES = "\x1b[31m\x07\x9b2J\u202e"

DUMP = (
    "pjsua_core.c  .RX 412 bytes Request msg INVITE/cseq=1 (rdata0x55) from UDP 192.0.2.1:5060:\n"
    "INVITE sip:a SIP/2.0\r\n{}\r\n\r\n{}\n--end msg--"
)


def test_a_printed_message_is_taken_apart() -> None:
    seen = trace.parse(DUMP.format("Call-ID: abc\r\nVia: x", "v=0"))
    assert seen == {
        "direction": "<",
        "transport": "UDP",
        "peer": "192.0.2.1:5060",
        "bytes": 412,
        "external_id": "abc",
        "message": "INVITE sip:a SIP/2.0\r\nCall-ID: abc\r\nVia: x\r\n\r\nv=0",
    }
    cut = DUMP.replace("RX", "TX").replace(" from ", " to ").replace("\n--end msg--", "")
    sent = trace.parse(cut.format("i: q", ""))
    assert sent is not None and (sent["direction"], sent["external_id"]) == (">", "q")
    assert trace.parse("tsx0x55  ..Transaction created") is None


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Authorization: Digest username=a,\r\n\tresponse=HIDDEN", ""),
        ("proxy-authorization :Digest response=HIDDEN", ""),
        ("From: <sip:bob:HIDDEN@example.com>", ""),
        ("Content-Type: application/sdp", "v=0\r\na=crypto:2 AES_CM_128_HMAC_SHA1_32 inline:HIDDEN|2^20\r\n"),
        ("Content-Type: application/sdp", "v=0\r\nk=base64:HIDDEN\r\na=ice-pwd:HIDDEN\r\na=key-mgmt:mikey HIDDEN\r\n"),
        ("Content-Type: application/dtmf-relay", "Signal=HIDDEN\r\nDuration=160\r\n"),
        ("c: application/dtmf", "HIDDEN"),
        ("Content-Type: application/vnd.nortelnetworks.digits", "p=Digit-Collection\r\ny=HIDDEN\r\n"),
        ("Content-Type: multipart/mixed", "--b\r\nContent-Type: application/dtmf-relay\r\n\r\nSignal= HIDDEN\r\n--b--"),
    ],
)
def test_nothing_hidden_is_traced(headers: str, body: str) -> None:
    seen = trace.parse(DUMP.format(headers, body))
    assert seen is not None and "HIDDEN" not in seen["message"] and "***" in seen["message"]


def test_what_looks_like_a_credential_is_masked_wherever_it_comes_from() -> None:
    for text in (
        "https://user:HIDDEN@host/path",
        "wss://HIDDEN@host",
        "sip:alice:HIDDEN@pbx;transport=tcp",
        "GET /v1/events?call=*&key=HIDDEN HTTP/1.1",
        "Authorization: Bearer HIDDEN-12345",
        "{'authorization': 'Basic HIDDEN=='}",
        "Sec-WebSocket-Protocol: bearer, HIDDEN-key-1",
    ):
        assert "HIDDEN" not in mask_credentials(text), text
    for text in ("sip:alice@pbx:5060", "https://host/a@b", "a bearer of news, that is", "key=value", "12:30 a@b"):
        assert mask_credentials(text) == text


HIDDEN = "s3cr3t-value"

FULL: dict[str, Any] = {
    "auth": {"api_keys": [{"name": "ui", "key": HIDDEN + "-a", "scopes": ["events"]}]},
    "twilio": {
        "auth_token": HIDDEN,
        "auth_token_next": HIDDEN + "2",
        "public_url": f"https://u:{HIDDEN}@h",
        "stream_url": "wss://h",
    },
    "sip": {"accounts": [{"registrar": "sip:pbx", "user": "u", "password": HIDDEN + "p"}]},
}


def test_a_printed_configuration_masks_secrets_and_urls() -> None:
    settings = parse(FULL)
    assert sorted(secrets_of(settings)) == sorted([HIDDEN, HIDDEN + "2", HIDDEN + "-a", HIDDEN + "p"])
    assert HIDDEN not in describe(settings) and "***@h" in describe(settings)


paths = st.sampled_from(
    [
        ("auth",),
        ("auth", "api_keys"),
        ("auth", "api_keys", 0),
        ("auth", "api_keys", 0, "key"),
        ("twilio",),
        ("twilio", "auth_token"),
        ("twilio", "public_url"),
        ("twilio", "stream_url"),
        ("sip",),
        ("sip", "accounts"),
        ("sip", "accounts", 0),
        ("sip", "accounts", 0, "password"),
        ("sip", "accounts", 0, "registrar"),
    ]
)

wrong = st.sampled_from(
    [
        HIDDEN,
        [HIDDEN],
        [[HIDDEN]],
        {"key": HIDDEN},
        [{"key": HIDDEN, "name": "x y", "scopes": ["events"]}],
        {"password": HIDDEN, "registrar": 5},
        f"ftp://u:{HIDDEN}@h",
        f"sip:u:{HIDDEN}@h",
        [HIDDEN, 3],
        {"auth_token": [HIDDEN]},
    ]
)


@given(paths, wrong)
@example(("auth", "api_keys"), f'[{{key = "{HIDDEN}"')
def test_no_mistake_in_the_configuration_prints_a_secret(path: tuple[str | int, ...], value: Any) -> None:
    # A URL shows, but for its credentials: what else somebody puts there cannot be known for a secret.
    assume(path[-1] not in ("public_url", "stream_url", "registrar") or "@" in value)
    tree = json.loads(json.dumps(FULL))
    node: Any = tree
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    try:
        assert HIDDEN not in describe(parse(tree))
    except ConfigError as error:
        assert HIDDEN not in str(error)


@pytest.mark.parametrize("name", ["AUTH__API_KEYS", "SIP__ACCOUNTS", "TWILIO__AUTH_TOKEN", "TWILIO", "AUTH"])
def test_no_mistake_in_the_environment_prints_a_secret(name: str) -> None:
    for text in (f'[{{name = "a", key = "{HIDDEN}"', f'[{{name = "a", key = "{HIDDEN}"}}]', f'{{x = "{HIDDEN}"}}'):
        try:
            assert HIDDEN not in describe(load(environ={f"MEDIAWORKER_{name}": text}))
        except ConfigError as error:
            assert HIDDEN not in str(error)


def test_libraries_stay_below_their_handshakes() -> None:
    """At their debug level they print requests with all headers, in pieces that no pattern finds."""
    from mediaworker.ops import logs

    assert logs.LIBRARIES == logging.WARNING


@given(st.text())
@example(ESCAPES)
@example("\ud800\r\n\u2028 é 日本")
def test_what_is_escaped_can_be_printed_and_reads_the_same(text: str) -> None:
    assert printable(text).isprintable()
    assert text.isprintable() == (printable(text) == text)
    escaped = printable_json(json.dumps(text, ensure_ascii=False))
    assert escaped.isprintable() and json.loads(escaped) == text


values = st.text() | st.lists(st.text()) | st.builds(ValueError, st.text())


@given(st.dictionaries(st.text(), values, max_size=3), st.text())
@example({"file": f"voicemail{ESCAPES}.wav", "message": "a\nb", "exception": "Traceback\n2026-01-01 [info] x"}, "x\ny")
@example({"stack": [], "exc_info": ["0"], "exception": ValueError("\n")}, "")
def test_no_field_of_a_console_line_can_look_like_another_line(fields: dict[str, Any], event: str) -> None:
    line = ConsoleRenderer()(None, "info", {**fields, "event": event, "level": "info"})
    first, *blocks = line.split("\n")
    assert first.isprintable()
    assert all(block.startswith("    | ") and block.isprintable() for block in blocks)


def test_texts_of_several_lines_are_set_below_their_line_in_order() -> None:
    fields = {"exception": "Traceback\n  ValueError", "message": "INVITE\r\nVia", "stack": "here", "call_id": "c1"}
    line = ConsoleRenderer()(None, "info", {**fields, "event": "said", "level": "info"})
    first, *blocks = line.split("\n")
    assert "said" in first and "c1" in first and "Traceback" not in first
    assert blocks == ["    | INVITE", "    | Via", "    | here", "    | Traceback", "    |   ValueError"]


def test_numbers_stay_numbers_and_odd_texts_are_quoted() -> None:
    line = ConsoleRenderer()(None, "info", {"event": "a\tb", "level": "info", "count": 3, "name": "x\ny", "plain": "z"})
    assert "a\\tb" in line and "3" in line and repr("x\ny") in line and "z" in line and "'z'" not in line


@pytest.mark.parametrize(
    ("environ", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_whose_user_wants_them(
    environ: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    first, second = os.openpty()
    with os.fdopen(second, "w") as terminal, os.fdopen(first):
        assert coloured(terminal) is colours
        monkeypatch.setattr(sys, "stderr", terminal)
        line = ConsoleRenderer()(None, "info", {"event": "ready", "level": "info", "port": 80})
        assert ("\x1b[" in line) is colours
    with open(os.devnull, "w") as file:
        assert not coloured(file)
