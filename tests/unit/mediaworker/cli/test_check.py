"""What `mediaworker check` finds, and what it calls it."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from config.load import parse
from mediaworker.cli.checks import machine, network
from mediaworker.cli.checks.finding import Finding, Level
from mediaworker.cli.main import main


def levels(found: Iterator[Finding]) -> dict[str, Level]:
    return {finding.subject: finding.level for finding in found}


@contextmanager
def taken() -> Iterator[int]:
    """A TCP port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def nats_says(line: bytes) -> Iterator[str]:
    """A server that begins with this line, as NATS does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(line)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_two_settings_with_one_port_and_a_port_of_somebody_else() -> None:
    with taken() as port:
        tree: dict[str, Any] = {"http": {"port": port}, "media": {"port": port}, "sip": {"enabled": False}}
        found = list(machine.ports(parse(tree)))
    assert [(each.subject, each.level) for each in found] == [
        ("http.port", Level.FAILED), ("media.port", Level.FAILED),
    ]  # fmt: skip
    assert "already in use" in found[0].text and "is http.port too" in found[1].text
    free = parse({"http": {"port": 0}, "media": {"port": 0}, "sip": {"port": 0}})
    assert set(levels(machine.ports(free)).values()) == {Level.GOOD}


def test_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    new = machine.data_dir(parse({"data_dir": str(tmp_path / "a" / "b")}))
    assert new.level < Level.FAILED and "will be made" in new.text and not (tmp_path / "a").exists()
    assert machine.data_dir(parse({"data_dir": str(file / "x")})).level is Level.FAILED
    settings = parse({"data_dir": str(tmp_path), "http": {"port": 0}})
    assert not machine.is_running(settings)
    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert machine.is_running(settings) and "running worker" in machine.data_dir(settings).text
        with taken() as port:  # then its ports are its own
            own = parse({"data_dir": str(tmp_path), "http": {"port": port}})
            assert levels(machine.ports(own))["http.port"] is Level.GOOD
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert machine.data_dir(settings).level is Level.FAILED


def test_short_keys_are_told_by_name() -> None:
    keys = [{"name": "old", "key": "12345678", "scopes": ["events"]}]
    (found,) = machine.keys(parse({"auth": {"api_keys": keys}}))
    assert found.level is Level.WARNING and "old" in found.text and "12345678" not in found.text


def test_certificates_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("no certificate")
    for section in ("http", "media", "sip"):
        settings = parse({section: {"tls_cert": str(file)}})
        (found,) = machine.certificates(settings)
        assert found.level is Level.FAILED and f"{section}.tls_cert" in found.text


@pytest.mark.parametrize(
    ("registrar", "level", "said"),
    [
        ("sip:127.0.0.1", Level.GOOD, "registers at sip:127.0.0.1"),
        ("127.0.0.1:5070", Level.GOOD, "which means sip:127.0.0.1:5070"),
        ("sip:pbx.invalid", Level.WARNING, "there is no such host"),
    ],
)
def test_registrars(registrar: str, level: Level, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, *_: object, **__: object) -> object:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(network.socket, "getaddrinfo", resolve)
    (found,) = network.registrars(parse({"sip": {"accounts": [{"registrar": registrar, "user": "4711"}]}}))
    assert found.level is level and said in found.text


@pytest.mark.parametrize(
    ("line", "level", "said"),
    [
        (b'INFO {"version":"2.11.0","jetstream":true}\r\n', Level.GOOD, "has JetStream, version 2.11.0"),
        (b'INFO {"version":"2.11.0"}\r\n', Level.FAILED, "no JetStream: start it with -js"),
        (b"HTTP/1.1 400 Bad Request\r\n", Level.WARNING, "no NATS server"),
        (b"INFO []\r\n", Level.WARNING, "no NATS server"),
        (b"INFO {\r\n", Level.WARNING, "joins the cluster when it can"),
        (b"INFO " + b"x" * 100000, Level.WARNING, "joins the cluster when it can"),
        (b"", Level.WARNING, "no NATS server"),
    ],
)
def test_nats(line: bytes, level: Level, said: str) -> None:
    with nats_says(line) as place:
        (found,) = network.nats(parse({"cluster": {"nats": [f"nats://{place}"]}}))
    assert found.level is level and said in found.text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check: Callable[[str], int] = lambda text: _written(tmp_path / "mediaworker.toml", text)  # noqa: E731
    with taken() as port:
        assert check(f"[http]\nport = {port}\n[media]\nport = 0\n[sip]\nenabled = false\n") == 1
        assert "failed   http.port" in capsys.readouterr().out
    assert check("[http]\nport = 0\n[media]\nport = 0\n[sip]\nenabled = false\n") == 0
    assert "failed" not in capsys.readouterr().out
    assert check("[htp]\n") == 2
    assert "did you mean http or rtp?" in capsys.readouterr().err
    assert check("[twilio]\nthen = '<Dial>'\n") == 2
    assert "twilio.then" in capsys.readouterr().err
    assert check("[alerts]\nfile = 'gone.toml'\n[http]\nport = 0\n[media]\nport = 0\n[sip]\nenabled = false\n") == 1
    assert "failed   configuration    alerts.file" in capsys.readouterr().out


def _written(file: Path, text: str) -> int:
    file.write_text(text)
    return main(["check", "--offline"])


def test_the_engine_and_who_may_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    forced = {"asr": {"engine": "qwen", "model": "nobody/nothing"}}
    assert levels(machine.engine(parse(forced))) == {"asr.engine": Level.FAILED}
    assert levels(machine.engine(parse({"asr": {"engine": "moonshine"}}))) == {"asr.engine": Level.GOOD}
    without = {"asr": {"engine": "moonshine", "word_timestamps": True, "aligner": "nobody/nothing"}}
    assert levels(machine.engine(parse(without)))["asr.aligner"] is Level.WARNING
    elsewhere = {"asr": {"servers": ["tcp://127.0.0.1:9095"]}, "cluster": {"token": "token"}}
    assert levels(machine.engine(parse(elsewhere))) == {}
    assert levels(machine.sip(parse({"sip": {"enabled": False}}))) == {}


def test_engine_servers() -> None:
    with taken() as port:
        there = {"asr": {"servers": [f"tcp://127.0.0.1:{port}"]}, "cluster": {"token": "token"}}
        assert levels(network.engine_servers(parse(there))) == {"asr.servers[0]": Level.GOOD}
    assert levels(network.engine_servers(parse(there))) == {"asr.servers[0]": Level.WARNING}
