"""What is in the log, and what never is: secrets, credentials and digits, at the loudest level, through real calls."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.media.speech import SPEECH
from lab.network.ports import ports
from lab.patience import seconds, wait_for
from lab.sip.sipp_caller import Sipp
from lab.worker.peers import command, worker

ESCAPES = "\x1b[31m\x07\x9b2J\u202e"

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
        LISTENER_PATH,
        **LISTENER,
        LOG__LEVEL="debug",
        LOG__FORMAT="json",
        LOG__SIP_TRACE="true",
        SIP__ACCOUNTS=accounts,
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
        await wait_for(server, 60)
    text = running.log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) > 40
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
        peer.settimeout(seconds(10))
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


@pytest.mark.parametrize(
    ("format", "secret"),
    [("json", "plain-secret-1"), ("json", "ünï-codé"), ("console", "with space"), ("console", "quo\"te\\slash's")],
)
def test_every_line_goes_through_one_renderer(format: str, secret: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOUD.format(format=format, secret=secret)],
        capture_output=True,
        text=True,
        timeout=seconds(60),
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


def test_the_name_of_an_upload_cannot_steer_the_terminal(tmp_path: Path) -> None:
    name = f"voicemail{ESCAPES}.wav"  # without a space: structlog quotes those with one by itself
    with worker(tmp_path, LISTENER_PATH, **LISTENER, SIP__ENABLED="false", LOG__FORMAT="console") as running:
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
