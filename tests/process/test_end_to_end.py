"""The whole path with real peers: a SIP phone, SIPp and a Twilio stream in, events and transcripts out.

What is held to account is the path, not the engine: the text that arrives live equals what the same engine makes of the
same utterance offline, and every prompt yields exactly the expected utterances at the expected times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import urllib.error
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect

from audio import Codec
from audio.codecs.g711 import alaw_encode, ulaw_encode
from audio.codecs.g722 import G722Encoder
from audio.codecs.opus import OpusDecoder
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.engine.offline import MOONSHINE, packets, utterances
from lab.events.story import check_story
from lab.media.speech import SPEECH, speech
from lab.network.ports import ports
from lab.patience import seconds, timeout, until
from lab.sip.sipp_caller import Sipp
from lab.worker.calls import check_heard, children, start
from lab.worker.peers import Worker, command, worker
from mediaworker.cli.play import load_pcm
from sip.phone import encode as encoded


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    environ = {"ASR__ENGINE": "moonshine", "ASR__PARTIAL_MS": "1000"}
    patient = {"RTP__JITTER_MS": "1000", "MEDIA__SILENCE_AFTER_S": "30"}  # so that a machine that is busy loses nothing
    with worker(tmp_path_factory.mktemp("worker"), **environ, **patient) as started:
        yield started


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two WAV files at 8 kHz: a customer, and an agent who answers."""
    folder = tmp_path_factory.mktemp("speech")
    gap = np.zeros(8000, np.int16)
    customer = np.concatenate([gap[:4000], speech("tt-weasels"), gap, speech("auth-thankyou"), gap])
    agent = np.concatenate([np.zeros(len(customer) - 8000, np.int16), speech("vm-goodbye"), gap])
    for name, samples in (("customer", customer), ("agent", agent)):
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(samples.tobytes())
    return folder / "customer.wav", folder / "agent.wav"


def newest(running: Worker, source: str, known: set[str]) -> dict[str, Any]:
    """The call that has come since, once it is over."""
    return until(
        lambda: next(
            (c for c in running.calls() if c["call_id"] not in known and c["source"] == source and c["ended_at"]), None
        ),
        90,
    )


def known(running: Worker) -> set[str]:
    return {call["call_id"] for call in running.calls()}


@pytest.mark.parametrize(("codec", "encode"), [(Codec.PCMU, ulaw_encode), (Codec.PCMA, alaw_encode)])
def test_a_sip_call_becomes_its_words(
    running: Worker, conversation: tuple[Path, Path], codec: Codec, encode: Any
) -> None:
    before = known(running)
    file = conversation[0]
    done = command("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(file), "--codec", codec.name)
    assert done.returncode == 0, done.stderr
    call = newest(running, "sip", before)
    events = running.events(call["call_id"])
    finals = check_story(events)
    check_heard(finals, utterances(codec, packets(encode(load_pcm(file, 8000))), settings=MOONSHINE))
    assert events[0]["legs"] == [{"leg": "main", "role": "unknown", "label": "", "name": "", "codec": codec.rtp_name}]
    assert events[0]["to"] == "demo" and events[-1]["reason"] == "hangup"
    assert events[-1]["legs"][0]["lost"] == 0


def test_headers_of_the_test_phone_are_those_of_a_pbx(running: Worker, conversation: tuple[Path, Path]) -> None:
    before = known(running)
    headers = ["--header", "X-Mediaworker-Name-main: Ann", "--header", "X-Tenant:acme"]
    done = command("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(conversation[1]), *headers)
    assert done.returncode == 0, done.stderr
    events = running.events(newest(running, "sip", before)["call_id"])
    assert events[0]["legs"][0]["name"] == "Ann" and events[0]["custom"] == {"x-tenant": "acme"}
    for wrong in ("no colon", "Two words: a", ":empty", "X-A: a\r\nX-B: b"):
        assert command("call", "sip:a@127.0.0.1:1", "--play", "x.wav", "--header", wrong).returncode == 2


def test_a_wideband_call(running: Worker, tmp_path: Path) -> None:
    before = known(running)
    # With silence behind it: its end is heard, and not cut off by the phone's.
    file = tmp_path / "call.g722"
    file.write_bytes((SPEECH / "pbx-invalid.g722").read_bytes() + G722Encoder().encode(np.zeros(16000, np.int16)))
    done = command("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(file), "--codec", "G722")
    assert done.returncode == 0, done.stderr
    call = newest(running, "sip", before)
    finals = check_story(running.events(call["call_id"]))
    encoder = G722Encoder()
    pcm = load_pcm(file, 16000)
    frames = [pcm[i : i + 320] for i in range(0, len(pcm), 320)]
    payloads = [encoder.encode(np.pad(frame, (0, 320 - len(frame)))) for frame in frames]
    check_heard(finals, utterances(Codec.G722, payloads, settings=MOONSHINE))


def test_a_call_in_opus(running: Worker, conversation: tuple[Path, Path]) -> None:
    before = known(running)
    done = command("call", f"sip:demo@127.0.0.1:{running.sip_port}", "--play", str(conversation[0]), "--codec", "OPUS")
    assert done.returncode == 0, done.stderr
    call = newest(running, "sip", before)
    events = running.events(call["call_id"])
    finals = check_story(events)
    decoder = OpusDecoder()
    heard = [decoder.decode(packet) for packet in encoded(load_pcm(conversation[0], 16000), Codec.OPUS)]
    check_heard(finals, utterances(Codec.L16, [samples.tobytes() for samples in heard], settings=MOONSHINE))
    assert events[0]["legs"][0]["codec"] == "opus" and events[-1]["legs"][0]["lost"] == 0


async def test_a_twilio_stream_is_two_legs(running: Worker, conversation: tuple[Path, Path]) -> None:
    before = known(running)
    customer, agent = conversation
    partials: list[dict[str, Any]] = []
    url = f"ws://127.0.0.1:{running.http_port}/v1/events?call=*"
    async with connect(url, max_size=None) as socket:
        assert json.loads(await socket.recv())["type"] == "hello"
        arguments = ("stream", running.twilio, "--play", str(customer), "--play-outbound", str(agent))
        played = asyncio.create_task(asyncio.to_thread(command, *arguments))
        live: list[dict[str, Any]] = []
        async with timeout(90):
            while not (live and live[-1]["type"] == "call.ended"):
                event = json.loads(await socket.recv())
                if event["call_id"] is not None:
                    (partials if event["type"] == "transcript.partial" else live).append(event)
        done = await played
    assert done.returncode == 0, done.stderr
    call = newest(running, "twilio", before)
    stored = running.events(call["call_id"])
    assert [event for event in live if "durable" in event or event["type"] != "metrics"] == stored
    finals = check_story(stored)
    for leg, role, file in (("inbound", "customer", customer), ("outbound", "agent", agent)):
        expected = utterances(Codec.PCMU, packets(ulaw_encode(load_pcm(file, 8000))), settings=MOONSHINE)
        mine = [final for final in finals if final["leg"] == leg]
        check_heard(mine, expected, shift_ms=0)
        assert {final["role"] for final in mine} == {role}
    for final in finals:
        revisions = [p["revision"] for p in partials if p["utterance_id"] == final["utterance_id"]]
        assert revisions == sorted(set(revisions)) and all(revision < final["revision"] for revision in revisions)
    assert partials, "text while people talk"


def test_transcripts_of_a_call(running: Worker) -> None:
    call = next(call for call in running.calls() if call["source"] == "twilio")
    path = f"/v1/calls/{call['call_id']}/transcript"
    words = [entry["text"] for entry in running.get(f"{path}?format=json")["segments"] if entry["text"]]
    for form in ("txt", "srt", "vtt"):
        text = running.get(f"{path}?format={form}")
        flat = " ".join(text.split())
        assert all(" ".join(word.split()[:3]) in flat for word in words), form


def test_a_full_worker_says_busy(tmp_path: Path, conversation: tuple[Path, Path]) -> None:
    with worker(tmp_path, LISTENER_PATH, MAX_CALLS="1", **LISTENER) as running:
        arguments = ("stream", running.twilio, "--play", str(conversation[0]))
        first = start(*arguments, "--tail", "300")
        try:
            until(lambda: running.metric("mediaworker_calls_active") == 1)
            sip = command("call", f"sip:x@127.0.0.1:{running.sip_port}", "--play", str(conversation[0]))
            assert sip.returncode != 0 and "486" in sip.stderr + sip.stdout
            second = command(*arguments)
            assert second.returncode != 0
            with pytest.raises(urllib.error.HTTPError) as refused:
                running.get("/readyz")
            assert refused.value.code == 503
            refused.value.close()
            assert running.metric("mediaworker_calls_active") == 1 and first.poll() is None
        finally:
            first.kill()
            first.wait()


def test_sigterm_ends_calls_after_their_finals(tmp_path: Path, conversation: tuple[Path, Path]) -> None:
    with worker(tmp_path, LISTENER_PATH, SHUTDOWN_S="0.5", **LISTENER) as running:
        streaming = start("stream", running.twilio, "--play", str(conversation[0]))
        until(lambda: running.metric("mediaworker_transcripts_utterances_total") == 1)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(seconds(60)) == 0
        streaming.wait(seconds(60))
    (call_id,) = stored(running, "call.started")
    events = running.events(call_id)
    finals = check_story(events)
    assert events[-1]["reason"] == "shutdown" and finals[-1]["reason"] == "shutdown"


def test_a_killed_worker_loses_nothing_durable(tmp_path: Path, conversation: tuple[Path, Path]) -> None:
    with worker(tmp_path, LISTENER_PATH, **LISTENER) as running:
        streaming = start("stream", running.twilio, "--play", str(conversation[0]))
        (call_id,) = until(lambda: stored(running, "speech.started"))
        running.process.kill()
        running.process.wait()
        streaming.wait(seconds(60))
        running.process.returncode = 0
    before = running.events(call_id)
    with worker(tmp_path, LISTENER_PATH, **LISTENER) as again:
        events = again.events(call_id)
    assert events[: len(before)] == before
    assert check_story(events), "somebody was speaking"
    assert events[-1]["reason"] == "worker_restart"


def stored(running: Worker, type_: str) -> list[str]:
    """The calls of the events of this type that are on disk."""
    with contextlib.closing(sqlite3.connect(running.data_dir / "events.sqlite3")) as store:
        return [row[0] for row in store.execute("SELECT call_id FROM events WHERE type = ?", (type_,))]


def test_twilio_with_one_tunnel_signs_everything(tmp_path: Path, conversation: tuple[Path, Path]) -> None:
    """Webhook, TwiML, call-bound token and stream on the HTTP port, as behind a tunnel."""
    (http,) = ports(1)
    url = f"http://127.0.0.1:{http}"
    with worker(
        tmp_path,
        LISTENER_PATH,
        HTTP__PORT=str(http),
        TWILIO__AUTH_TOKEN="12345",
        TWILIO__PUBLIC_URL=url,
        SIP__ENABLED="false",
        **LISTENER,
    ) as running:
        play = ("--play", str(conversation[0]), "--from", "+15550100", "--to", "+15550199")
        refused = command("stream", f"{url}/twilio/voice", *play, "--auth-token", "wrong")
        assert refused.returncode == 1 and "403" in refused.stderr
        unsigned = command("stream", f"ws://127.0.0.1:{http}/twilio/stream", *play)
        assert unsigned.returncode == 1 and "403" in unsigned.stderr
        done = command("stream", f"{url}/twilio/voice", *play, "--auth-token", "12345")
        assert done.returncode == 0, done.stderr
        (call,) = running.wait_ended(1)
        assert (call["from"], call["to"], call["source"]) == ("+15550100", "+15550199", "twilio")
        assert len(check_story(running.events(call["call_id"]))) == 2
        assert running.metric("mediaworker_twilio_forbidden_total") == 2


async def test_a_registration_is_readiness_and_metric(tmp_path: Path) -> None:
    (registrar,) = ports(1)
    account = f'[{{registrar = "sip:127.0.0.1:{registrar}", user = "alice", password = "secret", name = "trunk"}}]'

    def ready(running: Worker) -> tuple[int, Any]:
        try:
            return 200, running.get("/readyz")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    with worker(tmp_path, SIP__ACCOUNTS=account) as running:
        status, body = await asyncio.to_thread(ready, running)
        assert status == 503 and any("trunk" in reason for reason in body["reasons"])
        assert running.metric("mediaworker_sip_registered") == 0
        server = Sipp(tmp_path).start("registrar", port=registrar, timeout_s=60)
        await asyncio.to_thread(until, lambda: ready(running)[0] == 200, 45, "registered")
        assert running.metric("mediaworker_sip_registered") == 1
        assert ready(running)[1]["sip"][0]["state"] == "registered"
        refreshed = "mediaworker_sip_registrations_ok_total"
        await asyncio.to_thread(until, lambda: running.metric(refreshed) == 2, 20, "refreshed")
        await asyncio.to_thread(running.stop)
        await server  # it has verified both digests and seen the end of the registration
    assert "registered" in running.log.read_text()


def test_the_inference_process_ends_when_idle_and_comes_back(tmp_path: Path) -> None:
    arguments = ("--play", str(SPEECH / "auth-thankyou.wav"))
    with worker(tmp_path, LISTENER_PATH, ASR__IDLE_S="0.5", SIP__ENABLED="false", **LISTENER) as running:
        texts = []
        for number in (1, 2):
            assert command("stream", running.twilio, *arguments).returncode == 0
            call = running.wait_ended(number)[-1]
            texts += [final["text"] for final in check_story(running.events(call["call_id"]))]
            until(lambda: not children(running.process.pid), 20, "no inference process")
        assert len(texts) == 2 and texts[0] == texts[1] and texts[0]


def test_a_worker_that_preloads_is_ready_when_its_engine_is(tmp_path: Path) -> None:
    with worker(tmp_path, LISTENER_PATH, ASR__PRELOAD="true", SIP__ENABLED="false", **LISTENER) as running:
        try:
            running.get("/readyz")
        except urllib.error.HTTPError as error:
            with error:
                assert error.code == 503 and b"loading its model" in error.read()
        until(lambda: ready(running), 60)
        assert len(children(running.process.pid)) == 1
        assert running.metric("mediaworker_calls_active") == 0


def ready(running: Worker) -> bool:
    with contextlib.suppress(urllib.error.HTTPError):
        return bool(running.get("/readyz"))
    return False
