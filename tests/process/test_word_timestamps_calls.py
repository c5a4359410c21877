"""Real calls whose words get times, by a small aligner: after each final, once, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from asr.engines.aligner import AlignRequest
from audio import Codec
from lab.engine.offline import Expected, packets, utterances
from lab.events.story import check_story
from lab.patience import seconds, timeout, until
from lab.worker.calls import children, start
from lab.worker.peers import ROOT, Worker, command, worker
from lab.worker.qwen import QWEN, SAID, SETTINGS, file

CLIPS = ROOT / "tests" / "data" / "aligned"
ALIGNER = ROOT / "models" / "qwen3-aligner-tiny"
OPTIONS = QWEN | {
    "ASR__WORD_TIMESTAMPS": "true", "ASR__ALIGNER": str(ALIGNER), "ASR__WORDS_WAIT_S": "60", "ASR__PRELOAD": "true",
    "ENDPOINTING__BOT__MIN_SILENCE_MS": "6000",
    "PRIVACY__CARDS": "false",  # twenty digits in a row might be one until they are over
}  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), **OPTIONS) as started:
        until(lambda: started.metric("mediaworker_ready"), 60)
        yield started


def ended(running: Worker, before: int) -> list[dict[str, Any]]:
    """The events of the one call since."""
    return running.events(running.wait_ended(before + 1, 90)[-1]["call_id"])


def words_of(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Leg → its words, those of all its utterances."""
    legs = {event["utterance_id"]: event["leg"] for event in events if event["type"] == "transcript.final"}
    found: dict[str, list[str]] = {}
    for event in events:
        if event["type"] == "transcript.words":
            found.setdefault(legs[event["utterance_id"]], []).extend(word["word"] for word in event["words"])
    return found


def test_every_final_of_a_twilio_stream_gets_its_words(running: Worker) -> None:
    before = len(running.calls())
    tracks = ("--play", str(file("customer")), "--play-outbound", str(file("agent")))
    assert command("stream", running.twilio, *tracks).returncode == 0
    events = ended(running, before)
    finals = check_story(events)
    assert {final["language"] for final in finals} == {"en"}
    assert [event["type"] for event in events].count("transcript.words") == len(finals) == 4
    spoken = {"inbound": " ".join(SAID["customer"]).split(), "outbound": " ".join(SAID["agent"]).split()}
    assert words_of(events) == spoken
    from asr.engines.qwen.aligner import QwenAligner  # torch, in the one process that runs this
    from asr.engines.qwen.model.loader import load_aligner as load

    reference = QwenAligner(load(ALIGNER))
    told = {event["utterance_id"]: event["words"] for event in events if event["type"] == "transcript.words"}
    for leg, name in (("inbound", "customer"), ("outbound", "agent")):
        mine = [final for final in finals if final["leg"] == leg]
        for final, heard in zip(mine, expected(name), strict=True):
            check_times(final, told[final["utterance_id"]], heard, name, reference)


def expected(name: str) -> list[Expected]:
    return utterances(Codec.PCMU, packets(file(name).read_bytes()), settings=SETTINGS)


def check_times(final: dict[str, Any], words: list[dict[str, Any]], heard: Expected, name: str, reference: Any) -> None:
    """Those that the aligner gives the utterance by itself, in the time of the call."""
    (alone,) = reference.align([AlignRequest("PCMU", heard.audio, heard.text, "en")])
    lead_ms = heard.start_ms - file(name).read_bytes().index(heard.audio) // 8
    for word, told in zip(alone, words, strict=True):
        for key, time_ms in (("start_ms", word.start_ms), ("end_ms", word.end_ms)):
            in_call = final["start_ms"] - lead_ms + time_ms
            assert told[key] == min(max(in_call, final["start_ms"]), final["end_ms"])
        assert told["confidence"] == pytest.approx(word.confidence, abs=2e-3)


def test_so_do_those_of_a_sip_call(running: Worker) -> None:
    before = len(running.calls())
    done = command("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(file("long")))
    assert done.returncode == 0, done.stderr
    events = ended(running, before)
    check_story(events)
    assert words_of(events) == {"main": SAID["long"][0].split()}


def test_a_language_that_the_aligner_does_not_know_has_no_words(running: Worker) -> None:
    before = len(running.calls())
    streamed = command("stream", running.twilio, "--play", str(file("agent")), "--param", "language=sv")
    assert streamed.returncode == 0
    events = ended(running, before)
    assert {final["language"] for final in check_story(events)} == {"sv"}
    assert words_of(events) == {}


def test_with_a_model_that_does_not_load_calls_go_on_without_words(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ALIGNER, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"no")
    options = {"ASR__WORD_TIMESTAMPS": "true", "ASR__ALIGNER": str(folder)}
    with worker(tmp_path, **QWEN, **options) as running:
        assert command("stream", running.twilio, "--play", str(file("agent"))).returncode == 0
        events = ended(running, 0)
        assert [final["text"] for final in check_story(events)] == SAID["agent"]
        assert words_of(events) == {} and running.metric("mediaworker_asr_failed_alignments_total") == 0
        assert "no times of words" in running.log.read_text()


def test_the_times_are_those_at_which_it_was_said(tmp_path: Path, running: Worker) -> None:
    """The whole way with a model that was trained: clips whose word times are known, through calls, in call time."""
    known = json.loads((CLIPS / "words.json").read_text(encoding="utf-8"))
    misses_ms: list[int] = []
    for clip in ("number", "account", "day", "twins"):
        played, before = tmp_path / f"{clip}.ulaw", len(running.calls())
        played.write_bytes((CLIPS / f"{clip}.ulaw").read_bytes() + b"\xff" * 8 * 1000)
        assert command("stream", running.twilio, "--play", str(played)).returncode == 0
        words = [event["words"] for event in ended(running, before) if event["type"] == "transcript.words"]
        told = [word for each in words for word in each]
        assert [word["word"] for word in told] == [word["word"] for word in known[clip]]
        for mine, true in zip(told, known[clip], strict=True):
            misses_ms.append(abs(mine["start_ms"] - true["begin_ms"]))
            misses_ms.append(abs(mine["end_ms"] - true["end_ms"]))
    assert len(misses_ms) > 40
    assert sorted(misses_ms)[len(misses_ms) * 9 // 10] <= 200 and sorted(misses_ms)[len(misses_ms) // 2] <= 60


def processor_time(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


async def test_words_that_are_waited_for_survive_a_kill(tmp_path: Path, running: Worker) -> None:
    """The inference process is stopped when the speculative final is here and the endpoint is not: the final needs it
    no more, and its words cannot come. Then it is killed."""
    said = SAID["long"][0].strip()
    played = tmp_path / "long.ulaw"
    played.write_bytes(file("long").read_bytes() + b"\xff" * 8 * 9000)
    before = len(running.calls())
    async with connect(f"ws://127.0.0.1:{running.http_port}/v1/events?call=*", max_size=None) as socket:
        streaming = start("stream", running.twilio, "--play", str(played), "--param", "profile=bot")
        engine = int(*children(running.process.pid))

        async def until_event(kind: str) -> dict[str, Any]:
            async with timeout(60):
                while (event := json.loads(await socket.recv()))["type"] != kind:
                    assert event["type"] not in ("transcript.words", "call.ended"), f"and no {kind}"
            return event

        while (shown := await until_event("transcript.partial"))["text"] != said:
            pass
        assert shown["stable_chars"] <= len(said)
        used = -1
        # The partial may have been a refresh: the guess is behind it.
        while used != (used := processor_time(engine)):  # noqa: ASYNC110
            await asyncio.sleep(1)  # in which an engine that has nothing to do uses no time
        os.kill(engine, signal.SIGSTOP)
        final = await until_event("transcript.final")
        os.kill(engine, signal.SIGKILL)
        words = await until_event("transcript.words")
        assert words["utterance_id"] == final["utterance_id"]
    assert await asyncio.to_thread(streaming.wait, seconds(90)) == 0
    events = await asyncio.to_thread(ended, running, before)
    check_story(events)
    assert words_of(events) == {"inbound": said.split()}
    assert running.metric("mediaworker_asr_crashes_total") == 1
