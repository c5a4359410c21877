"""Real calls with Qwen3-ASR: the tiny model reads digits, so words are checked, live and in the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from audio import Codec
from lab.engine.listener import LISTENER, LISTENER_PATH, words
from lab.engine.offline import packets, utterances
from lab.events.story import check_story
from lab.patience import seconds, timeout, until
from lab.worker.calls import children, start
from lab.worker.peers import TINY, Worker, command, worker
from lab.worker.qwen import QWEN, SAID, file


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Partials by one model, finals by the other, and both in 8 bits."""
    options = QWEN | {"ASR__PARTIALS_MODEL": str(TINY), "QWEN__EXPERIMENTAL": '["int8"]'}
    # The caller shares the processor with other tests: a packet that comes late is not lost.
    with worker(tmp_path_factory.mktemp("worker"), RTP__JITTER_MS="1000", **options) as started:
        # A call before: it starts the inference process, which stays.
        assert command("stream", started.twilio, "--play", str(file("agent"))).returncode == 0
        (call,) = started.wait_ended(1)
        finals = check_story(started.events(call["call_id"]))
        assert [final["text"] for final in finals] == SAID["agent"], "kept until the model was loaded"
        yield started


async def test_a_twilio_stream_of_two_tracks_word_for_word(running: Worker) -> None:
    shown: dict[str, list[dict[str, Any]]] = {}
    finals: list[dict[str, Any]] = []
    async with connect(f"ws://127.0.0.1:{running.http_port}/v1/events?call=*", max_size=None) as socket:
        await socket.recv()
        tracks = ("--play", str(file("customer")), "--play-outbound", str(file("agent")))
        played = asyncio.create_task(asyncio.to_thread(command, "stream", running.twilio, *tracks))
        async with timeout(90):
            while (event := json.loads(await socket.recv()))["type"] != "call.ended":
                if event["type"] == "transcript.partial":
                    shown.setdefault(event["utterance_id"], []).append(event)
                elif event["type"] == "transcript.final":
                    finals.append(event)
        assert (await played).returncode == 0
    for leg, name in (("inbound", "customer"), ("outbound", "agent")):
        mine = [final for final in finals if final["leg"] == leg]
        assert [final["text"] for final in mine] == SAID[name]
        assert {final["language"] for final in mine} == {"en"}
    for final in finals:
        partials = shown.get(final["utterance_id"], [])
        assert partials, "words while they are said"
        for before, after in zip(partials, [*partials[1:], final], strict=True):
            assert after["text"].startswith(before["text"]), "a word that has been shown stays"
            assert after["stable_chars"] >= before["stable_chars"]


def test_a_sip_call_word_for_word(running: Worker) -> None:
    before = {call["call_id"] for call in running.calls()}
    done = command("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(file("long")))
    assert done.returncode == 0, done.stderr
    (call,) = [each for each in running.wait_ended(len(before) + 1) if each["call_id"] not in before]
    finals = check_story(running.events(call["call_id"]))
    assert [final["text"] for final in finals] == [text.strip() for text in SAID["long"]]


def test_a_kill_in_mid_utterance_loses_no_word(tmp_path: Path) -> None:
    """Of an engine that has another word for other audio, with a process that starts in a moment."""
    codes = file("customer").read_bytes()
    expected = [" ".join(words(each.audio)) for each in utterances(Codec.PCMU, packets(codes), recognise=False)]
    with worker(tmp_path, LISTENER_PATH, **LISTENER, SIP__ENABLED="false", MEDIA__SILENCE_AFTER_S="30") as running:
        streaming = start("stream", running.twilio, "--play", str(file("customer")))
        until(lambda: running.metric("mediaworker_transcripts_utterances_total") == 1)
        (engine,) = until(lambda: children(running.process.pid))
        os.kill(int(engine), signal.SIGKILL)
        assert streaming.wait(seconds(90)) == 0
        (call,) = running.wait_ended(1, 90)
        finals = check_story(running.events(call["call_id"]))
        assert [final["text"] for final in finals] == expected and len(expected) == len(SAID["customer"])
        assert running.metric("mediaworker_asr_crashes_total") == 1


async def test_what_must_not_be_seen_is_nowhere(tmp_path: Path) -> None:
    """A number that is said and keyed: in no event, no answer, no log, no metric and not on the disk. What is seen has
    its numbers in digits, in calls and in a file."""
    rules = tmp_path / "alerts.toml"
    rules.write_text('[[rules]]\nname = "nine"\nphrases = ["nine"]\nrole = "customer"\n')
    privacy = {
        "PRIVACY__PATTERNS": '[{name = "pin", pattern = "four seven one two"}]',
        "PRIVACY__MASK_AFTER_PHRASES": '["zero six"]', "PRIVACY__MASK_AFTER_DIGITS": '["*9"]', "LOG__LEVEL": "debug",
        "ALERTS__FILE": str(rules), "TEXT__NUMERALS": "digits",
    }  # fmt: skip
    customer = ("--play", str(file("customer")))
    seen: list[str] = []
    with worker(tmp_path, **QWEN, **privacy) as started:

        async def call(*arguments: str) -> list[dict[str, Any]]:
            before = {each["call_id"] for each in started.calls()}
            assert (await asyncio.to_thread(command, "stream", started.twilio, *arguments)).returncode == 0
            ended = await asyncio.to_thread(started.wait_ended, len(before) + 1)
            (mine,) = [each["call_id"] for each in ended if each["call_id"] not in before]
            seen.append(json.dumps(started.get(f"/v1/calls/{mine}/transcript")))
            return started.events(mine)

        async with connect(f"ws://127.0.0.1:{started.http_port}/v1/events?call=*", max_size=None) as socket:
            plain = await call(*customer)
            keyed = await call(*customer, "--connect", "--dtmf", "7*9317")
            both = await call(*customer, "--play-outbound", str(file("agent")))
            async with timeout(30):
                while (message := await socket.recv()) and json.loads(message)["call_id"] != both[0]["call_id"]:
                    seen.append(str(message))
        finals = check_story(plain)
        assert [final["text"] for final in finals] == ["[pin]", "90538"]
        assert [final.get("spoken", "") for final in finals] == ["", "nine oh five three eight"]
        assert [each["kind"] for each in finals[0]["redactions"]] == ["pin"] and "redactions" not in finals[1]
        (alert,) = [event for event in plain if event["type"] == "alert"]
        assert (alert["rule"], alert["match"], alert["text"]) == ("nine", "nine", finals[1]["spoken"])
        assert plain.index(alert) == plain.index(finals[1]) + 1
        digits = [(event["digit"], event.get("masked", False)) for event in keyed if event["type"] == "dtmf"]
        assert digits == [("7", False), ("*", False), ("9", False), ("X", True), ("X", True), ("X", True)]
        assert check_story(keyed)[-1]["text"] == "[digits]", "said behind the keys"
        texts = [final["text"] for final in check_story(both)]
        assert "06 [digits]" in texts and texts[-1] == "[digits]", "the other's words begin it"
        assert started.metric("mediaworker_redactions_total") >= 6
        path, url = file("customer"), f"{started.url}/v1/audio/transcriptions"
        recording, form = {"file": (path.name, path.read_bytes())}, {"response_format": "srt"}
        answer = await asyncio.to_thread(httpx.post, url, files=recording, data=form, timeout=seconds(120))
        assert "4712" in answer.text and "90538" in answer.text, "files are not redacted"
        seen += [started.get("/metrics"), started.log.read_text()]
        seen += [place.read_bytes().decode("latin-1") for place in started.data_dir.rglob("*") if place.is_file()]
    assert sum("call.started" in each for each in seen) > 2, "there was something to look at"
    assert not [each for each in seen if "four seven one" in each or '"4712' in each or '"digit":"3"' in each]
