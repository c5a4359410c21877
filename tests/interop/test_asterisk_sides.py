"""Two phones talk through Asterisk, and the worker hears each of them apart, as docs/how-to/pbx/asterisk.md has it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from lab.asterisk.audiosocket import check_heard
from lab.asterisk.dialled import dialled, extension, wait_ended
from lab.asterisk.pbx import ADDRESS, PASSWORD, Asterisk
from lab.events.story import check_story
from lab.patience import until
from lab.sip.softphone import Softphone
from lab.worker.calls import said
from lab.worker.peers import ROOT, Worker
from lab.worker.qwen import SAID

BOTH = ("customer", "agent")


@pytest.fixture
def phones(asterisk: Asterisk, tmp_path: Path) -> Iterator[Softphone]:
    """Alice, who is the customer; Bob answers."""
    with (
        extension(asterisk, tmp_path, "bob", registers=True, says="agent", before_s=4),
        extension(asterisk, tmp_path, "alice", before_s=4) as alice,
    ):
        yield alice


def by_role(finals: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {role: [final["text"] for final in finals if final["role"] == role] for role in BOTH}


def check_sides(events: list[dict[str, Any]]) -> None:
    """One call with a leg for each, named by its role, and the words of each on its own."""
    finals = check_story(events)
    assert by_role(finals) == {role: SAID[role] for role in BOTH}
    assert {(final["leg"], final["lost_ms"]) for final in finals} == {(role, 0) for role in BOTH}
    assert {leg["leg"] for leg in events[-1]["legs"]} == set(BOTH)
    assert events[-1]["reason"] == "hangup"


def test_both_sides_by_websocket(asterisk: Asterisk, streamed: Worker, phones: Softphone) -> None:
    call_id = dialled(asterisk, streamed, phones, "401")
    until(lambda: len(said(streamed, call_id)) == 4, 40, "what both say")
    phones.do("hangup")
    check_sides(wait_ended(streamed, call_id))


def test_both_sides_by_audiosocket(asterisk: Asterisk, streamed: Worker, phones: Softphone) -> None:
    """Two calls, told from each other by their UUIDs."""
    known = {call["call_id"] for call in streamed.calls()}
    phones.do("dial", f"sip:501@{ADDRESS}:{asterisk.sip_port}")
    mine = until(lambda: len(found := [c for c in streamed.calls() if c["call_id"] not in known]) == 2 and found)
    until(lambda: all(len(said(streamed, call["call_id"])) == 2 for call in mine), 40, "what both say")
    phones.do("hangup")
    sides = {call["external_id"]: wait_ended(streamed, call["call_id"]) for call in mine}
    for role in BOTH:
        uuid = re.findall(rf'"{role.upper()}=([0-9a-f-]{{36}})"', asterisk.log())[-1]
        check_heard(sides[uuid], SAID[role])


# -- by ARI ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def application(asterisk: Asterisk) -> Iterator[list[dict[str, Any]]]:
    """The application `transcriber` is there; what Asterisk tells it."""
    key = urllib.parse.quote(f"transcriber:{PASSWORD}")
    events: list[dict[str, Any]] = []
    url = f"ws://{ADDRESS}:{asterisk.ari_port}/ari/events?app=transcriber&api_key={key}"
    with connect(url) as socket:

        def listen() -> None:
            with contextlib.suppress(ConnectionClosed):
                events.extend(json.loads(message) for message in socket)

        listener = threading.Thread(target=listen)
        listener.start()
        yield events
    listener.join()


def script(asterisk: Asterisk, folder: Path, name: str) -> Path:
    """As it is to be copied, with the addresses of this machine."""
    page = (ROOT / "docs" / "how-to" / "pbx" / "asterisk.md").read_text()
    (text,) = re.findall(rf"```sh\n(#!/bin/sh -e\n# {name} .*?)```", page, re.DOTALL)
    assert "192.0.2.10:8088" in text and "CHANGE-ME" in text
    text = text.replace("192.0.2.10:8088", f"{ADDRESS}:{asterisk.ari_port}").replace("CHANGE-ME", PASSWORD)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def channel_of(asterisk: Asterisk, name: str) -> str:
    """The unique id of the channel of a phone that talks."""
    found = [channel for channel in asterisk.channels() if channel[0].startswith(f"PJSIP/{name}-")]
    return found[0][-1] if found and found[0][4] == "Up" else ""


def test_both_sides_by_ari(asterisk: Asterisk, streamed: Worker, phones: Softphone, tmp_path: Path) -> None:
    listen, leave = (script(asterisk, tmp_path, f"{name}.sh") for name in ("listen", "leave"))
    known = {call["call_id"] for call in streamed.calls()}
    with application(asterisk) as told:
        phones.do("dial", f"sip:201@{ADDRESS}:{asterisk.sip_port}")
        channels = {
            role: until(lambda name=name: channel_of(asterisk, name), 20, f"{name} talks")
            for role, name in zip(BOTH, ("alice", "bob"), strict=True)
        }
        name = channels["customer"]
        for role, channel in channels.items():
            subprocess.run([listen, channel, role, name], check=True, capture_output=True)
        (call,) = [each for each in streamed.calls() if each["call_id"] not in known]
        assert call["external_id"] == name
        until(lambda: len(said(streamed, call["call_id"])) == 4, 40, "what both say")
        phones.do("hangup")
        for role in BOTH:
            snoop = f"snoop-{role}-{name}"
            until(lambda snoop=snoop: ends(told, snoop), 20, f"the end of {snoop}")
        assert [each["ended_at"] for each in streamed.calls() if each["call_id"] == call["call_id"]] == [None]
        for role in BOTH:
            subprocess.run([leave, role, name], check=True, capture_output=True)
        check_sides(wait_ended(streamed, call["call_id"]))


def ends(told: list[dict[str, Any]], channel: str) -> bool:
    return any(event["type"] == "StasisEnd" and event["channel"]["id"] == channel for event in told)


def test_by_ari_nobody_is_heard_without_an_application(asterisk: Asterisk, streamed: Worker, tmp_path: Path) -> None:
    asterisk.cli("channel originate Local/stay@say extension stay@say")
    channel = until(asterisk.channels, 20)[0][-1]
    command = [script(asterisk, tmp_path, "listen.sh"), channel, "agent", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode and "422" in done.stderr
    asterisk.cli("channel request hangup all")
    until(lambda: all(call["ended_at"] for call in streamed.calls()), 20)
