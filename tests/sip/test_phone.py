"""SipPhone against SIPp and against a worker in another process (PJSIP is one per process)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audio.codecs.codec import Codec
from lab.network.ports import free_port, port_range
from lab.patience import wait_for
from lab.sip.sipp_caller import Sipp, listens
from sip.phone import PhoneResult, SipPhone, encode, play
from sip.protocol.errors import SipError

WORKER = """
import asyncio, json, sys, time
from config.load import parse
from sip.pjsip.endpoint import SipEndpoint

class Handler:
    def on_call(self, call):
        self.codec, self.packets = call.streams[0].codec.rtp_name, []
        call.streams[0].socket.on_packet = lambda datagram, now: self.packets.append((datagram, now))
        print("answered", flush=True)
    def on_media(self, call): pass
    def on_dtmf(self, call, digit, duration_ms): pass
    def on_end(self, call, reason):
        print(json.dumps({
            "codec": self.codec, "reason": reason, "times_s": [now for _, now in self.packets],
            "payload": b"".join(datagram[12:] for datagram, _ in self.packets).hex()}), flush=True)
    def can_accept(self): return 0

async def main(port, first):
    endpoint = SipEndpoint(parse({
        "sip": {"host": "127.0.0.1", "port": port}, "rtp": {"port_min": first, "port_max": first + 100}}), Handler())
    await endpoint.start()
    print("ready", flush=True)
    while True:
        for _ in endpoint.receiver.sweep(time.monotonic()): pass
        await asyncio.sleep(0.01)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


class Answering:
    """A worker in a process of its own, and what it writes: a line when it answers a call, and JSON when that ends."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-c", WORKER, str(self.port), str(port_range(102)[0])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._line("ready")

    def _line(self, begin: str) -> str:
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline().decode()).startswith(begin):
            assert line, "it has ended"
        return line

    async def line(self, begin: str) -> str:
        """The next line that begins so."""
        return await wait_for(asyncio.to_thread(self._line, begin), 10)

    async def report(self) -> dict[str, Any]:
        return dict(json.loads(await self.line("{")))


@pytest.fixture(scope="module")
def answering() -> Iterator[Answering]:
    started = Answering()
    yield started
    started.process.kill()
    started.process.communicate()


def tone(rate_hz: int, seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    time_s = np.arange(int(rate_hz * seconds)) / rate_hz
    return np.round(8000 * np.sin(2 * np.pi * 440 * time_s)).astype(np.int16)


def uri_of(port: int) -> str:
    return f"sip:1000@127.0.0.1:{port}"


async def call(uri: str, seconds: float, *, answer_s: float = 30.0) -> PhoneResult:
    packets = encode(tone(8000, seconds), Codec.PCMU)
    return await SipPhone().talk(uri, lambda line: play(line, packets), answer_s=answer_s)


@pytest.mark.parametrize(
    ("codec", "transport"), [(Codec.PCMU, "udp"), (Codec.PCMA, "tcp"), (Codec.G722, "udp"), (Codec.OPUS, "udp")]
)
async def test_what_is_played_arrives_at_the_pace_of_speech(answering: Answering, codec: Codec, transport: str) -> None:
    samples = tone(16000 if codec.wide else 8000, 1.0)
    phone = SipPhone(codec=codec, transport=transport)  # type: ignore[arg-type]
    result = await phone.talk(uri_of(answering.port), lambda line: play(line, encode(samples, codec)))
    heard = await answering.report()
    assert result.ok
    assert result.packets_sent == 50
    assert result.packets_received > 25  # the worker's silence
    assert heard["codec"] == codec.rtp_name
    assert heard["reason"] == "hangup"
    assert heard["payload"] == b"".join(encode(samples, codec)).hex()
    times_s = heard["times_s"]
    assert times_s[-1] - times_s[0] > 0.9
    # Most of the packets follow at the right distance, however long the phone stood still in between.
    assert np.median(np.diff(times_s)) < 0.03


async def test_cancelling_the_task_hangs_up(answering: Answering) -> None:
    calling = asyncio.create_task(call(uri_of(answering.port), 30))
    await answering.line("answered")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert (await answering.report())["reason"] == "hangup"


async def test_a_refusal_is_a_result(tmp_path: Path) -> None:
    sipp, port = Sipp(tmp_path), free_port()
    callee = sipp.start("busy", port=port)
    await listens(port)
    result = await call(uri_of(port), 1)
    assert (result.status, result.ok, result.packets_sent) == (486, False, 0)
    await callee


async def test_no_answer_is_cancelled(tmp_path: Path) -> None:
    sipp, port = Sipp(tmp_path), free_port()
    callee = sipp.start("ringing", port=port)
    await listens(port)
    result = await call(uri_of(port), 1, answer_s=0.5)
    assert (result.status, result.ok) == (408, False)
    await callee  # it has seen the CANCEL


async def test_not_a_uri() -> None:
    with pytest.raises(SipError, match="not a SIP URI: tel:123"):
        await call("tel:123", 1)
