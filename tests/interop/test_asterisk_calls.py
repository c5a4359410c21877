"""Asterisk calls a registered worker: words, who speaks, digits, codecs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lab.asterisk.calls import heard
from lab.asterisk.pbx import Asterisk
from lab.events.story import check_story
from lab.patience import until
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID
from lab.worker.readiness import ready


@pytest.mark.parametrize(
    ("peer", "codec"),
    [("worker-ulaw", "PCMU"), ("worker-alaw", "PCMA"), ("worker-g722", "G722"), ("worker-opus", "opus")],
)
def test_what_asterisk_plays_is_read_word_for_word(
    asterisk: Asterisk, listening: Worker, peer: str, codec: str
) -> None:
    events = heard(asterisk, listening, peer, "customer")
    finals = check_story(events)
    assert [final["text"] for final in finals] == SAID["customer"]
    assert {final["role"] for final in finals} == {"customer"}, "from the header that the dialplan adds"
    started, ended = events[0], events[-1]
    assert [(leg["leg"], leg["role"], leg["codec"]) for leg in started["legs"]] == [("main", "customer", codec)]
    assert (started["source"], started["from"], started["custom"]) == ("sip", "2001", {"x-queue": "support"})
    assert ended["reason"] == "hangup"
    assert (ended["legs"][0]["lost"], ended["legs"][0]["late"]) == (0, 0)
    assert asterisk.dialled().startswith("ANSWER")


def test_one_contact_takes_several_calls_at_once(asterisk: Asterisk, listening: Worker) -> None:
    known = {call["call_id"] for call in listening.calls()}
    says = ["customer", "agent"] * 3
    for say in says:
        asterisk.call("worker-ulaw", say)
    ended = listening.wait_ended(len(known) + len(says))
    stories = [check_story(listening.events(call["call_id"])) for call in ended if call["call_id"] not in known]
    texts = sorted([final["text"] for final in finals] for finals in stories)
    assert texts == sorted(SAID[say] for say in says)
    times = [(call["started_at"], call["ended_at"]) for call in ended if call["call_id"] not in known]
    assert max(start for start, _ in times) < min(end for _, end in times), "at once"


@pytest.mark.parametrize(
    ("peer", "codec"),
    [("worker-ulaw", "PCMU"), ("worker-g722", "G722"), ("worker-opus", "opus"), ("worker-info", "PCMU")],
)
def test_digits_that_asterisk_sends(asterisk: Asterisk, listening: Worker, peer: str, codec: str) -> None:
    """By RFC 4733, and by SIP INFO; once each."""
    events = heard(asterisk, listening, peer, "keys")
    digits = [event for event in events if event["type"] == "dtmf"]
    assert [event["digit"] for event in digits] == list("159#")
    assert all(100 <= event["duration_ms"] <= 300 for event in digits)
    assert events[0]["legs"][0]["codec"] == codec
    by_info = len(asterisk.messages("INFO sip:", events[0]["external_id"], "dtmf-relay"))
    assert by_info == (4 if peer == "worker-info" else 0)


def test_a_trunk_needs_no_registration(asterisk: Asterisk, tmp_path: Path) -> None:
    with worker(tmp_path, **QWEN, ASR__PRELOAD="true", SIP__PORT=str(asterisk.trunk_port)) as trunk:
        until(lambda: ready(trunk), 60)
        until(lambda: "Avail" in asterisk.contact("trunk"), 20, "an answer to OPTIONS")
        events = heard(asterisk, trunk, "0800123", "customer", "phones")
    assert [final["text"] for final in check_story(events)] == SAID["customer"]
    assert events[0]["to"] == "0800123"


def test_asterisk_hears_that_a_worker_is_full_or_going(asterisk: Asterisk, tmp_path: Path) -> None:
    options = {"SIP__MAX_CALLS": "1", "SIP__PORT": str(asterisk.trunk_port), "SHUTDOWN_S": "20"}
    with worker(tmp_path, **QWEN, **options) as full:
        until(lambda: "Avail" in asterisk.contact("trunk"), 20, "an answer to OPTIONS")
        asterisk.call("010", "stay")
        until(lambda: len(full.calls()) == 1)
        asterisk.call("020", "stay")
        assert until(asterisk.dialled) == "BUSY 17"
        full.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in full.log.read_text())
        asterisk.call("030", "stay")
        assert until(asterisk.dialled) == "CONGESTION 34"
        assert len(asterisk.channels()) > 1, "the first call goes on"
        asterisk.cli("channel request hangup all")


@pytest.mark.timeout(180)
def test_a_session_timer_is_kept(asterisk: Asterisk, listening: Worker) -> None:
    """90 s, the shortest that RFC 4028 allows: the refresh comes in the pause."""
    events = heard(asterisk, listening, "worker-timers", "later")
    finals = check_story(events)
    assert [final["text"] for final in finals] == SAID["agent"] + SAID["customer"]
    timed = asterisk.messages(events[0]["external_id"], "Session-Expires: 90")
    assert [message.split("\n", 1)[0].split(" sip:")[0] for message in timed] == [
        "INVITE",
        "SIP/2.0 200 OK",
        "UPDATE",
        "SIP/2.0 200 OK",
    ]
