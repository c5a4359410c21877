"""Several Media Streams of one CallSid on a real worker: one call, each track a leg."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.patience import timeout, until
from lab.worker import qwen
from lab.worker.peers import Worker, worker
from lab.worker.ws_calls import CODES
from mediaworker.ingress.twilio.sender import FRAME_BYTES, StreamWriter

SPOKEN = {"inbound": CODES, "outbound": qwen.file("agent").read_bytes()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("shared"), LISTENER_PATH, **LISTENER, SIP__ENABLED="false") as started:
        yield started


async def speak(twilio: ClientConnection, writer: StreamWriter, track: str, frames: int) -> None:
    for index in range(frames):
        await twilio.send(writer.media(track, index, SPOKEN[track][index * FRAME_BYTES : (index + 1) * FRAME_BYTES]))


async def closed(twilio: ClientConnection) -> tuple[int | None, str | None]:
    with pytest.raises(ConnectionClosed):
        async with timeout(20):
            await twilio.recv()
    return twilio.close_code, twilio.close_reason


async def test_a_stream_a_track_is_one_call_of_two_legs(running: Worker) -> None:
    writers = {track: StreamWriter(f"MZ-{track}", "CA-two", "AC1") for track in ("inbound", "outbound")}
    async with connect(running.twilio) as one, connect(running.twilio) as two:
        for twilio, (track, writer) in zip((one, two), writers.items(), strict=True):
            await twilio.send(writer.connected())
            await twilio.send(writer.start([track], {}))
        await asyncio.gather(
            speak(one, writers["inbound"], "inbound", 150), speak(two, writers["outbound"], "outbound", 150)
        )
        await one.send(writers["inbound"].stop())
        await two.send(writers["outbound"].stop())
        await asyncio.gather(closed(one), closed(two))
    [call] = [each for each in running.wait_ended(1) if each["external_id"] == "CA-two"]
    assert {leg["leg"]: leg["role"] for leg in call["legs"]} == {"inbound": "customer", "outbound": "agent"}
    finals = check_story(running.events(call["call_id"]))
    heard = {leg: " ".join(final["text"] for final in finals if final["leg"] == leg) for leg in ("inbound", "outbound")}
    assert heard["inbound"] and heard["outbound"] and heard["inbound"] != heard["outbound"]
    assert all(final["lost_ms"] == 0 for final in finals)


async def test_the_same_track_twice_is_one_call_and_the_older_stream_is_told_why(running: Worker) -> None:
    old, new = (StreamWriter(f"MZ-{name}", "CA-twice", "AC1") for name in ("old", "new"))
    async with connect(running.twilio) as one, connect(running.twilio) as two:
        await one.send(old.connected())
        await one.send(old.start(["inbound"], {}))
        await speak(one, old, "inbound", 50)
        await asyncio.to_thread(until, lambda: any(each["external_id"] == "CA-twice" for each in running.calls()), 20)
        await two.send(new.connected())
        await two.send(new.start(["inbound"], {}))
        code, reason = await closed(one)
        assert code == 1008 and reason == "another stream of this call carries the inbound track"
        await speak(two, new, "inbound", 150)
        await two.send(new.stop())
        await closed(two)
    [call] = [each for each in running.wait_ended(1) if each["external_id"] == "CA-twice"]
    assert call["reason"] == "hangup" and [leg["leg"] for leg in call["legs"]] == ["inbound"]
    check_story(running.events(call["call_id"]))
