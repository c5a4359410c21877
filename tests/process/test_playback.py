"""`/v1/calls/{id}/audio`: what may be played, to whom, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audio.codecs.g711 import ulaw_decode, ulaw_encode
from lab.http.api_server import ADMIN_KEY, EVENTS_KEY, bearer, running_api
from lab.media.tones import tone, wav
from mediaworker.client import Client, ClientError
from mediaworker.http.resources import playback


class Speaker:
    """Takes what is played, two at most."""

    def __init__(self) -> None:
        self.played: list[bytes] = []
        self.cleared = self.clears = 0

    def play(self, codes: bytes) -> bool:
        if len(self.played) >= 2:
            return False
        self.played.append(codes)
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
        assert raw.status_code == 202 and raw.json() == {"duration_ms": 32} and speaker.played == [codes]


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
        assert (await api.client.delete("/v1/calls/deaf/audio", headers=bearer(ADMIN_KEY))).status_code == 409
        assert (await api.client.delete("/v1/calls/c1/audio", headers=bearer(EVENTS_KEY))).status_code == 403
        assert not speaker.played and not speaker.cleared
