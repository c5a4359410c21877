"""A dialect of another package: the example of CONTRIBUTING.md, installed and spoken, and one that cannot be used."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.house import ROOT
from lab.patience import timeout
from lab.worker.packages import install
from lab.worker.peers import Worker, command, worker
from lab.worker.ws_calls import send, speech

EXAMPLE = ROOT / "examples" / "captions_dialect"
LINES = 120
"""The most that a dialect of this kind may take."""
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker in whose environment the example has been installed."""
    folder = tmp_path_factory.mktemp("example")
    path = os.pathsep.join([str(install(EXAMPLE, folder)), LISTENER_PATH["PYTHONPATH"]])
    with worker(folder, {"PYTHONPATH": path}, **LISTENER, SIP__ENABLED="false") as started:
        yield started


def captions(running: Worker, port: str) -> connect:
    number = running.media_port if port == "media" else running.http_port
    return connect(f"ws://127.0.0.1:{number}/captions", subprotocols=["captions"], compression=None)  # type: ignore[list-item]


async def lines(socket: ClientConnection) -> list[str]:
    """All until the close."""
    found = []
    async with timeout(TIMEOUT_S):
        try:
            while True:
                found.append(str(await socket.recv()))
        except ConnectionClosed:
            return found


@pytest.mark.parametrize("port", ["media", "http"])
async def test_the_example_captions_what_is_said(running: Worker, port: str) -> None:
    before = {call["call_id"] for call in running.calls()}
    async with captions(running, port) as socket:
        assert socket.subprotocol == "captions"
        await socket.send("language en")
        reading = asyncio.create_task(lines(socket))
        await send(socket, speech("pcm_s16le", 16000), speed=0, bytes_per_s=32000)
        await socket.send("end")
        heard = await reading
    assert socket.close_code == 1000 and socket.close_reason == "finalized"
    (call,) = [each for each in running.calls() if each["call_id"] not in before]
    finals = check_story(running.events(call["call_id"]))
    assert finals and [line for line in heard if line[0] == "="] == [f"= {final['text']}" for final in finals]
    assert {line[0] for line in heard} <= {"=", "~"} and call["source"] == "websocket" and call["reason"] == "hangup"


async def test_the_base_answers_for_the_example(running: Worker) -> None:
    """What is wrong, out of place or too early is told in the dialect's own words, and the session goes on."""
    async with captions(running, "media") as socket:
        for message in ("speak up", "language 7", "language xx"):
            await socket.send(message)
        async with timeout(TIMEOUT_S):
            heard = [str(await socket.recv()) for _ in range(3)]
        assert heard[:2] == ["! 'speak' is neither `language` nor `end`", "! a language is a code such as `de`"]
        assert heard[2].startswith("! the engine does not know the language 'xx'")
        await socket.send(bytes(3200))
        await socket.send("language en")
        async with timeout(TIMEOUT_S):
            assert str(await socket.recv()) == "! Language is not taken now"
        await socket.send("end")
        await lines(socket)
        assert socket.close_code == 1000


async def test_who_says_nothing_is_let_go_without_a_call(running: Worker) -> None:
    async with captions(running, "media") as socket:
        await socket.send("end")
        assert await lines(socket) == [] and (socket.close_code, socket.close_reason) == (1000, "no audio came")


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    (module,) = [text for kind, text in blocks if kind == "python"]
    assert module == (EXAMPLE / "captions_dialect.py").read_text(encoding="utf-8")
    assert module.count("\n") <= LINES
    (offer,) = [text for kind, text in blocks if kind == "toml"]
    assert offer in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")


def test_a_dialect_that_cannot_be_used_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install(EXAMPLE, tmp_path)
    (site / "captions_dialect.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), LISTENER_PATH["PYTHONPATH"]]))
    done = command("serve", **LISTENER, SIP__ENABLED="false", DATA_DIR=str(tmp_path / "data"))
    why = "the dialect cannot be imported (RuntimeError: no licence)"
    assert done.returncode == 2 and f"mediaworker.dialects = 'captions_dialect:CaptionsSession': {why}" in done.stderr
