"""Whole workers that have their speech recognised by engine servers: calls, files, readiness, and other servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.engine.recognizer import install_listener
from lab.media.speech import SPEECH
from lab.patience import until
from lab.worker.engine_servers import TOKEN, Server, engine_server
from lab.worker.peers import Worker, command, worker
from lab.worker.readiness import readiness, states
from lab.worker.reload import configured
from lab.worker.ws_calls import CODES, config, stored, texts, told, url


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("servers")
    with engine_server(folder / "one", LISTENER_PATH, **LISTENER) as one:
        with engine_server(folder / "two", LISTENER_PATH, **LISTENER) as two:
            yield one, two


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, two: tuple[Server, Server]) -> Iterator[Worker]:
    servers = json.dumps([server.address for server in two])
    environ = {"ASR__SERVERS": servers, "CLUSTER__TOKEN": TOKEN, "SIP__ENABLED": "false"}
    with worker(tmp_path_factory.mktemp("worker"), LISTENER_PATH, **environ, **LISTENER) as started:
        until(lambda: len(states(started)) == 2 and set(states(started)) == {"ready"}, 60)
        yield started


async def test_a_call_and_a_file_through_servers_say_what_a_local_engine_says(
    running: Worker, two: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_listener(monkeypatch)
    heard = await told(url(running, "asr"), config(), CODES, speed=4)
    story = stored(running, heard[0])
    assert [each["text"] for each in story] == texts(heard)
    file = str(SPEECH / "tt-weasels.wav")
    local = command("transcribe", file, **LISTENER)
    servers = json.dumps([server.address for server in two])
    shared = command("transcribe", file, ASR__SERVERS=servers, CLUSTER__TOKEN=TOKEN, ASR__ENGINE="auto")
    assert (local.returncode, shared.returncode) == (0, 0), shared.stderr
    assert shared.stdout == local.stdout != ""
    assert running.metric("mediaworker_asr_crashes_total") == 0


def test_readiness_and_models_are_those_of_the_servers(running: Worker, two: tuple[Server, Server]) -> None:
    shown = readiness(running)
    assert shown["engine"]["name"] == "listener" and shown["engine"]["state"] == "ready"
    assert {each["address"] for each in shown["engine"]["servers"]} == {
        server.address.removeprefix("tcp://") for server in two
    }
    assert {each["engine"] for each in shown["engine"]["servers"]} == {"listener"}
    assert all(model["languages"] == ["de", "en"] for model in running.get("/v1/models")["data"])
    for server in two:
        assert server.get("/healthz") and server.get("/readyz")["workers"] == 1


async def test_a_call_goes_on_while_servers_are_killed(running: Worker, two: tuple[Server, Server]) -> None:
    quiet = texts(await told(url(running, "asr"), config(), CODES, speed=4))
    for server in two:
        server.kill()
        heard = await told(url(running, "asr"), config(), CODES, speed=4)
        assert texts(heard) == quiet
        server.start_again()
        until(lambda: set(states(running)) == {"ready"}, 60)


def test_without_a_server_no_calls_are_taken_and_the_reason_is_said(tmp_path: Path) -> None:
    servers = '["tcp://127.0.0.1:9"]'
    with worker(tmp_path, ASR__SERVERS=servers, CLUSTER__TOKEN=TOKEN, SIP__ENABLED="false") as running:
        shown = until(lambda: (r := readiness(running)) and r.get("reasons") and r)
        assert shown["reasons"] == ["the recognition engine is loading its model"]
        (server,) = until(lambda: readiness(running)["engine"]["servers"])
        assert (server["address"], server["state"]) == ("127.0.0.1:9", "warming_up")
        assert running.log.read_text().count("engine server not reached") == 1, "once, not at every attempt"


def test_sighup_changes_the_servers(tmp_path: Path, two: tuple[Server, Server]) -> None:
    def text(*servers: Server) -> str:
        addresses = json.dumps([server.address for server in servers])
        return f'[asr]\nengine = "auto"\nservers = {addresses}\n[cluster]\ntoken = "{TOKEN}"\n[sip]\nenabled = false\n'

    one, other = two
    with configured(tmp_path, text(one), ASR__MODEL="") as (running, reload):
        until(lambda: states(running) == ["ready"], 60)
        assert '"event": "configuration reloaded"' in reload(text(one, other))
        until(lambda: states(running) == ["ready", "ready"])
        assert '"event": "configuration reloaded"' in reload(text(other))
        until(
            lambda: [each["address"] for each in readiness(running)["engine"]["servers"]] == [f"127.0.0.1:{other.port}"]
        )
        until(lambda: one.metric("mediaworker_engine_server_workers") in (0, 1))
        assert '"keys": ["asr.servers", "cluster.token"]' in reload(
            '[asr]\nengine = "auto"\n[cluster]\ntoken = "x"\n[sip]\nenabled = false\n'
        )
        assert states(running) == ["ready"], "a worker without servers is another one: it needs a restart"
