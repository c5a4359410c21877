"""A phone that talks to the worker through Asterisk holds, resumes and hands the worker on to somebody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lab.asterisk.dialled import dialled, extension, wait_ended, wait_said
from lab.asterisk.pbx import ADDRESS, Asterisk
from lab.events.story import check_story
from lab.patience import until
from lab.sip import softphone
from lab.worker.calls import said
from lab.worker.peers import Worker
from lab.worker.qwen import SAID


@pytest.mark.parametrize(
    ("name", "peer"), [("alice", "worker-ulaw"), ("alice", "worker-hold"), ("carol", "worker-direct")]
)
def test_hold_and_resume(asterisk: Asterisk, listening: Worker, tmp_path: Path, name: str, peer: str) -> None:
    """With music, of which the worker is told nothing, or as a re-INVITE; the call goes on after it in either case."""
    with extension(asterisk, tmp_path, name, again_s=12) as caller:
        call_id = dialled(asterisk, listening, caller, peer)
        wait_said(listening, call_id, SAID["customer"])
        caller.do("hold")
        time.sleep(3)
        caller.resume()
        wait_said(listening, call_id, SAID["customer"] * 2)
        caller.do("hangup")
        events = wait_ended(listening, call_id)
    held = [event["type"] for event in events if event["type"] in ("call.held", "call.resumed")]
    assert held == (["call.held", "call.resumed"] if peer == "worker-hold" else [])
    assert 2000 < events[-2]["hold_ms"] < 8000 if held else events[-2]["hold_ms"] == 0
    answers = asterisk.messages("SIP/2.0 200 OK", events[0]["external_id"], "a=recvonly")
    assert len(answers) == len(held) // 2
    assert events[-1]["reason"] == "hangup"


def test_a_blind_transfer_to_an_announcement(asterisk: Asterisk, listening: Worker, tmp_path: Path) -> None:
    """The phone sends REFER; for the worker it is the same call, with somebody else's words."""
    with extension(asterisk, tmp_path, "alice") as alice:
        call_id = dialled(asterisk, listening, alice, "worker-ulaw")
        wait_said(listening, call_id, SAID["customer"])
        alice.do("transfer", f"sip:play-agent@{ADDRESS}:{asterisk.sip_port}")
        wait_said(listening, call_id, SAID["customer"] + SAID["agent"])
        wait_ended(listening, call_id)


@pytest.mark.parametrize("attended", [False, True])
def test_a_transfer_to_another_phone(asterisk: Asterisk, listening: Worker, tmp_path: Path, attended: bool) -> None:
    with (
        extension(asterisk, tmp_path, "alice") as alice,
        extension(asterisk, tmp_path, "bob", registers=True, says="agent") as bob,
    ):
        call_id = dialled(asterisk, listening, alice, "worker-ulaw")
        wait_said(listening, call_id, SAID["customer"])
        if attended:
            for key in "*2":
                alice.do("sndcode", key)
            time.sleep(3)
            for key in "201":
                alice.do("sndcode", key)
            until(lambda: "established" in bob.log(), 20, "bob has answered")
            alice.do("hangup")
        else:
            alice.do("transfer", f"sip:201@{ADDRESS}:{asterisk.sip_port}")
        wait_said(listening, call_id, SAID["customer"] + SAID["agent"])
        bob.do("hangup")
        finals = check_story(wait_ended(listening, call_id))
    assert {final["role"] for final in finals} == {"customer"}, "a role is of the call, and is said at its start"


def test_audio_that_goes_past_asterisk_and_comes_back(asterisk: Asterisk, listening: Worker, tmp_path: Path) -> None:
    """Direct media: re-INVITEs send the worker's stream to the phone, and back to Asterisk after a transfer."""
    with extension(asterisk, tmp_path, "carol", again_s=1) as carol:
        call_id = dialled(asterisk, listening, carol, "worker-direct")
        wait_said(listening, call_id, SAID["customer"] * 2)
        carol.do("transfer", f"sip:play-agent@{ADDRESS}:{asterisk.sip_port}")
        wait_said(listening, call_id, SAID["customer"] * 2 + SAID["agent"])
        events = wait_ended(listening, call_id)
    external_id = events[0]["external_id"]
    offers = asterisk.messages(f"INVITE sip:worker@{ADDRESS}:{listening.sip_port}", external_id, "v=0")
    ports = [int(offer.split("m=audio ", 1)[1].split(" ", 1)[0]) for offer in offers]
    assert len(ports) >= 3 and ports[0] == ports[-1], ports
    assert any(port in softphone.RTP_PORTS for port in ports), ports
    assert events[-1]["legs"][0]["lost"] == 0


def test_the_worker_listens_to_two_who_talk(asterisk: Asterisk, listening: Worker, tmp_path: Path) -> None:
    """By ChanSpy: a SIP call for each side, with its role, and one header that joins them in one call."""
    with (
        extension(asterisk, tmp_path, "bob", registers=True, says="agent"),
        extension(asterisk, tmp_path, "alice") as alice,
    ):
        call_id = dialled(asterisk, listening, alice, "301")
        until(lambda: len(said(listening, call_id)) == 4, 40, "what both say")
        alice.do("hangup")
        events = wait_ended(listening, call_id)
    finals = check_story(events)
    heard = {role: [final["text"] for final in finals if final["role"] == role] for role in ("customer", "agent")}
    assert heard == {role: SAID[role] for role in heard}
    assert {final["leg"] for final in finals} == {"main", "main-2"} and events[0]["custom"]["x-talk"]
    assert sum(call["started_at"] >= events[0]["time"] for call in listening.calls()) == 1
