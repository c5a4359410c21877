"""Commands and clients that reach a worker by `https` and `wss`: whom they trust, and what they print otherwise."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.network.authority import Authority
from lab.network.ports import ports
from lab.patience import seconds
from lab.worker.peers import COMMAND, ROOT, Worker, worker
from mediaworker.client import Client, events_url, schema

NO_PEM = str(ROOT / "README.md")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def running(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """One name and one address in its certificate, so that another name of this machine's does not fit."""
    pair = authority.issue("worker.example", "IP:127.0.0.1")
    files = {"TLS_CERT": str(pair.cert), "TLS_KEY": str(pair.key)}
    environ = {f"{section}__{key}": value for section in ("HTTP", "MEDIA") for key, value in files.items()}
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    folder = tmp_path_factory.mktemp("worker")
    with worker(folder, LISTENER_PATH, tls=trusting, SIP__ENABLED="false", **LISTENER, **environ) as started:
        yield started


def mediaworker(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Ends with the first line of `watch`, or with the command."""
    with subprocess.Popen(
        [*COMMAND, *arguments], env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        if arguments[0] == "watch" and line:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.wait(timeout=seconds(60)), line, process.stderr.read())


async def test_the_client_follows_events_and_asks_routes(
    running: Worker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        context = ssl.create_default_context(cafile=str(authority.cert))
        async with Client(running.url, tls=context) as client:
            assert isinstance((await anext(aiter(client.events()))).body, schema.Hello)
            assert await client.calls() == ([], None)
    with pytest.raises(ssl.SSLCertVerificationError):
        async with Client(running.url) as client:
            await anext(aiter(client.events()))
    with pytest.raises(ConnectionError, match="certificate verify failed"):
        async with Client(running.url) as client:
            await client.calls()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))  # the system's authorities, as OpenSSL finds them
    async with Client(running.url) as client:
        assert isinstance((await anext(aiter(client.events()))).body, schema.Hello)
        assert await client.calls() == ([], None)


def test_watch_checks_the_certificate(running: Worker, authority: Authority) -> None:
    address = running.url.removeprefix("https://")
    for url in (running.url, f"wss://{address}/v1/events"):
        shown = mediaworker("watch", url, "--json", "--ca", str(authority.cert))
        assert json.loads(shown.stdout)["type"] == "hello", shown.stderr
    assert mediaworker("watch", running.url, SSL_CERT_FILE=str(authority.cert)).stdout
    assert mediaworker("watch", running.url, "--insecure").stdout
    other_name = running.url.replace("127.0.0.1", "localhost")
    for arguments, reason in (
        ((running.url,), "certificate is refused: unable to get local issuer certificate (--ca FILE"),
        ((other_name, "--ca", str(authority.cert)), "certificate is refused: Hostname mismatch"),
        ((f"https://127.0.0.1:{running.sip_port}",), "onnect"),
    ):
        refused = mediaworker("watch", *arguments)
        assert refused.returncode == 1 and refused.stdout == "", refused
        assert reason in refused.stderr and refused.stderr.count("\n") == 1 and "_ssl.c" not in refused.stderr
    for file, reason in (("/nowhere.pem", "No such file"), (NO_PEM, "no certificate in PEM form")):
        wrong = mediaworker("watch", running.url, "--ca", file)
        assert wrong.returncode == 2 and reason in wrong.stderr and wrong.stderr.count("\n") == 1


def test_stream_checks_the_certificate_of_webhook_and_stream(
    running: Worker, authority: Authority, tmp_path: Path
) -> None:
    stream = running.twilio.replace("ws:", "wss:")
    recorded = str(tmp_path / "recorded.jsonl")
    (tmp_path / "said.ulaw").write_bytes(b"\xff" * 2000)
    said = ("--play", str(tmp_path / "said.ulaw"), "--tail", "0")
    for url in (stream, f"{running.url}/twilio/voice"):
        refused = mediaworker("stream", url, *said)
        assert refused.returncode == 1, refused
        assert "certificate is refused" in refused.stderr and refused.stderr.count("\n") == 1
    assert mediaworker("stream", stream, *said, "--ca", "/nowhere.pem").returncode == 2
    trusted = ("--ca", str(authority.cert))
    played = mediaworker("stream", f"{running.url}/twilio/voice", *said, *trusted, "--record", recorded)
    assert played.returncode == 0, played.stderr
    assert mediaworker("replay", recorded, "--to", stream).returncode == 1
    again = mediaworker("replay", recorded, "--to", stream, "--insecure")
    assert again.returncode == 0, again.stderr
    assert len(running.wait_ended(2)) == 2


def test_a_port_without_tls_is_named(tmp_path: Path, authority: Authority) -> None:
    (port,) = ports(1)
    server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(
        server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as plain:
        assert plain.stdout is not None and plain.stdout.readline()
        refused = mediaworker("watch", f"https://127.0.0.1:{port}")
        plain.kill()
    assert refused.returncode == 1 and "does the server speak TLS on this port?" in refused.stderr


def test_health_asks_over_https_by_address(running: Worker) -> None:
    for arguments in ((), ("--ready",)):
        done = subprocess.run([*COMMAND, "health", *arguments], env=running.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://h:8080", "ws://h:8080/v1/events?call=c"),
        ("https://h", "wss://h/v1/events?call=c"),
        ("https://h/mw/", "wss://h/mw/v1/events?call=c"),
        ("https://h/mw/v1/events", "wss://h/mw/v1/events?call=c"),
        ("wss://h/live", "wss://h/live?call=c"),
        ("wss://h/", "wss://h/v1/events?call=c"),
        ("h:8080", "ws://h:8080/v1/events?call=c"),
    ],
)
def test_where_events_are(address: str, url: str) -> None:
    """A proxy may put the worker into a folder, where the routes are found as well."""
    assert events_url(address, {"call": "c"}) == url
