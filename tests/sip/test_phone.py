"""SipPhone against SIPp and against a worker in another process (PJSIP is one per process)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from audio.codecs.codec import Codec
from lab.network.ports import free_port, port_range
from lab.patience import timeout
from lab.sip.sipp_caller import Sipp
from sip.errors import SipError
from sip.phone import SipPhone, encode

WORKER = """
import asyncio, json, sys, time
from config.load import parse
from sip.pjsip.endpoint import SipEndpoint

class Handler:
    def __init__(self): self.packets, self.ended = [], asyncio.Event()
    def on_call(self, call):
        self.codec = call.streams[0].codec.rtp_name
        call.streams[0].socket.on_packet = lambda datagram, now: self.packets.append((datagram, now))
    def on_media(self, call): pass
    def on_dtmf(self, call, digit, duration_ms): pass
    def on_end(self, call, reason): self.reason = reason; self.ended.set()
    def can_accept(self): return 0

async def main(port, first):
    handler = Handler()
    endpoint = SipEndpoint(parse({
        "sip": {"host": "127.0.0.1", "port": port}, "rtp": {"port_min": first, "port_max": first + 100}}), handler)
    await endpoint.start()
    print("ready", flush=True)
    while not handler.ended.is_set():
        for _ in endpoint.receiver.sweep(time.monotonic()): pass
        await asyncio.sleep(0.01)
    times = [now for _, now in handler.packets]
    print(json.dumps({
        "codec": handler.codec, "reason": handler.reason, "span_s": times[-1] - times[0] if times else 0,
        "payload": b"".join(datagram[12:] for datagram, _ in handler.packets).hex()}), flush=True)
    await endpoint.stop()

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[tuple[int, asyncio.StreamReader]]:
    """A worker that takes one call; its port, and its standard output, where a line of JSON follows the call."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(port), str(port_range(102)[0]), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with timeout(10):
            while b"ready" not in await process.stdout.readline():
                pass
        yield port, process.stdout
        async with timeout(10):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def report(lines: asyncio.StreamReader) -> dict[str, object]:
    async with timeout(10):
        while not (line := await lines.readline()).startswith(b"{"):
            assert line
    return dict(json.loads(line))


def tone(rate_hz: int, seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    time_s = np.arange(int(rate_hz * seconds)) / rate_hz
    return np.round(8000 * np.sin(2 * np.pi * 440 * time_s)).astype(np.int16)


@pytest.mark.parametrize(
    ("codec", "transport"), [(Codec.PCMU, "udp"), (Codec.PCMA, "tcp"), (Codec.G722, "udp"), (Codec.OPUS, "udp")]
)
async def test_what_is_played_arrives_at_the_pace_of_speech(codec: Codec, transport: str) -> None:
    samples = tone(16000 if codec.wide else 8000, 1.0)
    async with worker() as (port, lines):
        phone = SipPhone(codec=codec, transport=transport)  # type: ignore[arg-type]
        result = await phone.call(f"sip:1000@127.0.0.1:{port}", samples)
        heard = await report(lines)
    assert result.ok
    assert result.packets_sent == 50
    assert result.packets_received > 25  # the worker's silence
    assert heard["codec"] == codec.rtp_name
    assert heard["reason"] == "hangup"
    assert heard["payload"] == b"".join(encode(samples, codec)).hex()
    assert 0.9 < float(str(heard["span_s"])) < 1.5


async def test_cancelling_the_task_hangs_up() -> None:
    async with worker() as (port, lines):
        call = asyncio.create_task(SipPhone().call(f"sip:1000@127.0.0.1:{port}", tone(8000, 30)))
        await asyncio.sleep(0.5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await report(lines))["reason"] == "hangup"


async def test_a_refusal_is_a_result(tmp_path: Path) -> None:
    sipp, port = Sipp(tmp_path), free_port()
    callee = sipp.start("busy", port=port)
    await asyncio.sleep(0.3)
    result = await SipPhone().call(f"sip:1000@127.0.0.1:{port}", tone(8000, 1))
    assert (result.status, result.ok, result.packets_sent) == (486, False, 0)
    await callee


async def test_no_answer_is_cancelled(tmp_path: Path) -> None:
    sipp, port = Sipp(tmp_path), free_port()
    callee = sipp.start("ringing", port=port)
    await asyncio.sleep(0.3)
    result = await SipPhone().call(f"sip:1000@127.0.0.1:{port}", tone(8000, 1), answer_s=0.5)
    assert (result.status, result.ok) == (408, False)
    await callee  # it has seen the CANCEL


async def test_not_a_uri() -> None:
    with pytest.raises(SipError, match="not a SIP URI: tel:123"):
        await SipPhone().call("tel:123", tone(8000, 1))
