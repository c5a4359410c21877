"""Asterisk's WebSocket channels (chan_websocket) connect to a worker."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lab.asterisk.audiosocket import hold
from lab.asterisk.calls import heard
from lab.asterisk.dialled import dialled, extension, wait_ended, wait_said
from lab.asterisk.pbx import KEY, Asterisk
from lab.events.story import check_story
from lab.network.authority import Authority
from lab.patience import until
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID
from lab.worker.readiness import ready


def texts(events: list[dict[str, Any]]) -> list[str]:
    finals = check_story(events)
    assert events[0]["source"] == "asterisk-ws" and {final["lost_ms"] for final in finals} <= {0}
    return [final["text"] for final in finals]


def test_a_phone_is_read_word_for_word(asterisk: Asterisk, streamed: Worker, tmp_path: Path) -> None:
    """As docs/how-to/pbx/asterisk.md has it: linear 16 kHz, variables that say what the call is. It outlives a hold."""
    with extension(asterisk, tmp_path, "alice", again_s=7) as alice:
        call_id = dialled(asterisk, streamed, alice, "110")
        wait_said(streamed, call_id, SAID["customer"])
        hold(asterisk, alice)
        alice.resume()
        wait_said(streamed, call_id, SAID["customer"] * 2)
        alice.do("hangup")
        events = wait_ended(streamed, call_id)
    assert texts(events) == SAID["customer"] * 2
    started = events[0]
    assert [(leg["leg"], leg["role"], leg["codec"]) for leg in started["legs"]] == [("customer", "customer", "L16")]
    assert (started["from"], events[-1]["reason"]) == ("alice", "hangup")
    assert started["custom"]["channel"].startswith("WebSocket/mediaworker/")
    assert started["custom"]["MEDIA_WEBSOCKET_OPTIMAL_FRAME_SIZE"] == "640", "16 kHz"
    assert f"__MEDIAWORKER_CALL={started['external_id']}" in asterisk.log()


def test_every_form_at_once(asterisk: Asterisk, streamed: Worker) -> None:
    """Codec by codec, control messages as text and as JSON; answered by the worker (112), one way (113), by the other
    port (114)."""
    # The size of a frame is told in a variable, and variables come as JSON only.
    forms = {"111": ("PCMU", None), "112": ("PCMA", "160"), "113": ("L16", None), "114": ("L16", "960")}
    known = {call["call_id"] for call in streamed.calls()}
    for number in forms:
        asterisk.call(number, "customer", "transcribe")
    ended = streamed.wait_ended(len(known) + len(forms))
    calls = [streamed.events(call["call_id"]) for call in ended if call["call_id"] not in known]
    assert [texts(events) for events in calls] == [SAID["customer"]] * len(forms)
    found = [
        (events[0]["legs"][0]["codec"], events[0]["custom"].get("MEDIA_WEBSOCKET_OPTIMAL_FRAME_SIZE"))
        for events in calls
    ]
    assert sorted(found, key=str) == sorted(forms.values(), key=str)
    assert {events[0]["legs"][0]["leg"] for events in calls} == {"main"}
    assert all(events[0]["external_id"] == events[0]["custom"]["channel_id"] for events in calls)
    assert {events[-1]["reason"] for events in calls} == {"hangup"}


@pytest.mark.parametrize("number", ["110", "111"])
def test_digits(asterisk: Asterisk, streamed: Worker, number: str) -> None:
    """As JSON, and as text."""
    events = heard(asterisk, streamed, number, "keys", "transcribe")
    assert [event["digit"] for event in events if event["type"] == "dtmf"] == list("159#")


@pytest.mark.parametrize("number", ["110", "111"])
def test_the_worker_hangs_up(asterisk: Asterisk, streamed: Worker, number: str) -> None:
    known = {call["call_id"] for call in streamed.calls()}
    asterisk.call(number, "stay", "transcribe")
    (call,) = until(lambda: [each for each in streamed.calls() if each["call_id"] not in known], 20, "a call")
    streamed.hang_up(call["call_id"])
    assert until(asterisk.dialled) == "ANSWER 16"
    assert wait_ended(streamed, call["call_id"])[-1]["reason"] == "api"


def test_a_full_worker_is_no_answer(asterisk: Asterisk, streamed: Worker) -> None:
    """Asterisk tries five times, and its dialplan goes on."""
    known = len(streamed.calls())
    for _ in range(5):
        asterisk.call("110", "stay", "transcribe")
    until(lambda: len(streamed.calls()) == known + 5)
    asterisk.call("110", "stay", "transcribe")
    assert until(asterisk.dialled).startswith("CHANUNAVAIL")
    assert asterisk.went_on("110")
    assert len(streamed.calls()) == known + 5
    asterisk.cli("channel request hangup all")
    streamed.wait_ended(known + 5)


@pytest.mark.timeout(150)
def test_a_silent_channel_says_that_it_is_there(asterisk: Asterisk, streamed: Worker) -> None:
    """After a minute without audio the worker asks, and the call goes on."""
    known = {call["call_id"] for call in streamed.calls()}
    probes, events = (streamed.metric(f"mediaworker_asterisk_{name}_total") for name in ("probes", "events"))
    asterisk.call("110", "stay", "transcribe")
    (call,) = until(lambda: [each for each in streamed.calls() if each["call_id"] not in known], 20, "a call")
    until(lambda: streamed.metric("mediaworker_asterisk_probes_total") == probes + 1, 90)
    until(lambda: streamed.metric("mediaworker_asterisk_events_total") == events + 2, 10, "MEDIA_START and STATUS")
    assert [each["ended_at"] for each in streamed.calls() if each["call_id"] == call["call_id"]] == [None]
    asterisk.cli("channel request hangup all")
    assert wait_ended(streamed, call["call_id"])[-1]["reason"] == "hangup"


# -- TLS and the key ---------------------------------------------------------------------------------------------------


def guarded(asterisk: Asterisk, authority: Authority, key: str) -> dict[str, str]:
    pair = authority.issue("media", "DNS:localhost")
    return {
        "MEDIA__PORT": str(asterisk.media_tls_port),
        "MEDIA__TLS_CERT": str(pair.cert),
        "MEDIA__TLS_KEY": str(pair.key),
        "AUTH__API_KEYS": f'[{{name = "pbx", key = "{key}", scopes = ["stream", "events"]}}]',
        "SIP__ENABLED": "false",
    }


def call_ids(worker: Worker) -> list[str]:
    """Who may ask the worker holds a key; its store is looked at instead."""
    with contextlib.closing(sqlite3.connect(worker.data_dir / "events.sqlite3")) as store:
        return [row[0] for row in store.execute("SELECT DISTINCT call_id FROM events WHERE json LIKE '%call.started%'")]


def test_words_by_tls_and_with_a_key(asterisk: Asterisk, tmp_path: Path) -> None:
    with worker(tmp_path, **QWEN, ASR__PRELOAD="true", **guarded(asterisk, asterisk.authority, KEY)) as trusting:
        until(lambda: ready(trusting), 60)
        asterisk.call("115", "customer", "transcribe")
        (call_id,) = until(lambda: call_ids(trusting), 20, "a call")
        until(lambda: trusting.events(call_id)[-1]["type"] == "call.ended", 40)
        events = trusting.events(call_id)
    assert texts(events) == SAID["customer"]


@pytest.mark.parametrize("wrong", ["key", "authority"])
def test_a_wrong_key_or_certificate_is_no_answer(asterisk: Asterisk, tmp_path: Path, wrong: str) -> None:
    authority = Authority(tmp_path, "other") if wrong == "authority" else asterisk.authority
    key = "another-key-than-asterisk-has" if wrong == "key" else KEY
    with worker(tmp_path, **guarded(asterisk, authority, key)) as wary:
        asterisk.call("115", "stay", "transcribe")
        assert until(asterisk.dialled).startswith("CHANUNAVAIL")
        assert not call_ids(wary)
        assert ("API key" in wary.log.read_text()) == (wrong == "key")
        assert "did not verify" in asterisk.log() or wrong == "key"
