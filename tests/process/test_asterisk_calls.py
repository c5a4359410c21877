"""Asterisk on a real worker over real sockets: the tiny model reads digits, so words are checked."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from websockets.exceptions import InvalidStatus

from audio.codecs.g711 import alaw_encode, ulaw_decode
from lab.asterisk.peers import FORMATS, AudioSocketPeer, ChannelPeer, frame
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.http.media_shells import until as until_async
from lab.network.ports import ports
from lab.patience import seconds, until
from lab.worker.peers import TINY, Worker, worker
from lab.worker.qwen import DIGITS

SAID = {
    "customer": ["four seven one two", "nine oh five three eight"],
    "agent": ["zero six two", "one eight four nine"],
}
PORT = ports(1)[0]
ASTERISK = {
    "ASR__ENGINE": "qwen", "ASR__MODEL": str(TINY), "SIP__ENABLED": "false",
    "AUDIOSOCKET__ENABLED": "true", "AUDIOSOCKET__PORT": str(PORT),
    "ROUTES": '[{source = "audiosocket", roles = {main = "customer"}}, {source = "asterisk-ws", calling = "+49*", '
    'roles = {main = "agent"}}]',
}  # fmt: skip


def slin(name: str, rate_hz: int) -> bytes:
    samples = ulaw_decode((DIGITS / f"{name}.ulaw").read_bytes()).astype(np.float32) / 32768
    if rate_hz != 8000:
        samples = soxr.resample(samples, 8000, rate_hz, quality="HQ")
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype("<i2").tobytes()


def speech(name: str, codec: str) -> bytes:
    codes = (DIGITS / f"{name}.ulaw").read_bytes()
    if codec in ("ulaw", "alaw"):
        return codes if codec == "ulaw" else alaw_encode(ulaw_decode(codes))
    return slin(name, FORMATS[codec][0])


def port_of(running: Worker, port: str) -> int:
    return running.media_port if port == "media" else running.http_port


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), **ASTERISK) as started:
        yield started


def call_of(running: Worker, external_id: str) -> dict[str, Any]:
    """The call, once it is over."""

    def over() -> dict[str, Any] | None:
        found = [call for call in running.calls() if call["external_id"] == external_id]
        assert len(found) <= 1, "one call for each"
        return found[0] if found and found[0]["ended_at"] else None

    return until(over, 60)


@pytest.mark.parametrize("rate_hz", [8000, 16000])
async def test_audiosocket_word_for_word(running: Worker, rate_hz: int) -> None:
    async with AudioSocketPeer.connect(PORT) as peer:
        await peer.say(slin("customer", rate_hz), rate_hz)
        peer.send(frame(0x00))
        await peer.ended()
    call = await asyncio.to_thread(call_of, running, peer.id)
    assert (call["source"], call["reason"]) == ("audiosocket", "hangup")
    (leg,) = call["legs"]
    assert (leg["leg"], leg["role"], leg["codec"]) == ("main", "customer", "L16"), "the role is the route's"
    finals = check_story(running.events(call["call_id"]))
    assert [final["text"] for final in finals] == SAID["customer"]
    assert all(final["lost_ms"] == 0 for final in finals)
    kind = 0x10 if rate_hz == 8000 else 0x12
    assert {each for each in peer.heard} == {(kind, bytes(rate_hz // 50 * 2))}, "silence of the same kind, and no more"
    assert len(peer.heard) > 100


async def test_all_at_once_and_gone(running: Worker) -> None:
    """The end of the stream comes while most of it waits: it is taken no faster than it is heard, and to its end."""
    async with AudioSocketPeer.connect(PORT) as peer:
        await peer.say(slin("customer", 16000), 16000, speed=0)
        peer.writer.write_eof()
        await peer.ended()
    call = await asyncio.to_thread(call_of, running, peer.id)
    assert call["reason"] == "hangup"
    assert [final["text"] for final in check_story(running.events(call["call_id"]))] == SAID["customer"]


# -- channels of chan_websocket ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "codec", "json"),
    [
        ("media", "ulaw", True),
        ("media", "alaw", False),
        ("http", "slin16", False),
        ("http", "slin24", True),
    ],
)
async def test_a_channel_word_for_word(running: Worker, port: str, codec: str, json: bool) -> None:
    async with ChannelPeer.connect(port_of(running, port), codec, json=json) as peer:
        await peer.start(MEDIAWORKER_FROM="+4930123")
        await peer.say(speech("customer", codec), speed=2)
    call = await asyncio.to_thread(call_of, running, peer.channel_id)
    assert (call["source"], call["reason"]) == ("asterisk-ws", "hangup")
    # Plain text has no variables, and so no number that a route could match.
    assert [(leg["leg"], leg["role"]) for leg in call["legs"]] == [("main", "agent" if json else "unknown")]
    finals = check_story(running.events(call["call_id"]))
    assert [final["text"] for final in finals] == SAID["customer"]
    assert peer.told == ['{"command":"ANSWER"}' if json else "ANSWER"], "no audio goes back"


async def test_two_channels_are_one_conversation(running: Worker) -> None:
    """The second joins when the first has begun, and each keeps its role, its words and its place in time."""
    name = "conversation 1"
    asked = {"__MEDIAWORKER_CALL": name, "MEDIAWORKER_ROLE": "customer", "MEDIAWORKER_FROM": "+4930123", "order": "A1"}
    joins = {"MEDIAWORKER_CALL": name, "mediaworker_leg": "desk", "MEDIAWORKER_ROLE": "agent", "MEDIAWORKER_NAME": "A"}
    async with (
        ChannelPeer.connect(running.media_port, "ulaw") as customer,
        ChannelPeer.connect(running.http_port, "slin16") as agent,
    ):
        await customer.start(**asked)
        speaking = asyncio.create_task(customer.say(speech("customer", "ulaw")))
        await asyncio.sleep(1)  # of the call's time
        await agent.start(**joins)
        await agent.event("DTMF_END", digit="5", channel_id=agent.channel_id)
        await agent.say(speech("agent", "slin16"))
        await speaking
    call = await asyncio.to_thread(call_of, running, name)
    assert call["from"] == "+4930123" and call["custom"]["order"] == "A1"
    events = running.events(call["call_id"])
    finals = check_story(events)
    said = {leg: [final["text"] for final in finals if final["leg"] == leg] for leg in ("customer", "desk")}
    assert said == {"customer": SAID["customer"], "desk": SAID["agent"]}
    assert {(final["leg"], final["role"]) for final in finals} == {("customer", "customer"), ("desk", "agent")}
    (joined,) = [event for event in events if event["type"] == "leg.updated"]
    assert (joined["leg"], joined["role"], joined["name"], joined["codec"]) == ("desk", "agent", "A", "L16")
    (digit,) = [event for event in events if event["type"] == "dtmf"]
    assert (digit["leg"], digit["digit"]) == ("desk", "5")
    assert min(final["start_ms"] for final in finals if final["leg"] == "desk") >= 1000, "the call's time, not its own"


# -- ends -------------------------------------------------------------------------------------------------------------


def first_words(rate_hz: int = 8000) -> bytes:
    """The first utterance, without the pause behind it."""
    loud = np.flatnonzero(np.abs(np.frombuffer(slin("customer", 8000), "<i2").astype(int)) > 500)
    cut = int(loud[np.flatnonzero(np.diff(loud) > 4000)[0]]) + 800
    return slin("customer", rate_hz)[: 2 * cut * rate_hz // 8000]


def open_call(running: Worker, external_id: str) -> dict[str, Any]:
    """The call, once words of it are there."""

    def found() -> dict[str, Any] | None:
        mine = [call for call in running.calls() if call["external_id"] == external_id]
        if not mine:
            return None
        segments = running.get(f"/v1/calls/{mine[0]['call_id']}/transcript")["segments"]
        return mine[0] if segments else None

    return until(found, 60)


async def test_the_worker_hangs_up(running: Worker) -> None:
    """Who is hung up is told so in its own protocol, and what was said keeps its final."""
    async with AudioSocketPeer.connect(PORT) as peer, ChannelPeer.connect(running.media_port, "slin") as channel:
        await channel.start()
        await asyncio.gather(
            peer.say(slin("customer", 8000), 8000, speed=2), channel.say(slin("customer", 8000), speed=2)
        )
        for external_id in (peer.id, channel.channel_id):
            call = await asyncio.to_thread(open_call, running, external_id)
            await asyncio.to_thread(running.hang_up, call["call_id"])
        await peer.ended()
        await channel.ended()
    assert peer.heard[-1] == (0x00, b"")
    assert channel.told == ['{"command":"ANSWER"}', '{"command":"HANGUP"}'] and channel.socket.close_code == 1000
    for external_id in (peer.id, channel.channel_id):
        call = await asyncio.to_thread(call_of, running, external_id)
        assert call["reason"] == "api"
        assert [final["text"] for final in check_story(running.events(call["call_id"]))] == SAID["customer"]


async def test_a_connection_that_breaks_in_mid_word_keeps_its_final(running: Worker) -> None:
    async with AudioSocketPeer.connect(PORT) as peer:
        await peer.say(first_words(), 8000)
        await peer.writer.drain()
        own = peer.writer.get_extra_info("sockname")[1]
        await asyncio.to_thread(until, lambda: waiting(PORT, own) == 0)  # a reset would take what waits with it
        peer.writer.transport.abort()
    call = await asyncio.to_thread(call_of, running, peer.id)
    (final,) = check_story(running.events(call["call_id"]))
    assert (final["text"], final["reason"]) == (SAID["customer"][0], "hangup")


def waiting(port: int, peer: int) -> int:
    """Bytes on the way from one port of 127.0.0.1 to the other that has not read them, as the kernel has them."""
    ends = [f"0100007F:{port:04X}", f"0100007F:{peer:04X}"]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    queues = {tuple(line[1:3]): line[4].split(":") for line in lines}
    return int(queues[ends[0], ends[1]][1], 16) + int(queues[ends[1], ends[0]][0], 16)


async def test_digits_and_neighbours_that_talk_nonsense(running: Worker) -> None:
    """Connections that are no AudioSocket, and frames that are none, beside a call that is unharmed."""

    async def nonsense(first: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(first)
        answer = await reader.read()
        writer.close()
        return answer

    async with AudioSocketPeer.connect(PORT) as peer:
        speaking = asyncio.create_task(peer.say(slin("agent", 16000), 16000))
        for number in range(10):
            for first in (b"GET / HTTP/1.1\r\n\r\n", frame(0x10, bytes(320)), b"\x01\xff\xff"):
                assert await nonsense(first) == frame(0xFF)
            peer.send(frame(0x55, b"what") + frame(0x03, b"x") + frame(0x12) + frame(0x03, str(number).encode()))
        await speaking
        peer.send(frame(0x00))
        await peer.ended()
    call = await asyncio.to_thread(call_of, running, peer.id)
    events = running.events(call["call_id"])
    assert [final["text"] for final in check_story(events)] == SAID["agent"]
    assert [event["digit"] for event in events if event["type"] == "dtmf"] == [str(number) for number in range(10)]
    assert running.metric("mediaworker_audiosocket_refused_total") == 30
    assert running.metric("mediaworker_audiosocket_malformed_total") == 20
    assert running.metric("mediaworker_audiosocket_unknown_total") == 10
    assert running.log.read_text().count("unknown AudioSocket frame") <= 2, "said once a minute"


async def test_nothing_is_left(running: Worker) -> None:
    """Of all the calls before."""
    for name in ("calls_active", "legs_active", "audiosocket_connections", "asterisk_channels", "media_connections"):
        await asyncio.to_thread(until, lambda name=name: running.metric(f"mediaworker_{name}") == 0, 30, name)


async def test_a_stopping_worker_tells_everybody(tmp_path: Path) -> None:
    port = ports(1)[0]
    options = ASTERISK | LISTENER | {"AUDIOSOCKET__PORT": str(port), "SHUTDOWN_S": "0"}
    with worker(tmp_path, LISTENER_PATH, **options) as running:
        async with AudioSocketPeer.connect(port) as peer, ChannelPeer.connect(running.media_port, "ulaw") as channel:
            await channel.start()
            await asyncio.gather(
                peer.say(slin("customer", 8000), 8000, speed=2), channel.say(speech("customer", "ulaw"), speed=2)
            )
            calls = [await asyncio.to_thread(open_call, running, each) for each in (peer.id, channel.channel_id)]
            running.process.send_signal(signal.SIGTERM)
            await peer.ended()
            await channel.ended()
            assert peer.heard[-1] == (0x00, b"") and "HANGUP" in channel.told[-1]
        await asyncio.to_thread(running.process.wait, seconds(60))
        for call in calls:
            events = running.events(call["call_id"])
            assert events[-1]["reason"] == "shutdown"
            assert [bool(final["text"]) for final in check_story(events)] == [True, True]


async def test_a_password_opens_the_door(tmp_path: Path) -> None:
    """With keys configured, as `websocket_client.conf` has them."""
    keys = '[{name = "pbx", key = "pbx-key-12345", scopes = ["stream", "events"]}]'
    options = ASTERISK | LISTENER | {"AUDIOSOCKET__ENABLED": "false", "AUTH__API_KEYS": keys}
    with worker(tmp_path, LISTENER_PATH, **options) as running:
        for port in (running.media_port, running.http_port):
            for password in ("", "pbx-key-99999"):
                with pytest.raises(InvalidStatus) as refused:
                    async with ChannelPeer.connect(port, password=password):
                        pass
                assert refused.value.response.status_code == 401
                assert refused.value.response.headers["WWW-Authenticate"].startswith("Basic")
            async with ChannelPeer.connect(port, password="pbx-key-12345") as peer:
                await peer.start()
                await until_async(lambda: peer.told)
