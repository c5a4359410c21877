"""A failed authentication leaves a trace and is slowed; whoever has a right key is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from lab.patience import seconds, timeout
from lab.worker.peers import worker
from mediaworker.access.auth_failures import FREE

KEY, EVENTS_KEY = "a-right-key-1", "an-events-key-2"

KEYS = (
    f'[{{name = "ops", key = "{KEY}", scopes = ["admin", "events", "batch", "stream"]}},'
    f' {{name = "screen", key = "{EVENTS_KEY}", scopes = ["events"]}}]'
)


async def test_every_port_counts_logs_once_and_slows(tmp_path: Path) -> None:
    environ = {
        "AUTH__API_KEYS": KEYS, "SIP__ENABLED": "false",
        "TWILIO__AUTH_TOKEN": '"12345"', "TWILIO__PUBLIC_URL": "https://twilio.test",
    }  # fmt: skip
    with worker(tmp_path, **environ) as running:
        ports = running.http_port, running.media_port
        async with httpx.AsyncClient(base_url=running.url, timeout=seconds(30)) as client:
            for path in ("/v1/calls", "/v1/jobs", "/v1/models", "/metrics"):
                assert (await client.get(path)).status_code == 401
                assert (await client.get(path, headers=bearer("a-wrong-key"))).status_code == 401
            assert (await client.get("/metrics", headers=bearer(EVENTS_KEY))).status_code == 403
            assert (await client.post("/twilio/voice", data={"CallSid": "CA1"})).status_code == 403
            for port in ports:
                for path in ("/ws/asr", "/ws/transcribe", "/asterisk/media"):
                    url = f"ws://127.0.0.1:{port}{path}"
                    assert await refused(url) == 401
                    assert await refused(url, headers=bearer("a-wrong-key")) == 401
                    assert await refused(url, headers=bearer(EVENTS_KEY)) == 403
                assert await refused(f"ws://127.0.0.1:{port}/twilio/stream") == 403
            assert await refused(f"ws://127.0.0.1:{ports[0]}/v1/events", headers=bearer("a-wrong-key")) == 401
            counts = await failures(client)
            assert counts == {
                "no_key": 10, "unknown_key": 11, "scope": 7, "not_local": 0, "signature": 3, "call_token": 0,
            }  # fmt: skip
            # More than the burst, and then one a second, on either port. A right key is answered meanwhile.
            guesses = [
                asyncio.ensure_future(client.get("/v1/calls", headers=bearer("a-wrong-key"))) for _ in range(2 * FREE)
            ]
            await counted(client, 11 + 2 * FREE)
            assert not all(guess.done() for guess in guesses)
            url = f"ws://127.0.0.1:{ports[1]}/ws/asr"
            last = asyncio.ensure_future(refused(url, headers=bearer("a-wrong-key")))
            await counted(client, 12 + 2 * FREE)
            assert not last.done()
            assert {guess.status_code for guess in await asyncio.gather(*guesses)} == {await last} == {401}
        log = running.log.read_text()
        assert log.count("authentication failed") == 1 and log.count("twilio request forbidden") == 1
        assert "source=127.0.0.1" in log and "a-wrong-key" not in log


async def failures(client: httpx.AsyncClient) -> dict[str, float]:
    """As they are counted; the key is a right one."""
    text = (await client.get("/metrics", headers=bearer(KEY))).text
    return {
        line.split('"')[1]: float(line.split()[1])
        for line in text.splitlines()
        if line.startswith("mediaworker_auth_failures_total{")
    }


async def counted(client: httpx.AsyncClient, guesses: int) -> None:
    async with timeout(10):
        while (await failures(client))["unknown_key"] < guesses:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def refused(url: str, headers: dict[str, str] | None = None) -> int:
    with pytest.raises(InvalidStatus) as answer:
        async with connect(url, additional_headers=headers):
            raise AssertionError("accepted")
    return answer.value.response.status_code
