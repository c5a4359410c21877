"""`/readyz` follows what a call would meet now: weights that are there, memory for a leg, answers with a text."""

from __future__ import annotations

import json
import resource
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import seconds, until
from lab.worker.peers import Worker, command, launch, worker


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("readiness")
    (folder / "model").mkdir()
    options = LISTENER | {"ASR__MODEL": str(folder / "model"), "SIP__ENABLED": "false"}
    with worker(folder, LISTENER_PATH, **options) as started:
        yield started


def readiness(running: Worker) -> tuple[int, str]:
    try:
        return 200, json.dumps(running.get("/readyz"))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def opened(running: Worker) -> str:
    """The type of the answer to a stream that begins."""
    with connect(f"ws://127.0.0.1:{running.media_port}/ws/asr") as client:
        client.send(json.dumps({"type": "config", "encoding": "mulaw", "sample_rate": 8000}))
        return str(json.loads(client.recv(timeout=seconds(20)))["type"])


def test_a_forced_engine_without_its_weights_is_a_start_up_error(tmp_path: Path) -> None:
    refused = launch(tmp_path, ASR__ENGINE="qwen", ASR__MODEL="nobody/nothing", SIP__ENABLED="false")
    assert refused.process.wait(timeout=seconds(30)) == 2
    (line,) = refused.log.read_text().splitlines()
    assert line.startswith("mediaworker: asr.model = 'nobody/nothing': ") and "mediaworker models pull" in line


def test_a_file_is_not_begun_with_an_engine_that_cannot_run(tmp_path: Path) -> None:
    done = command("transcribe", "x.wav", "-o", str(tmp_path), ASR__ENGINE="qwen", ASR__MODEL="nobody/nothing")
    assert done.returncode == 2 and "asr.model" in done.stderr and "Traceback" not in done.stderr


def test_weights_that_disappear_are_said_at_once(running: Worker) -> None:
    model = Path(running.environ["MEDIAWORKER_ASR__MODEL"])
    assert readiness(running)[0] == 200
    model.rename(model.with_name("elsewhere"))
    try:
        status, body = readiness(running)
        assert status == 503 and "asr.model" in body and "is gone" in body
    finally:
        model.with_name("elsewhere").rename(model)
    assert readiness(running)[0] == 200


def test_a_worker_without_memory_for_a_call_is_not_ready_until_there_is_some(running: Worker) -> None:
    pid = running.process.pid
    status = Path(f"/proc/{pid}/status").read_text().split()
    used = int(status[status.index("VmSize:") + 1]) * 1024
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (used + (24 << 20), before[1]))
    try:
        assert opened(running) == "error"
        code, body = readiness(running)
        assert code == 503 and "no memory" in body
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)
    assert opened(running) in ("session_created", "warming_up")
    until(lambda: readiness(running)[0] == 200, 20)


def test_loaded_weights_that_have_disappeared_are_a_warning(running: Worker) -> None:
    model = Path(running.environ["MEDIAWORKER_ASR__MODEL"])
    opened(running)  # the engine is kept for asr.idle_s
    until(lambda: 'state="ready"} 1' in running.get("/metrics"), 40, "the engine")
    model.rename(model.with_name("elsewhere"))
    try:
        code, body = readiness(running)
        assert code == 200 and "would not start again" in body
    finally:
        model.with_name("elsewhere").rename(model)
    assert json.loads(readiness(running)[1])["warnings"] == []
