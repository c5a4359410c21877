"""`/v1/calls/{id}/audio`: what may be played, to whom, and what is said of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from audio.codecs.g711 import ulaw_decode, ulaw_encode
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.http.api_server import ADMIN_KEY, EVENTS_KEY, bearer, running_api
from lab.media.tones import tone, wav
from lab.patience import timeout
from lab.worker.peers import Worker, worker
from mediaworker.client import Client, ClientError
from mediaworker.http.resources import playback
from mediaworker.ingress.twilio.sender import StreamWriter


class Speaker:
    """Takes what is played, two at most."""

    def __init__(self) -> None:
        self.played: list[bytes] = []
        self.marks: list[str] = []
        self.cleared = self.clears = 0

    def play(self, codes: bytes, mark: str) -> bool:
        if len(self.played) >= 2:
            return False
        self.played.append(codes)
        self.marks.append(mark)
        return True

    def clear(self) -> None:
        self.cleared += 1
        self.clears += 1


async def test_a_sound_is_played_and_stopped(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api, Client(api.url, key=ADMIN_KEY) as client:
        call = api.open_call("c1")
        call.player = speaker = Speaker()
        assert await client.play("c1", wav(tone(8000))) == 0.5
        assert speaker.played == [bytes(ulaw_encode(tone(8000)))]
        assert await client.play("c1", wav(np.repeat(tone(24000), 2), 24000, 2)) == 0.5
        heard, meant = ulaw_decode(speaker.played[1]).astype(int), tone(8000).astype(int)
        assert np.abs(heard - meant)[100:-100].max() < 600, "resampled, and the channels' mean"
        with pytest.raises(ClientError, match="429"):
            await client.play("c1", wav(tone(8000)))
        await client.stop_playing("c1")
        assert speaker.cleared == 1
        speaker.played.clear()
        codes = bytes(range(256))
        raw = await api.client.post(
            "/v1/calls/c1/audio", content=codes, headers=bearer(ADMIN_KEY) | {"Content-Type": "audio/basic"}
        )
        assert raw.status_code == 202 and raw.json()["duration_ms"] == 32 and speaker.played == [codes]
        assert raw.json()["mark"] == speaker.marks[-1] != "", "a mark has a name, whoever gives it"
        await client.play("c1", wav(tone(8000)), mark="the goodbye & more")
        assert speaker.marks[-1] == "the goodbye & more"


async def test_what_is_stopped_while_it_is_decoded_is_not_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_api(tmp_path) as api, Client(api.url) as client:
        api.open_call("c1").player = speaker = Speaker()
        monkeypatch.setattr(playback, "_codes", lambda body: speaker.clear() or b"x")
        with pytest.raises(ClientError, match="409 playing has been stopped"):
            await client.play("c1", wav(tone(8000)))
        assert not speaker.played


async def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    async with running_api(tmp_path, keys=True) as api:
        api.open_call("deaf")
        api.open_call("c1").player = speaker = Speaker()
        kind = bearer(ADMIN_KEY) | {"Content-Type": "audio/wav"}

        async def status(call: str, body: bytes, headers: dict[str, str] = kind) -> int:
            return (await api.client.post(f"/v1/calls/{call}/audio", content=body, headers=headers)).status_code

        sound = wav(tone(8000))
        assert await status("nobody", sound) == 404
        assert await status("deaf", sound) == 409
        assert await status("c1", sound, bearer(EVENTS_KEY) | {"Content-Type": "audio/wav"}) == 403
        assert await status("c1", sound, {"Content-Type": "audio/wav"}) == 401
        assert await status("c1", sound, bearer(ADMIN_KEY) | {"Content-Type": "audio/mpeg"}) == 415
        for body in (b"", b"RIFF", sound[:30], wav(np.zeros(0, np.int16)), wav(np.zeros(8000 * 121, np.int16))):
            assert await status("c1", body) == 400
        assert await status("c1", bytes(24_000_000)) == 413
        assert await status("c1", sound, kind | {}) == 202 and speaker.played.pop()
        assert (
            await api.client.post(f"/v1/calls/c1/audio?mark={'x' * 201}", content=sound, headers=kind)
        ).status_code == 400
        assert (await api.client.delete("/v1/calls/deaf/audio", headers=bearer(ADMIN_KEY))).status_code == 409
        assert (await api.client.delete("/v1/calls/c1/audio", headers=bearer(EVENTS_KEY))).status_code == 403
        assert not speaker.played and not speaker.cleared


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("playing"), LISTENER_PATH, **LISTENER, SIP__ENABLED="false") as started:
        yield started


async def next_mark(twilio: ClientConnection) -> str:
    async with timeout(20):
        while (message := json.loads(await twilio.recv()))["event"] != "mark":
            assert message["event"] == "media"
    return message["mark"]["name"]


async def until_closed(twilio: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        async with timeout(20):
            while True:
                await twilio.recv()
    return twilio.close_code


async def test_the_goodbye_is_played_to_its_end_before_the_call_is_hung_up(running: Worker) -> None:
    writer = StreamWriter("MZ1", "CA-goodbye", "AC1")
    types = ["call.started", "playback.started", "playback.marked", "playback.ended"]
    async with (
        connect(running.twilio) as twilio,
        Client(running.url) as client,
        aclosing(aiter(client.events(types=types))) as events,
    ):
        await anext(events)  # hello: what follows is live
        await twilio.send(writer.connected())
        await twilio.send(writer.start(["inbound"], {"mw_mode": "connect"}))
        async with timeout(20):
            call_id = (await anext(events)).call_id
        assert call_id is not None
        assert await client.play(call_id, wav(tone(8000 * 5)), mark="goodbye") == 2.5
        name = await next_mark(twilio)
        await client.hangup(call_id, after_playback=True)
        assert (await client.call(call_id)).state == "live", "the goodbye is still being played"
        await twilio.send(writer.mark(name))
        assert await until_closed(twilio) == 1000
        async with timeout(20):
            told = [(await anext(events)).body for _ in range(3)]
        record = await client.call(call_id)
    assert [getattr(body, "mark", "") for body in told] == ["goodbye", "goodbye", ""]
    assert [body.position_ms for body in told] == [0, 2500, 2500]  # type: ignore[union-attr]
    assert (record.state, record.reason) == ("ended", "api")


async def test_a_caller_who_interrupts_the_goodbye_ends_the_call(running: Worker) -> None:
    writer = StreamWriter("MZ2", "CA-interrupted", "AC1")
    async with connect(running.twilio) as twilio, Client(running.url) as client:
        await twilio.send(writer.connected())
        await twilio.send(writer.start(["inbound"], {"mw_mode": "connect"}))
        async with timeout(20):
            while not (calls := [each for each in (await client.calls())[0] if each.external_id == "CA-interrupted"]):
                pass
        await client.play(calls[0].call_id, wav(tone(8000 * 5)))
        await client.hangup(calls[0].call_id, after_playback=True)
        await client.stop_playing(calls[0].call_id)
        assert await until_closed(twilio) == 1000
    running.wait_ended(1)
    kinds = [event["type"] for event in running.events(calls[0].call_id) if event["type"].startswith("playback.")]
    assert kinds == ["playback.started", "playback.cleared", "playback.ended"]
