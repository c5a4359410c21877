"""A softphone calls the worker itself, without a PBX between."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.asterisk.pbx import ADDRESS
from lab.events.story import check_story
from lab.patience import until
from lab.sip.softphone import phone
from lab.worker.calls import said
from lab.worker.peers import Worker
from lab.worker.qwen import SAID


@pytest.mark.parametrize("codec", ["PCMU", "PCMA", "G722", "opus"])
def test_what_a_softphone_says_is_read_word_for_word(
    system: Path, listening: Worker, tmp_path: Path, codec: str
) -> None:
    known = {call["call_id"] for call in listening.calls()}
    with phone(system, tmp_path / "phone", f"sip:ann@{ADDRESS}", codec=codec) as ann:
        ann.do("dial", f"sip:worker@{ADDRESS}:{listening.sip_port}")
        (call,) = until(lambda: [each for each in listening.calls() if each["call_id"] not in known])
        until(lambda: len(said(listening, call["call_id"])) == len(SAID["customer"]), 40, "its words")
        ann.do("hangup")
        listening.wait_ended(len(known) + 1)
    events = listening.events(call["call_id"])
    finals = check_story(events)
    assert [final["text"] for final in finals] == SAID["customer"]
    assert (events[0]["from"], events[0]["to"], events[0]["legs"][0]["codec"]) == ("ann", "worker", codec)
    assert (events[-1]["reason"], events[-1]["legs"][0]["lost"]) == ("hangup", 0)


@pytest.mark.parametrize("account", ["regint=0", "regint=0;mediaenc=srtp-mand"], ids=["plain", "encrypted"])
def test_a_softphone_holds_resumes_and_dials(system: Path, listening: Worker, tmp_path: Path, account: str) -> None:
    """What is said after a hold is read as well; `srtp-mand` has no other call than an encrypted one."""
    known = {call["call_id"] for call in listening.calls()}
    with phone(system, tmp_path / "phone", f"sip:ann@{ADDRESS}", account=account, again_s=6.0) as ann:
        ann.do("dial", f"sip:worker@{ADDRESS}:{listening.sip_port}")
        (call,) = until(lambda: [each for each in listening.calls() if each["call_id"] not in known])
        until(lambda: len(said(listening, call["call_id"])) == len(SAID["customer"]), 40, "its words")
        ann.do("hold")
        until(lambda: "call.held" in kinds(listening, call["call_id"]), 10, "the hold")
        ann.resume()
        until(lambda: "call.resumed" in kinds(listening, call["call_id"]), 10, "the end of the hold")
        ann.do("sndcode", "5")
        until(lambda: "dtmf" in kinds(listening, call["call_id"]), 10, "the digit")
        until(lambda: len(said(listening, call["call_id"])) >= 2 * len(SAID["customer"]), 40, "what it says again")
        ann.do("hangup")
        listening.wait_ended(len(known) + 1)
    events = listening.events(call["call_id"])
    check_story(events)
    assert [event["digit"] for event in events if event["type"] == "dtmf"] == ["5"]
    assert events[-1]["reason"] == "hangup"


def kinds(worker: Worker, call_id: str) -> set[str]:
    return {event["type"] for event in worker.events(call_id)}
