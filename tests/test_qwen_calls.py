"""Real calls with Qwen3-ASR: the tiny model reads digits, so words are checked, live and in the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from audio import Codec
from config import Settings
from config.settings import Asr
from tests.offline import packets, utterances
from tests.peers import Worker, command, until, worker
from tests.qwen_models import TINY, generate, loaded_tiny, prompts
from tests.story import check_story
from tests.test_end_to_end import children, start

DIGITS = Path(__file__).parent / "data" / "digits"
SAID = {
    "customer": ["four seven one two", "nine oh five three eight"],
    "agent": ["zero six two", "one eight four nine"],
    "long": ["one two three four five six seven eight nine zero " * 2],
}
SETTINGS = Settings(asr=Asr(engine="qwen", model=str(TINY)))
QWEN = {"ASR__ENGINE": "qwen", "ASR__MODEL": str(TINY)}


def file(name: str) -> Path:
    return DIGITS / f"{name}.ulaw"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), **QWEN) as started:
        # A call before: it starts the inference process, which stays.
        assert command("stream", started.twilio, "--play", str(file("agent"))).returncode == 0
        (call,) = started.wait_ended(1)
        finals = check_story(started.events(call["call_id"]))
        assert [final["text"] for final in finals] == SAID["agent"], "kept until the model was loaded"
        yield started


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_is_what_the_library_reads(name: str) -> None:
    """One utterance at a time, without a call: the engine's text, the library's own, and the truth."""
    heard = utterances(Codec.PCMU, packets(file(name).read_bytes()), settings=SETTINGS)
    assert [each.text for each in heard] == [text.strip() for text in SAID[name]]
    model = loaded_tiny()
    for each in heard:
        tokens = generate(model.model, each.audio, prompts(model).build(), 200)
        assert prompts(model).read(tokens, prompts(model).build()) == ("en", each.text)


async def test_a_twilio_stream_of_two_tracks_word_for_word(running: Worker) -> None:
    shown: dict[str, list[dict[str, Any]]] = {}
    finals: list[dict[str, Any]] = []
    async with connect(f"ws://127.0.0.1:{running.http_port}/v1/events?call=*", max_size=None) as socket:
        await socket.recv()
        tracks = ("--play", str(file("customer")), "--play-outbound", str(file("agent")))
        played = asyncio.create_task(asyncio.to_thread(command, "stream", running.twilio, *tracks))
        async with asyncio.timeout(90):
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


def test_a_kill_in_mid_utterance_loses_no_word(running: Worker) -> None:
    before = {call["call_id"] for call in running.calls()}
    utterances = running.metric("mediaworker_transcripts_utterances_total")
    streaming = start("stream", running.twilio, "--play", str(file("customer")))
    until(lambda: running.metric("mediaworker_transcripts_utterances_total") > utterances)
    (engine,) = children(running.process.pid)
    os.kill(int(engine), signal.SIGKILL)
    assert streaming.wait(90) == 0
    (call,) = [each for each in running.wait_ended(len(before) + 1, 90) if each["call_id"] not in before]
    finals = check_story(running.events(call["call_id"]))
    assert [final["text"] for final in finals] == SAID["customer"]
    assert running.metric("mediaworker_asr_crashes_total") == 1


def test_two_models_in_8_bits_word_for_word(tmp_path: Path) -> None:
    """Partials by one, finals by the other, and both narrow."""
    options = {"ASR__PARTIALS_MODEL": str(TINY), "QWEN__QUANTISE": "int8"}
    with worker(tmp_path, **QWEN, **options) as started:
        assert command("stream", started.twilio, "--play", str(file("customer"))).returncode == 0
        (call,) = started.wait_ended(1, 90)
        finals = check_story(started.events(call["call_id"]))
        assert [final["text"] for final in finals] == SAID["customer"]
