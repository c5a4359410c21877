"""What is in the log, and what never is: secrets, credentials and digits, at the loudest level, through real calls."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from config import ConfigError, mask_credentials, secrets_of
from config.console import ConsoleRenderer
from config.load import describe, load, parse
from config.printable import printable, printable_json
from sip.protocol import trace
from tests.support.peers import command, worker
from tests.support.ports import ports
from tests.support.sipp_caller import Sipp
from tests.support.speech import SPEECH

API_KEY, TWILIO_TOKEN, NEXT_TOKEN = "s3cr3t-api-key-1", 's3cr3t-"twilio\\ü', "s3cr3t-next-token"
SIP_PASSWORD, WRONG_KEY, URL_PASSWORD = "s3cr3t-sip-pass", "s3cr3t-wrong-key", "s3cr3t-in-a-url"
PIN = "8642097531"
SECRETS = (API_KEY, TWILIO_TOKEN, NEXT_TOKEN, SIP_PASSWORD, WRONG_KEY, URL_PASSWORD)

INVITE = """INVITE sip:1000@127.0.0.1:{port} SIP/2.0
Via: SIP/2.0/UDP 127.0.0.1:{local};branch=z9hG4bK{branch}
From: "Caller" <sip:4711:{password}@127.0.0.1:{local}>;tag=1
To: <sip:1000@127.0.0.1:{port}>
Call-ID: {call_id}
CSeq: 1 INVITE
Contact: <sip:4711@127.0.0.1:{local}>
Authorization: Digest username="alice", realm="x", nonce="y", uri="sip:x",
 response="s3cr3t-digest-answer"
Max-Forwards: 70
Content-Type: application/sdp
Content-Length: {length}

{body}"""
OFFER = """v=0
o=caller 1 1 IN IP4 127.0.0.1
s=-
c=IN IP4 127.0.0.1
t=0 0
m=audio 40000 RTP/AVP 0
a=rtpmap:0 PCMU/8000
a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:s3cr3t-srtp-key-WnD7c1ksDGs+dIefCEo8omPg4uO8DYIinNGL5yxQ
a=ice-pwd:s3cr3t-ice-password
"""


async def test_a_loud_log_of_real_calls_holds_no_secret_and_names_every_call(tmp_path: Path) -> None:
    registrar, http = ports(2)
    accounts = f'[{{registrar = "sip:127.0.0.1:{registrar}", user = "alice", password = "{SIP_PASSWORD}"}}]'
    keys = f'[{{name = "ops", key = "{API_KEY}", scopes = ["admin", "events"]}}]'
    sipp = Sipp(tmp_path)
    with worker(
        tmp_path,
        LOG__LEVEL="debug",
        LOG__FORMAT="json",
        LOG__SIP_TRACE="true",
        SIP__ACCOUNTS=accounts,
        SIP__LOG_LEVEL="5",
        AUTH__API_KEYS=keys,
        TWILIO__AUTH_TOKEN=TWILIO_TOKEN,
        TWILIO__AUTH_TOKEN_NEXT=NEXT_TOKEN,
        TWILIO__PUBLIC_URL=f"http://user:{URL_PASSWORD}@127.0.0.1:{http}",
        TWILIO__STREAM_URL=f"ws://127.0.0.1:{http}/twilio/stream",
        HTTP__PORT=str(http),
    ) as running:
        server = sipp.start("registrar_refusing", port=registrar, timeout_s=60)
        target = f"127.0.0.1:{running.sip_port}"
        await sipp.run("info", target, payload_type=0, rtpmap="PCMU/8000")
        invite(running.sip_port, "the-crypto-call")
        play = ("--play", str(SPEECH / "vm-goodbye.wav"))
        done = await asyncio.to_thread(command, "call", f"sip:demo@{target}", *play)
        assert done.returncode == 0, done.stderr
        url = f"ws://127.0.0.1:{http}/twilio/stream"
        for token, digits in ((TWILIO_TOKEN, PIN), (NEXT_TOKEN, "")):
            arguments = ("stream", url, *play, "--auth-token", token, "--sign-url", url, "--connect")
            done = await asyncio.to_thread(command, *arguments, *(("--dtmf", digits) if digits else ()))
            # The stream is not called by a webhook and brings no call-bound token: signed, and that is enough.
            assert done.returncode == 0, done.stderr
        await strangers(running.url)
        await asyncio.wait_for(server, 60)
    text = running.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) > 60
    for line in lines:
        assert {"event", "level", "timestamp"} <= line.keys(), line
    for secret in (*SECRETS, "s3cr3t"):
        for spelling in {secret, json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode().rstrip("=")}:
            assert spelling not in text, f"{spelling} is in the log"
    assert PIN not in text and 'response=\\"' not in text
    # The trace is there all the same, both ways.
    traced = [line for line in lines if line["event"] == "sip"]
    assert {line["direction"] for line in traced} == {"<", ">"}
    invites = [line for line in traced if line["message"].startswith("INVITE") and line["direction"] == "<"]
    assert len(invites) == 3 and all("Via:" in line["message"] for line in invites)
    assert any("Authorization: ***" in line["message"] for line in traced if line["direction"] == ">")
    assert any("a=crypto:1 AES_CM_128_HMAC_SHA1_80 ***" in line["message"] for line in traced)
    info = [line["message"] for line in traced if "application/dtmf" in line["message"]]
    assert info and not any(re.search(r"(?i)signal\s*=\s*[0-9]", message) for message in info)
    check_names(lines)


def check_names(lines: list[dict[str, Any]]) -> None:
    """Whatever is about a call carries its id: while it lives, lines that know the peer's name of it too."""
    ours = {line["external_id"]: line["call_id"] for line in lines if line["event"] == "call started"}
    assert len(ours) == 5, "two by SIPp and hand, one of our phone, two of Twilio"
    alive: set[str] = set()
    for line in lines:
        alive |= {line["external_id"]} if line["event"] == "call started" else set()
        if line.get("external_id") in alive or "utterance_id" in line:
            assert line.get("call_id") in ours.values(), line
        if "utterance_id" in line:
            assert line["leg"]
        alive -= {line["external_id"]} if line["event"] == "call ended" else set()
    assert sum(line["event"] == "sip" and "call_id" in line for line in lines) > 5


def invite(port: int, call_id: str) -> None:
    """A call by hand, whose INVITE holds all that must not be read."""
    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(10)
        local, body = peer.getsockname()[1], OFFER.replace("\n", "\r\n")
        text = (
            INVITE.format(
                port=port,
                local=local,
                branch=call_id,
                call_id=call_id,
                password=URL_PASSWORD,
                length=len(body),
                body="\n",
            )
            .rstrip("\n")
            .replace("\n", "\r\n")
            + "\r\n\r\n"
            + body
        )
        peer.sendto(text.encode(), ("127.0.0.1", port))
        status = ""
        while not status.startswith("SIP/2.0 200"):
            status = peer.recv(65536).decode()
            assert not re.match(r"SIP/2.0 [3-6]", status), status
        to = re.search(r"(?m)^To: (.*)\r$", status)
        assert to is not None
        headers = (
            f"Via: SIP/2.0/UDP 127.0.0.1:{local};branch=z9hG4bK{{branch}}\r\n"
            f'From: "Caller" <sip:4711:{URL_PASSWORD}@127.0.0.1:{local}>;tag=1\r\nTo: {to[1]}\r\n'
            f"Call-ID: {call_id}\r\nMax-Forwards: 70\r\nCSeq: {{cseq}}\r\nContent-Length: 0\r\n\r\n"
        )
        for number, method in ((1, "ACK"), (2, "BYE")):
            filled = headers.format(branch=f"{call_id}{method}", cseq=f"{number} {method}")
            peer.sendto(f"{method} sip:1000@127.0.0.1:{port} SIP/2.0\r\n{filled}".encode(), ("127.0.0.1", port))
        assert "200" in peer.recv(65536).decode().splitlines()[0]


async def strangers(url: str) -> None:
    """Who comes with a wrong key, in every place a key can be in."""
    async with httpx.AsyncClient(base_url=url) as client:
        bearer = {"Authorization": f"Bearer {WRONG_KEY}"}
        basic = {"Authorization": "Basic " + base64.b64encode(f"user:{WRONG_KEY}".encode()).decode()}
        for headers in (bearer, basic):
            assert (await client.get("/v1/calls", headers=headers)).status_code == 401
        assert (await client.get(f"/v1/calls?key={WRONG_KEY}")).status_code == 401
        assert (await client.get(f"/nothing/{WRONG_KEY}", headers=bearer)).status_code == 404
        assert (await client.get("/metrics", headers={"Authorization": f"Bearer {API_KEY}"})).status_code == 200
        body = f'{{"names": {{"main": "{WRONG_KEY}"'
        wrong = await client.patch("/v1/calls/x", headers={"Authorization": f"Bearer {API_KEY}"}, content=body)
        assert wrong.status_code == 400
    for offered in (["bearer", WRONG_KEY], ["bearer", API_KEY]):
        try:
            async with connect(url.replace("http", "ws") + "/v1/events", subprotocols=offered) as socket_:  # type: ignore[arg-type]
                await socket_.recv()
        except WebSocketException:
            assert offered[1] == WRONG_KEY


# -- the trace ---------------------------------------------------------------------------------------------------------

DUMP = (
    "pjsua_core.c  .RX 412 bytes Request msg INVITE/cseq=1 (rdata0x55) from UDP 192.0.2.1:5060:\n"
    "INVITE sip:a SIP/2.0\r\n{}\r\n\r\n{}\n--end msg--"
)


def test_a_printed_message_is_taken_apart() -> None:
    seen = trace.parse(DUMP.format("Call-ID: abc\r\nVia: x", "v=0"))
    assert seen is not None
    assert (seen.direction, seen.transport, seen.peer, seen.size, seen.call_id) == (
        "<",
        "UDP",
        "192.0.2.1:5060",
        412,
        "abc",
    )
    assert seen.message == "INVITE sip:a SIP/2.0\r\nCall-ID: abc\r\nVia: x\r\n\r\nv=0"
    cut = DUMP.replace("RX", "TX").replace(" from ", " to ").replace("\n--end msg--", "")
    sent = trace.parse(cut.format("i: q", ""))
    assert sent is not None and (sent.direction, sent.call_id) == (">", "q")
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
    assert seen is not None and "HIDDEN" not in seen.message and "***" in seen.message


# -- one line, one format ----------------------------------------------------------------------------------------------

LOUD = """
import asyncio, logging, sys, threading, warnings
import structlog
from config.load import parse
from mediaworker.ops import logs
settings = parse({{"log": {{"format": "{format}", "level": "info"}},
                   "twilio": {{"auth_token": {secret!r}, "public_url": "https://a"}}}})
logs.configure_worker(settings)
log = structlog.get_logger()
secret = {secret!r}
log.info("direct", value=secret, nested={{"a": [secret]}}, digit="7", note=repr(secret))
log.debug("too quiet")
logging.getLogger("websockets.server").warning("from a library: %s", secret)
logging.getLogger("uvicorn.error").info("Authorization: Bearer %s", secret)
warnings.warn("watch " + secret)
log.info("about an utterance", utterance_id="01900000-0000-7000-8000-000000000001/inbound/3")
log.info("forged", text="a\\nb", message="INVITE x\\r\\n2026-01-01 [info] forged line \\x1b[31m")
def fail():
    raise ValueError("with " + secret)
try:
    fail()
except ValueError:
    log.exception("failed")
    logging.getLogger("asyncio").error("as a library says it", exc_info=True)
thread = threading.Thread(target=fail); thread.start(); thread.join()
logs.configure_worker(parse({{"log": {{"format": "{format}", "level": "debug"}}}}))
log.debug("heard now", old=secret)
fail()
"""


@pytest.mark.parametrize("secret", ["plain-secret-1", "quo\"te\\slash's", "ünï-codé", "with space"])
@pytest.mark.parametrize("format", ["json", "console"])
def test_every_line_goes_through_one_renderer(format: str, secret: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOUD.format(format=format, secret=secret)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stdout == ""
    text = done.stderr
    for spelling in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], json.dumps(repr(secret)[1:-1])[1:-1]}:
        assert spelling not in text, text
    assert "too quiet" not in text and "heard now" in text
    assert text.count("uncaught exception") == 2
    if format == "console":
        assert not [line for line in text.splitlines() if line.startswith("2026-01-01")] and "\x1b" not in text
        return
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines if line["event"] == "direct" and line["digit"] == "*"] == ["direct"]
    about = next(line for line in lines if line["event"] == "about an utterance")
    assert (about["call_id"], about["leg"]) == ("01900000-0000-7000-8000-000000000001", "inbound")
    library = next(line for line in lines if "from a library" in line["event"])
    assert library["logger"] == "websockets.server" and library["level"] == "warning"
    assert sum("Traceback" in line.get("exception", "") for line in lines) == 4


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


# -- the configuration -------------------------------------------------------------------------------------------------

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


# -- foreign text ------------------------------------------------------------------------------------------------------

ESCAPES = "\x1b[31m\x07\x9b2J\u202e"


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


def test_the_name_of_an_upload_cannot_steer_the_terminal(tmp_path: Path) -> None:
    name = f"voicemail{ESCAPES}.wav"  # without a space: structlog quotes those with one by itself
    with worker(tmp_path, SIP__ENABLED="false", LOG__FORMAT="console") as running:
        files = {"file": (name, (SPEECH / "vm-goodbye.wav").read_bytes(), "audio/wav")}
        job = httpx.post(f"{running.url}/v1/jobs", files=files)
        assert job.status_code == 201 and "\x1b" in job.json()["file"]["name"]
        form = {"files": {"file": (name, b"no audio")}, "data": {"model": "whisper-1"}}
        assert httpx.post(f"{running.url}/v1/audio/transcriptions", **form).status_code == 400  # type: ignore[arg-type]
        path, elsewhere = f"/v1/calls/{quote(ESCAPES)}", {"Host": "worker.example"}
        assert httpx.get(running.url + path, headers=elsewhere).status_code == 401
        log = running.log.read_bytes()
    assert b"voicemail\\x1b[31m" in log and b"\\u202e.wav" in log
    assert not set(log) & {0x1B, 0x07} and "\x9b".encode() not in log


def test_what_commands_print_cannot_steer_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / f"no-audio{ESCAPES}.wav"
    file.write_bytes(b"no audio")
    for arguments in (
        ("transcribe", str(file)),
        ("transcribe", f"{file}-that-is-not-there"),
        ("call", f"sip:x@127.0.0.1:9{ESCAPES}", "--play", str(file)),
        ("stream", f"ws://127.0.0.1:9/{ESCAPES}", "--play", str(file)),
        ("watch", f"ws://127.0.0.1:9/{ESCAPES}", "--once"),
    ):
        done = command(*arguments)
        assert done.returncode != 0 and done.stderr, arguments
        assert (done.stdout + done.stderr).replace("\n", "").replace("\r", "").isprintable(), (arguments, done.stderr)
