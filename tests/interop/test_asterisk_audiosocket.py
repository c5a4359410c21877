"""Asterisk's AudioSocket, by its application and by its channel, against a worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.asterisk.audiosocket import check_heard, hold
from lab.asterisk.calls import heard
from lab.asterisk.dialled import dialled, extension, wait_ended, wait_said
from lab.asterisk.pbx import Asterisk
from lab.patience import until
from lab.worker.peers import Worker
from lab.worker.qwen import SAID

APPLICATION, CHANNEL = "100", "101"


def uuid_of(asterisk: Asterisk, number: str) -> str:
    """With which the last call to an extension has gone out."""
    line = rf"Executing \[{number}@transcribe:\d\] (?:AudioSocket|Dial)\(.*?([0-9a-f]{{8}}(?:-[0-9a-f]{{4,12}}){{4}})"
    return str(re.findall(line, asterisk.log())[-1])


def test_what_asterisk_plays_is_read_word_for_word(asterisk: Asterisk, streamed: Worker) -> None:
    """Three calls at once; 102 is 16 kHz."""
    says = {APPLICATION: "customer", CHANNEL: "agent", "102": "customer"}
    known = {call["call_id"] for call in streamed.calls()}
    for number, say in says.items():
        asterisk.call(number, say, "transcribe")
    ended = [call for call in streamed.wait_ended(len(known) + len(says)) if call["call_id"] not in known]
    said = {call["external_id"]: streamed.events(call["call_id"]) for call in ended}
    for number, say in says.items():
        events = said[uuid_of(asterisk, number)]
        check_heard(events, SAID[say])
        assert events[-1]["reason"] == "hangup"
    assert max(call["started_at"] for call in ended) < min(call["ended_at"] for call in ended), "at once"


def test_a_phone_is_read_word_for_word(asterisk: Asterisk, streamed: Worker, tmp_path: Path) -> None:
    """Its µ-law becomes linear."""
    with extension(asterisk, tmp_path, "alice") as alice:
        call_id = dialled(asterisk, streamed, alice, APPLICATION)
        wait_said(streamed, call_id, SAID["customer"])
        alice.do("hangup")
        check_heard(wait_ended(streamed, call_id), SAID["customer"])


def test_a_phone_that_holds(asterisk: Asterisk, streamed: Worker, tmp_path: Path) -> None:
    """Nothing comes from Asterisk meanwhile: a channel of that kind is played no music."""
    with extension(asterisk, tmp_path, "alice", again_s=9) as alice:
        call_id = dialled(asterisk, streamed, alice, CHANNEL)
        wait_said(streamed, call_id, SAID["customer"])
        hold(asterisk, alice)
        heard = streamed.metric("mediaworker_audiosocket_frames_total")
        sent = streamed.metric("mediaworker_audiosocket_silence_total")
        until(lambda: streamed.metric("mediaworker_audiosocket_silence_total") > sent + 50, 20, "a second")
        assert streamed.metric("mediaworker_audiosocket_frames_total") < heard + 10
        alice.resume()
        wait_said(streamed, call_id, SAID["customer"] * 2)
        alice.do("hangup")
        events = wait_ended(streamed, call_id)
    check_heard(events, SAID["customer"] * 2)
    assert "call.held" not in [event["type"] for event in events], "nobody tells the worker"


def test_a_caller_who_says_nothing_is_kept(asterisk: Asterisk, streamed: Worker) -> None:
    """The application gives up when nothing comes from the other side for two seconds either; silence is something."""
    known = {call["call_id"] for call in streamed.calls()}
    sent = streamed.metric("mediaworker_audiosocket_silence_total")
    asterisk.call(APPLICATION, "stay", "transcribe")
    (call,) = until(lambda: [each for each in streamed.calls() if each["call_id"] not in known], 20, "a call")
    until(lambda: streamed.metric("mediaworker_audiosocket_silence_total") > sent + 150, 20, "three seconds")
    assert [each["ended_at"] for each in streamed.calls() if each["call_id"] == call["call_id"]] == [None]
    asterisk.cli("channel request hangup all")
    assert wait_ended(streamed, call["call_id"])[-1]["reason"] == "hangup"


@pytest.mark.parametrize("number", [APPLICATION, CHANNEL])
def test_digits(asterisk: Asterisk, streamed: Worker, number: str) -> None:
    events = heard(asterisk, streamed, number, "keys", "transcribe")
    assert [event["digit"] for event in events if event["type"] == "dtmf"] == list("159#")


@pytest.mark.parametrize("number", [APPLICATION, CHANNEL])
def test_the_worker_hangs_up(asterisk: Asterisk, streamed: Worker, number: str) -> None:
    """The dialplan goes on behind the application; what dials has been answered, and is over."""
    known = {call["call_id"] for call in streamed.calls()}
    asterisk.call(number, "stay", "transcribe")
    (call,) = until(lambda: [each for each in streamed.calls() if each["call_id"] not in known], 20, "a call")
    streamed.hang_up(call["call_id"])
    assert until(asterisk.dialled) == ("16" if number == APPLICATION else "ANSWER 16")
    assert asterisk.went_on(number) == (number == APPLICATION)
    assert wait_ended(streamed, call["call_id"])[-1]["reason"] == "api"


def test_a_full_worker(asterisk: Asterisk, streamed: Worker) -> None:
    """It closes at once. For the application nothing has happened; what dials takes the connection for an answer."""
    known = len(streamed.calls())
    for _ in range(5):
        asterisk.call(CHANNEL, "stay", "transcribe")
    until(lambda: len(streamed.calls()) == known + 5)
    for number, outcome in ((APPLICATION, "16"), (CHANNEL, "ANSWER 16")):
        asterisk.call(number, "stay", "transcribe")
        assert until(asterisk.dialled) == outcome
        assert asterisk.went_on(number) == (number == APPLICATION)
    assert streamed.metric("mediaworker_audiosocket_refused_total") == 2
    assert len(streamed.calls()) == known + 5
    asterisk.cli("channel request hangup all")
    streamed.wait_ended(known + 5)
