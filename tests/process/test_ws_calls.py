"""`/ws/asr` and `/ws/transcribe` on a real worker with Qwen3-ASR: the tiny model reads digits, so words are checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from audio.codecs.g711 import ulaw_decode
from lab.chaos.neighbours import frame, open_websocket
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import seconds, timeout, until
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import (
    CODES,
    PCM,
    QWEN,
    SAID,
    TIMEOUT_S,
    call_of,
    config,
    read,
    send,
    speech,
    stored,
    texts,
    told,
    until_final,
    url,
)

KEYS = {name: f"{name}-key-123" for name in ("ann", "bob", "screen")}
API_KEYS = ", ".join(
    f'{{name = "{name}", key = "{key}", scopes = ["{"admin" if name == "screen" else "stream"}"]}}'
    for name, key in KEYS.items()
)
PORTS = ["media", "http"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), **QWEN) as started:
        messages = asyncio.run(told(url(started, "asr"), config(), CODES, speed=0))
        assert [message["type"] for message in messages[:2]] == ["session_created", "warming_up"]
        assert texts(messages) == SAID, "kept until the model was loaded"
        yield started


async def taken(socket: ClientConnection) -> None:
    """Until all that was sent has been taken: what is wrong is answered in its turn."""
    await socket.send("not JSON")
    async with timeout(TIMEOUT_S):
        while json.loads(await socket.recv())["type"] != "error":
            pass


SAME = ("utterance_id", "revision", "text", "language", "start_ms", "end_ms")


def same(message: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(message[name] for name in SAME)


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", PORTS)
async def test_asr_tells_partials_and_finals_and_so_do_the_events(running: Worker, port: str) -> None:
    where = url(running, "asr", port)
    messages = await told(where, config(name="Ann", role="customer"), CODES, speed=2)
    created = messages[0]
    assert created["type"] == "session_created" and all(message["type"] != "warming_up" for message in messages)
    finals = [message for message in messages if message["type"] == "final"]
    assert [final["text"] for final in finals] == SAID
    assert all(final["is_speech_final"] and final["language"] == "en" for final in finals)
    call = call_of(running, created)
    assert call["call_id"] == created["call_id"]
    assert (call["source"], call["direction"], call["from"]) == ("websocket", "inbound", "loopback")
    assert call["legs"] == [{"leg": "main", "role": "customer", "label": "", "name": "Ann", "codec": "PCMU"}]
    assert [same(final) for final in stored(running, created)] == [same(final) for final in finals]
    transcript = running.get(f"/v1/calls/{call['call_id']}/transcript")
    assert [segment["text"] for segment in transcript["segments"]] == SAID
    for final in finals:
        partials = [m for m in messages if m["type"] == "partial" and m["utterance_id"] == final["utterance_id"]]
        assert partials, "words while they are said"
        assert [m["revision"] for m in partials] == sorted({m["revision"] for m in partials})
        assert partials[-1]["revision"] < final["revision"]
        assert all(final["text"].startswith(m["text"]) and not m["is_speech_final"] for m in partials)


@pytest.mark.parametrize("port", PORTS)
async def test_transcribe_takes_pcm_and_needs_no_word_before(running: Worker, port: str) -> None:
    data = speech("pcm_s16le", 16000)
    end = {"action": "finalize"}
    messages = await told(url(running, "transcribe", port), None, data, speed=2, bytes_per_s=32000, end=end)
    assert messages[0]["type"] == "ready" and messages[0]["sample_rate"] == 16000
    assert messages[0]["encoding"] == "pcm_s16le"
    assert texts(messages) == SAID
    assert any(not message["is_final"] for message in messages[1:])
    finals = [message for message in messages[1:] if message["is_final"]]
    assert [same(final) for final in stored(running, messages[0])] == [same(final) for final in finals]


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [
        ("alaw", 8000),
        ("pcm_s16le", 24000),
        ("pcm_f32le", 44100),
    ],
)
async def test_every_encoding_says_the_same_words(running: Worker, encoding: str, rate: int) -> None:
    data, width = speech(encoding, rate), {"alaw": 1, "pcm_s16le": 2, "pcm_f32le": 4}[encoding]
    messages = await told(url(running, "asr"), config(encoding, rate), data, speed=0, bytes_per_s=rate * width)
    assert texts(messages) == SAID
    assert [final["text"] for final in stored(running, messages[0])] == SAID


async def test_the_biggest_messages_at_once(running: Worker) -> None:
    """Forty seconds of audio in five messages: it is taken no faster than it is heard, and nothing of it is lost."""
    data = CODES * (40 * 8000 // len(CODES))
    messages = await told(url(running, "asr"), config(), data, speed=0, bytes_per_s=650_000)
    count = len(data) // len(CODES)
    assert " ".join(texts(messages)) == " ".join(SAID * count)
    assert all(final["lost_ms"] == 0 for final in stored(running, messages[0]))


# -- commands ---------------------------------------------------------------------------------------------------------


def first_words() -> tuple[bytes, bytes]:
    """The first utterance without the pause behind it, and the rest."""
    loud = np.abs(PCM.astype(int)) > 500
    gaps = np.flatnonzero(np.diff(np.flatnonzero(loud)) > 4000)
    cut = int(np.flatnonzero(loud)[gaps[0]]) + 800
    return CODES[:cut], CODES[cut:]


@pytest.mark.parametrize("port", PORTS)
async def test_a_ping_does_not_wait_for_the_minutes_of_audio_before_it(running: Worker, port: str) -> None:
    """Clients that get no pong for twenty seconds close, and those that send a file at once have much before it."""
    async with connect(url(running, "asr", port), max_size=None) as socket:
        await socket.send(json.dumps(config("pcm_s16le", 16000)))
        call_id = json.loads(await socket.recv())["call_id"]
        for _ in range(300):  # ten minutes, read at eight times real time
            await socket.send(bytes(1 << 16))
        for _ in range(2):
            await asyncio.wait_for(await socket.ping(), seconds(10))
        await asyncio.to_thread(running.hang_up, call_id)
        await read(socket)
        assert socket.close_code == 1000, "what still waited was given up with the call"


async def test_flush_gives_the_final_at_once_and_the_session_goes_on(running: Worker) -> None:
    one, two = first_words()
    async with connect(url(running, "asr"), compression=None) as socket:
        await socket.send(json.dumps(config()))
        created = json.loads(await socket.recv())
        await send(socket, one, speed=0, bytes_per_s=8000)
        for text in (SAID[0], ""):
            await socket.send('{"type":"flush"}')
            final = await until_final(socket)
            assert (final["text"], final["is_speech_final"], final["flushed"]) == (text, True, True)
        await send(socket, two, speed=0, bytes_per_s=8000)
        await socket.send('{"type":"finalize"}')
        assert texts(await read(socket)) == [SAID[1]]
    first, second = stored(running, created)
    assert (first["text"], first["reason"], second["text"]) == (SAID[0], "flush", SAID[1])


@pytest.mark.parametrize(("route", "field"), [("asr", "type"), ("transcribe", "action")])
async def test_reset_is_silent_here_and_not_in_the_events(running: Worker, route: str, field: str) -> None:
    one, two = first_words()
    async with connect(url(running, route), compression=None) as socket:
        await socket.send(json.dumps({**config(), field: "config"}))
        await send(socket, one, speed=0, bytes_per_s=8000)
        await socket.send(json.dumps({field: "reset"}))
        await send(socket, two, speed=0, bytes_per_s=8000)
        await socket.send(json.dumps({field: "finalize"}))
        messages = await read(socket)
    assert texts(messages) == [SAID[1]]
    finals = stored(running, messages[0])
    assert [final["text"] for final in finals] == SAID, "the promise of the events holds"
    shown = [message for message in messages if message.get("is_final") or message.get("type") == "final"]
    assert {message["utterance_id"] for message in shown} == {finals[1]["utterance_id"]}


async def test_finalize_without_audio_is_answered(running: Worker) -> None:
    messages = await told(url(running, "asr"), config(), b"", speed=0)
    assert [message["type"] for message in messages] == ["session_created", "final"]
    assert messages[-1]["text"] == ""
    assert stored(running, messages[0]) == []


async def test_the_language_is_switched_within_a_session(running: Worker) -> None:
    one, two = first_words()
    async with connect(url(running, "asr"), compression=None) as socket:
        await socket.send(json.dumps(config(language="de")))
        created = json.loads(await socket.recv())
        await send(socket, one, speed=0, bytes_per_s=8000)
        await socket.send('{"type":"flush"}')
        assert (await until_final(socket))["language"] == "de"
        await socket.send('{"type":"config","language":"en"}')
        await send(socket, two, speed=0, bytes_per_s=8000)
        await socket.send('{"type":"finalize"}')
        (final,) = [message for message in await read(socket) if message["type"] == "final"]
    assert (final["language"], final["text"]) == ("en", SAID[1])
    assert [each["language"] for each in stored(running, created)] == ["de", "en"]


async def test_the_encoding_is_switched_within_a_session(running: Worker) -> None:
    one, two = first_words()
    wide = soxr.resample(ulaw_decode(two), 8000, 48000, quality="HQ").astype("<i2").tobytes()
    async with connect(url(running, "asr"), compression=None) as socket:
        await socket.send(json.dumps(config()))
        created = json.loads(await socket.recv())
        await send(socket, one, speed=0, bytes_per_s=8000)
        await socket.send(json.dumps(config("pcm_s16le", 48000)))
        await send(socket, wide, speed=0, bytes_per_s=96000)
        await socket.send('{"type":"finalize"}')
        assert texts(await read(socket)) == SAID
    assert [final["text"] for final in stored(running, created)] == SAID


async def test_without_vad_the_client_says_where_an_utterance_ends(running: Worker) -> None:
    messages = await told(url(running, "asr"), config(vad=False), CODES, speed=0)
    (final,) = [message for message in messages if message["type"] == "final"]
    assert final["start_ms"] < 200 and abs(final["end_ms"] - final["start_ms"] - len(CODES) // 8) <= 32
    assert final["text"].split()[:4] == SAID[0].split()


async def test_a_pause_of_the_client_is_silence_by_the_clock(running: Worker) -> None:
    one, two = first_words()
    async with connect(url(running, "asr"), compression=None) as socket:
        await socket.send(json.dumps(config()))
        await send(socket, one, speed=0, bytes_per_s=8000)
        first = await until_final(socket)  # nothing more comes: the clock goes on, and the endpoint fires
        await send(socket, two, speed=0, bytes_per_s=8000)
        await socket.send('{"type":"finalize"}')
        assert [first["text"], *texts(await read(socket))] == SAID


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_socket_that_dies_in_mid_word_keeps_its_final(running: Worker) -> None:
    one, _ = first_words()
    async with connect(url(running, "asr"), compression=None) as socket:
        await socket.send(json.dumps(config()))
        created = json.loads(await socket.recv())
        await send(socket, one, speed=0, bytes_per_s=8000)
        await taken(socket)
        socket.transport.abort()

    def over() -> bool:
        return any(each["call_id"] == created["call_id"] and each["ended_at"] for each in running.calls())

    await asyncio.to_thread(until, over)
    assert call_of(running, created)["reason"] == "disconnected"
    (final,) = stored(running, created)
    assert (final["text"], final["reason"]) == (SAID[0], "hangup")


async def test_a_hangup_by_the_api_sends_the_last_final_first(running: Worker) -> None:
    one, _ = first_words()
    async with connect(url(running, "asr"), compression=None) as socket:
        await socket.send(json.dumps(config()))
        call_id = json.loads(await socket.recv())["call_id"]
        await send(socket, one, speed=0, bytes_per_s=8000)
        await taken(socket)
        await asyncio.to_thread(running.hang_up, call_id)
        assert texts(await read(socket)) == [SAID[0]]
        assert (socket.close_code, socket.close_reason) == (1000, "api")


async def test_sigterm_ends_sessions_with_their_finals(tmp_path: Path) -> None:
    one, _ = first_words()
    with worker(tmp_path, LISTENER_PATH, **LISTENER, SIP__ENABLED="false", SHUTDOWN_S="0.5") as started:
        async with contextlib.AsyncExitStack() as stack:
            sockets = [
                await stack.enter_async_context(connect(url(started, "asr", port), compression=None)) for port in PORTS
            ]
            for socket in sockets:
                await socket.send(json.dumps(config()))
                await send(socket, one, speed=0, bytes_per_s=8000)
                await taken(socket)
            started.process.send_signal(signal.SIGTERM)
            for socket in sockets:
                (text,) = texts(await read(socket))
                assert text and socket.close_code == 1001


# -- who may, and how many --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """With keys, few places, and little patience."""
    options = {"STREAM__MAX_SESSIONS": "3", "STREAM__MAX_SESSIONS_PER_KEY": "2", "STREAM__IDLE_S": "1.5"}
    options |= {"STREAM__MAX_S": "4", "MEDIA__START_TIMEOUT_S": "1"} | LISTENER
    options |= {"AUTH__API_KEYS": f"[{API_KEYS}]", "SIP__ENABLED": "false"}
    with worker(tmp_path_factory.mktemp("guarded"), LISTENER_PATH, **options) as started:
        yield started


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS.get(name, name)}"}


async def refused(where: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer, which is a problem."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(where, additional_headers=headers):
            raise AssertionError("accepted")
    response = caught.value.response
    assert response.headers["content-type"] == "application/problem+json"
    body = json.loads(response.body or b"")
    assert body["status"] == response.status_code and body["detail"]
    return response.status_code, {name.lower(): value for name, value in response.headers.raw_items()}


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("route", ["asr", "transcribe"])
async def test_who_may_not_is_told_before_the_upgrade(guarded: Worker, route: str, port: str) -> None:
    where = url(guarded, route, port)
    for headers, status in (({}, 401), (bearer("no-such-key"), 401), (bearer("screen"), 403)):
        found, fields = await refused(where, headers)
        assert found == status and "www-authenticate" in fields

    def plain() -> urllib.error.HTTPError:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(where.replace("ws:", "http:"), timeout=seconds(10))
        return caught.value

    answer = await asyncio.to_thread(plain)
    assert answer.code == 426 and answer.headers["content-type"] == "application/problem+json"
    answer.close()
    async with connect(where, subprotocols=["bearer", KEYS["ann"]]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "bearer"


@pytest.mark.parametrize("port", PORTS)
async def test_without_keys_a_page_from_elsewhere_may_not(running: Worker, port: str) -> None:
    where = url(running, "transcribe", port)
    assert (await refused(where, {"Origin": "https://evil.example"}))[0] == 401
    assert (await refused(where, {"X-Forwarded-For": "127.0.0.1"}))[0] == 401
    own = where.replace("ws:", "http:").removesuffix("/ws/transcribe")
    async with connect(where, additional_headers={"Origin": own}) as socket:
        assert json.loads(await socket.recv())["type"] == "ready"


@pytest.mark.parametrize("port", PORTS)
async def test_places_are_limited_and_come_back(guarded: Worker, port: str) -> None:
    where = url(guarded, "transcribe", port)

    def sessions() -> int:
        request = urllib.request.Request(f"{guarded.url}/metrics", headers=bearer("screen"))
        with urllib.request.urlopen(request, timeout=seconds(10)) as answer:
            text = answer.read().decode()
        return int(float(text.partition("\nmediaworker_stream_sessions ")[2].split()[0]))

    def free() -> bool:
        return sessions() == 0

    await asyncio.to_thread(until, free)
    async with contextlib.AsyncExitStack() as stack:

        async def enter(name: str) -> None:
            await stack.enter_async_context(connect(where, additional_headers=bearer(name)))

        await enter("ann")
        await enter("ann")
        status, fields = await refused(where, bearer("ann"))
        assert status == 429 and "retry-after" in fields
        await enter("bob")
        status, fields = await refused(where, bearer("bob"))
        assert status == 503 and "retry-after" in fields
        assert await asyncio.to_thread(sessions) == 3
    await asyncio.to_thread(until, free)


async def test_config_must_come_soon(guarded: Worker) -> None:
    async with connect(url(guarded, "asr"), additional_headers=bearer("ann")) as socket:
        await socket.send(b"\0\0")
        messages = await read(socket)
        assert [message["code"] for message in messages] == ["config_first"] * 2
        assert (socket.close_code, socket.close_reason) == (1008, "config first")


@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "too long"])
async def test_patience_and_life_end(guarded: Worker, speaks: bool) -> None:
    async with connect(url(guarded, "asr", "http"), additional_headers=bearer("bob")) as socket:
        await socket.send(json.dumps(config()))
        reading = asyncio.create_task(read(socket))
        while speaks and not reading.done():
            with contextlib.suppress(ConnectionClosed):
                await socket.send(b"\xff" * 800)
            await asyncio.sleep(0.1)
        messages = await reading
        code = "session_expired" if speaks else "idle_timeout"
        assert [message.get("code") for message in messages if message["type"] == "error"] == [code]
        assert messages[-1]["type"] == "final" and socket.close_code == 1000


# -- a client that does not read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", PORTS)
async def test_a_client_that_does_not_read_is_cut_off(running: Worker, port: str) -> None:
    """Every other message is wrong and is answered with half a kilobyte; nobody reads the answers."""
    pair = frame(1, b'{"type":"flush","%s":1}' % (b"x" * 450)) + frame(1, b'{"type":"flush"}')

    def cut_off() -> int:
        return int(running.metric("mediaworker_stream_slow_clients_total"))

    def attack() -> None:
        before = cut_off()
        address = ("127.0.0.1", running.media_port if port == "media" else running.http_port)
        with contextlib.closing(open_websocket(address, "/ws/asr", receive_buffer=1)) as sock:
            sock.sendall(frame(1, json.dumps(config()).encode()))
            with contextlib.suppress(OSError):
                while cut_off() == before:
                    sock.sendall(pair * 500)
            until(lambda: cut_off() == before + 1)

    await asyncio.to_thread(attack)
    await asyncio.to_thread(until, lambda: running.metric("mediaworker_stream_sessions") == 0, 20, "its place is free")
    reasons = [call["reason"] for call in running.calls()]
    assert reasons.count("slow_client") == 1 + PORTS.index(port)
