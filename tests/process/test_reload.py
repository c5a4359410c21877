"""A worker that runs for a year: its configuration and certificates change, it is drained, it has a neighbour."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import connect

from config import ConfigError
from config.certificates import expiry
from config.load import parse
from lab.engine.listener import LISTENER, LISTENER_PATH, Limit
from lab.media.speech import SPEECH, speech
from lab.network.ports import port_range, ports
from lab.patience import seconds, until
from lab.worker.peers import COMMAND, ROOT, Worker, alive, command, launch, worker
from lab.worker.reload import configured
from mediaworker.access.tls import Certificate
from mediaworker.service.systemd import ServiceManager

OLD, NEW = "old-key-12345", "new-key-12345"


def make_certificate(folder: Path, name: str, *, days: int = 30, algorithm: str = "ec") -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    kind = ["-newkey", "rsa:2048"] if algorithm == "rsa" else ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made = ["openssl", "req", "-x509", *kind, "-nodes", "-keyout", str(key), "-out", str(cert), "-days", str(days)]
    made += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(made, check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize(("days", "algorithm"), [(1, "ec"), (3650, "rsa"), (36500, "ec")])
def test_the_end_of_a_certificate_is_read_from_it(tmp_path: Path, days: int, algorithm: str) -> None:
    cert, _ = make_certificate(tmp_path, "a", days=days, algorithm=algorithm)
    asked = ["openssl", "x509", "-enddate", "-noout", "-in", str(cert)]
    shown = subprocess.run(asked, capture_output=True, text=True).stdout.partition("=")[2].strip()
    assert expiry("# a comment\n" + cert.read_text()) == ssl.cert_time_to_seconds(shown)


def test_files_that_make_no_certificate_are_named_and_change_nothing(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "a")
    other, other_key = make_certificate(tmp_path, "b")
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x123", "-out", str(encrypted)], check=True
    )
    (tmp_path / "empty").write_text("")
    (tmp_path / "junk").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    good = parse({"http": {"tls_cert": str(cert), "tls_key": str(key)}}).http
    live = Certificate("http", good)
    before = live.expires_s
    for cert_file, key_file, named, said in (
        (tmp_path / "none", key, "http.tls_cert", "No such file"),
        (cert, tmp_path / "none", "http.tls_key", "No such file"),
        (other, key, "http.tls_key", "another certificate"),
        (cert, other_key, "http.tls_key", "another certificate"),
        (cert, encrypted, "http.tls_key", "encrypted"),
        (tmp_path / "empty", key, "http.tls_cert", "no certificate"),
        (tmp_path / "junk", key, "http.tls_cert", "not an X.509"),
        (tmp_path, key, "http.tls_cert", "directory"),
        (cert, tmp_path / "empty", "http.tls_key", "no private key"),
    ):
        wrong = parse({"http": {"tls_cert": str(cert_file), "tls_key": str(key_file)}}).http
        with pytest.raises(ConfigError) as caught:
            live.load(wrong)
        assert caught.value.key == named and said in str(caught.value), str(caught.value)
    assert live.expires_s == before
    both = tmp_path / "both.pem"
    both.write_text(cert.read_text() + key.read_text())
    live.load(parse({"http": {"tls_cert": str(both)}}).http)
    with pytest.raises(ConfigError, match=r"http\.tls_cert"):
        parse({"http": {"tls_key": str(key)}})


def status(url: str, key: str | None = None, context: ssl.SSLContext | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=seconds(10), context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def long_speech(folder: Path) -> Path:
    """About seven seconds with two utterances."""
    gap = np.zeros(8000, np.int16)
    samples = np.concatenate([gap, speech("tt-weasels"), gap, speech("auth-thankyou"), gap])
    file = folder / "speech.wav"
    with wave.open(str(file), "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(8000)
        target.writeframes(samples.tobytes())
    return file


def test_a_call_runs_through_a_reload_that_changes_keys_routes_and_certificates(tmp_path: Path) -> None:
    old_cert, old_key = make_certificate(tmp_path, "old", days=10)
    new_cert, new_key = make_certificate(tmp_path, "new", days=90)
    live_cert, live_key = tmp_path / "live.pem", tmp_path / "live.key"
    live_cert.write_bytes(old_cert.read_bytes())
    live_key.write_bytes(old_key.read_bytes())

    def configuration(key: str, name: str, level: str = "info", more: str = "") -> str:
        return (
            f'{more}\n[auth]\napi_keys = [{{name = "ops", key = "{key}", scopes = ["admin", "events"]}}]\n'
            f'[log]\nlevel = "{level}"\n[[routes]]\nnames = {{inbound = "{name}"}}\n'
            f'[http]\ntls_cert = "{live_cert}"\ntls_key = "{live_key}"\n'
            f'[media]\ntls_cert = "{live_cert}"\ntls_key = "{live_key}"\n'
        )

    trusts = {name: ssl.create_default_context(cafile=str(tmp_path / f"{name}.pem")) for name in ("old", "new")}

    def served(port: int) -> str:
        """Whose certificate a new connection gets."""
        for name, context in trusts.items():
            with socket.create_connection(("127.0.0.1", port), timeout=seconds(10)) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname="127.0.0.1"):
                        return name
                except ssl.SSLCertVerificationError:
                    pass
        raise AssertionError("nobody's certificate")

    options = LISTENER | {"SIP__ENABLED": "false"}
    with configured(tmp_path, configuration(OLD, "Ann"), trusts["old"], LISTENER_PATH, **options) as (running, reload):
        https = f"https://127.0.0.1:{running.http_port}"
        assert status(f"{https}/v1/calls", OLD, trusts["old"]) == 200
        asyncio.run(
            through_a_reload(
                running,
                trusts,
                lambda: (
                    live_cert.write_bytes(new_cert.read_bytes()),
                    live_key.write_bytes(new_key.read_bytes()),
                    reload(configuration(NEW, "Bea", "debug", "max_calls = 7\n[rtp]\njitter_ms = 80\n")),
                )[-1],
                long_speech(tmp_path),
            )
        )
        assert served(running.http_port) == served(running.media_port) == "new"
        assert status(f"{https}/v1/calls", OLD, trusts["new"]) == 401
        assert status(f"{https}/v1/calls", NEW, trusts["new"]) == 200
        figures = scrape(running, NEW, trusts["new"])
        assert figures['mediaworker_config_reloads_total{result="done"}'] == 1
        assert figures['mediaworker_tls_certificate_expiry_timestamp_seconds{port="http"}'] > time.time() + 80 * 86400
        # A mistake changes nothing and is one line with key and value.
        live_key.write_bytes(old_key.read_bytes())
        said = reload(configuration(OLD, "Eve", "error"))
        (line,) = said.splitlines()
        assert json.loads(line)["level"] == "error" and "http.tls_key = " in line and "another certificate" in line
        said = reload("[rtp]\njitter_ms = 99999\n")
        (line,) = said.splitlines()
        assert "rtp.jitter_ms = 99999" in line
        assert served(running.http_port) == "new"
        assert status(f"{https}/v1/calls", NEW, trusts["new"]) == 200
        figures = scrape(running, NEW, trusts["new"])
        assert figures['mediaworker_config_reloads_total{result="refused"}'] == 2
        assert figures["mediaworker_config_last_reload_successful"] == 0


async def through_a_reload(
    running: Worker, trusts: dict[str, ssl.SSLContext], reload: Callable[[], str], file: Path
) -> None:
    """A Twilio stream and a subscriber over TLS, both older than the reload; then a second stream."""
    events = f"wss://127.0.0.1:{running.http_port}/v1/events?types=call.started,call.ended,transcript.final"
    headers = {"Authorization": f"Bearer {OLD}"}
    async with connect(events, ssl=trusts["old"], additional_headers=headers) as subscriber:
        assert json.loads(await subscriber.recv())["type"] == "hello"
        first = asyncio.create_task(play(running, trusts["old"], file))
        started = json.loads(await subscriber.recv())
        assert started["legs"][0]["name"] == "Ann"
        said = [json.loads(line) for line in (await asyncio.to_thread(reload)).splitlines()]
        assert [line["keys"] for line in said if line["event"] == "these keys need a restart"] == [["rtp.jitter_ms"]]
        changed = next(line["changed"] for line in said if line["event"] == "configuration reloaded")
        assert set(changed) == {"auth.api_keys", "log.level", "max_calls", "routes"}
        await asyncio.gather(first, play(running, trusts["new"], file))
        seen = [json.loads(await subscriber.recv()) for _ in range(7)]
    words = []
    for name in ("Ann", "Bea"):
        of_call = [event for event in seen if (event["call_id"] == started["call_id"]) == (name == "Ann")]
        if name == "Bea":
            assert of_call.pop(0)["legs"][0]["name"] == "Bea"
        assert [event["type"] for event in of_call] == ["transcript.final", "transcript.final", "call.ended"]
        assert of_call[-1]["legs"][0]["lost"] == 0 and of_call[-1]["reason"] == "hangup"
        words.append([event["text"] for event in of_call[:2]])
    assert words[0] == words[1], "a reload in mid-call changes no word"


async def play(running: Worker, context: ssl.SSLContext, file: Path) -> None:
    """What Twilio sends, in real time."""
    from audio.codecs.g711 import ulaw_encode
    from mediaworker.cli.play import load_pcm

    codes = bytes(ulaw_encode(load_pcm(file, 8000)))
    start = {
        "event": "start",
        "sequenceNumber": "1",
        "streamSid": "MZ1",
        "start": {
            "streamSid": "MZ1",
            "accountSid": "AC1",
            "callSid": f"CA{time.monotonic_ns()}",
            "tracks": ["inbound"],
            "customParameters": {},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        },
    }
    url = f"wss://127.0.0.1:{running.media_port}/twilio/stream"
    async with connect(url, ssl=context) as socket_:
        await socket_.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        await socket_.send(json.dumps(start))
        begun = time.monotonic()
        for number, at in enumerate(range(0, len(codes), 160)):
            payload = base64.b64encode(codes[at : at + 160].ljust(160, b"\xff")).decode()
            media = {"track": "inbound", "chunk": str(number + 1), "timestamp": str(number * 20), "payload": payload}
            message = {"event": "media", "sequenceNumber": str(number + 2), "streamSid": "MZ1", "media": media}
            await asyncio.sleep(max(0.0, begun + number * 0.02 - time.monotonic()))
            await socket_.send(json.dumps(message))
        stop = {"accountSid": "AC1", "callSid": start["start"]["callSid"]}  # type: ignore[index]
        await socket_.send(json.dumps({"event": "stop", "sequenceNumber": "9999", "streamSid": "MZ1", "stop": stop}))


def scrape(running: Worker, key: str, context: ssl.SSLContext) -> dict[str, float]:
    url = f"https://127.0.0.1:{running.http_port}/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=seconds(10), context=context) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_access_to_sip_and_the_trace_change_while_running(tmp_path: Path) -> None:
    def options(port: int) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            local = peer.getsockname()[1]
            peer.settimeout(seconds(10))
            peer.sendto(
                f"OPTIONS sip:x@127.0.0.1:{port} SIP/2.0\r\n"
                f"Via: SIP/2.0/UDP 127.0.0.1:{local};branch=z9hG4bK{local}\r\n"
                f"From: <sip:a@127.0.0.1:{local}>;tag=1\r\nTo: <sip:x@127.0.0.1>\r\nCall-ID: c{local}\r\n"
                f"CSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n".encode(),
                ("127.0.0.1", port),
            )
            assert peer.recv(65536)

    def traced(running: Worker) -> int:
        return running.log.read_text().count('"event": "sip"')

    with configured(tmp_path, "") as (running, reload):
        options(running.sip_port)
        assert traced(running) == 0
        said = reload('[log]\nsip_trace = true\n[sip]\nallow = ["192.0.2.0/24"]\n')
        assert "sip.allow" in said and "log.sip_trace" in said
        options(running.sip_port)
        until(lambda: traced(running) == 2, 10, "question and answer in the log")
        reload("")
        options(running.sip_port)
        assert traced(running) == 2


def test_a_signal_during_the_start_is_a_reload_after_it(tmp_path: Path) -> None:
    """And a drain without calls is over at once, whatever it may take."""
    running = launch(tmp_path, SHUTDOWN_S="600")
    try:
        until(lambda: caught(running.process.pid, signal.SIGHUP), 60)
        running.process.send_signal(signal.SIGHUP)
        until(lambda: alive(running), 60)
        until(lambda: running.metric("mediaworker_config_reloads_total") == 1, 20)
    finally:
        assert running.stop() == 0
    lines = running.log.read_text().splitlines()
    said = [index for index, line in enumerate(lines) if "ready" in line or "configuration reloaded" in line]
    assert len(said) == 2 and "configuration reloaded" in lines[said[1]], lines


def caught(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for this signal (proc_pid_status(5): SigCgt)."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> number - 1 & 1)


def test_a_second_signal_ends_a_drain_at_once(tmp_path: Path) -> None:
    file, limit = long_speech(tmp_path), Limit(tmp_path / "limit")
    limit.set(0)  # so that the call cannot have its last final
    with worker(tmp_path, limit.environ, SHUTDOWN_S="600", SIP__ENABLED="false", **LISTENER) as running:
        streaming = subprocess.Popen(
            [*COMMAND, "stream", running.twilio, "--play", str(file)], cwd=ROOT, stdout=-3, stderr=-3
        )
        until(lambda: running.metric("mediaworker_transcripts_utterances_total") >= 1)
        (call_id,) = [call["call_id"] for call in running.calls()]
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.metric("mediaworker_draining") == 1)
        with pytest.raises(urllib.error.HTTPError) as refused:
            running.get("/readyz")
        assert refused.value.code == 503 and "shutting down" in refused.value.read().decode()
        refused.value.close()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(seconds(30)) == 0
        streaming.wait(seconds(60))
    # The call was cut, not drained: the next start owes it its end.
    with worker(tmp_path, LISTENER_PATH, SIP__ENABLED="false", **LISTENER) as again:
        events = again.events(call_id)
        assert events[-1]["type"] == "call.ended" and events[-1]["reason"] == "worker_restart"


def test_the_service_manager_hears_of_start_life_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))

        def listen() -> None:
            while not heard or heard[-1] != "STOPPING=1":
                heard.append(manager.recv(100).decode())

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        with worker(tmp_path, SIP__ENABLED="false"):
            until(lambda: heard.count("WATCHDOG=1") >= 3, 20)
        listener.join(seconds(10))
    assert heard[0] == "READY=1" and heard[-1] == "STOPPING=1" and set(heard[1:-1]) == {"WATCHDOG=1"}
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


def test_two_workers_on_one_host_take_calls_at_once_from_one_range_of_ports(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, last = port_range(42)
    shared = {"RTP__PORT_MIN": str(first), "RTP__PORT_MAX": str(last), "ASR__ENGINE": "moonshine"}
    shared["RTP__JITTER_MS"] = "1000"  # so that a machine that is busy loses nothing
    with worker(tmp_path / "a", **shared) as a, worker(tmp_path / "b", **shared) as b:
        calls = [
            subprocess.Popen(
                [*COMMAND, "call", f"sip:x@127.0.0.1:{one.sip_port}", "--play", str(SPEECH / "auth-thankyou.wav")],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for one in (a, b, a, b)
        ]
        for call in calls:
            assert call.wait(seconds(60)) == 0, call.communicate()[1]
            call.communicate()
        texts = set()
        for one in (a, b):
            ended = one.wait_ended(2)
            assert len(ended) == 2, "each has its own two"
            for call_ in ended:
                finals = [event for event in one.events(call_["call_id"]) if event["type"] == "transcript.final"]
                texts.add(tuple(final["text"] for final in finals))
                assert call_["legs"][0]["leg"] == "main" and [final["lost_ms"] for final in finals] == [0] * len(finals)
        assert len(texts) == 1, "four times the same words"


def test_a_second_worker_on_one_data_dir_or_port_says_so_in_one_line(tmp_path: Path) -> None:
    with worker(tmp_path, SIP__ENABLED="false") as running:
        for taken, said in (
            ({"DATA_DIR": str(running.data_dir)}, "data_dir: "),
            ({"HTTP__PORT": str(running.http_port)}, f"http.port = {running.http_port}: "),
            ({"MEDIA__PORT": str(running.media_port)}, f"media.port = {running.media_port}: "),
        ):
            http, media = ports(2)
            settings = {"DATA_DIR": str(tmp_path / "other"), "HTTP__PORT": str(http), "MEDIA__PORT": str(media)}
            settings |= taken | {"SIP__ENABLED": "false", "LOG__LEVEL": "error"}
            environ = {f"MEDIAWORKER_{key}": value for key, value in settings.items()}
            serve = [*COMMAND, "serve"]
            done = subprocess.run(serve, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=seconds(60))
            assert done.returncode == 1
            (line,) = done.stderr.splitlines()
            assert line.startswith(f"mediaworker: {said}"), line
        assert running.get("/healthz") == {"status": "ok"}


def test_health_is_asked_by_the_package_itself(tmp_path: Path) -> None:
    """By HTTP; `test_client_tls` asks by HTTPS."""
    (http,) = ports(1)
    text, config = f"[http]\nport = {http}\n", tmp_path / "worker.toml"
    config.write_text(text)
    nobody = command("health", "--config", str(config))
    assert nobody.returncode == 1 and "refused" in nobody.stderr
    with configured(tmp_path, text, HTTP__PORT=str(http), SIP__ENABLED="false"):
        assert command("health", "--config", str(config)).returncode == 0
        assert command("health", "--ready", "--config", str(config)).returncode == 0
