"""A SIP endpoint in this process, with a handler that records what happens to its calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from config import Settings
from config.load import load, parse
from config.network.access_list import LOOPBACK
from lab.network.ports import free_port, port_range
from lab.patience import eventually as until
from lab.sip.sipp_caller import Sipp
from sip.pjsip import callbacks, native
from sip.pjsip.call import SipCall
from sip.pjsip.dialog import Dialog
from sip.pjsip.endpoint import SipEndpoint

PCMU = {"payload_type": 0, "rtpmap": "PCMU/8000"}


class Recorder:
    """A handler that writes down what happens and keeps the audio."""

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []
        self.audio: dict[str, list[bytes]] = {}
        self.calls: list[SipCall] = []
        self.refuse = 0
        self.on_answering: Callable[[SipCall], None] = lambda call: None

    def on_call(self, call: SipCall) -> None:
        self.calls.append(call)
        self.log.append(("call", call.streams[0].codec.rtp_name, call.streams[0].direction.value))
        packets = self.audio.setdefault(call.call_id, [])
        call.streams[0].socket.on_packet = lambda datagram, now: packets.append(datagram)
        self.on_answering(call)

    def on_media(self, call: SipCall) -> None:
        stream = call.streams[0]
        self.log.append(("media", stream.codec.rtp_name, stream.direction.value, "held" if call.held else "live"))

    def on_metadata(self, call: SipCall) -> None:
        self.log.append(("metadata",))

    def on_dtmf(self, call: SipCall, digit: str, duration_ms: int) -> None:
        self.log.append(("dtmf", digit, str(duration_ms)))

    def on_end(self, call: SipCall, reason: str) -> None:
        self.log.append(("end", reason))

    def can_accept(self) -> int:
        return self.refuse


@contextlib.contextmanager
def short_memory() -> Iterator[None]:
    """Transactions wait half a second for repetitions, not 32."""
    native.library.pjsip_tsx_set_timers(0, 0, 0, 500)
    try:
        yield
    finally:
        native.library.pjsip_tsx_set_timers(0, 0, 0, 32000)


@contextlib.asynccontextmanager
async def worker(
    handler: Recorder,
    *,
    trusted: tuple[str, ...] = LOOPBACK,
    left_open: int = 1,
    cluster: bool = False,
    **sip: object,
) -> AsyncIterator[SipEndpoint]:
    """A started endpoint on free ports, which must leave nothing behind.

    `left_open`: connections that may stay for a while, both ends of those within this process.
    """
    first, last = port_range(400)
    tree = {"sip": {"host": "127.0.0.1", "port": free_port(), **sip}, "rtp": {"port_min": first, "port_max": last}}
    settings = parse(tree | ({"cluster": {"nats": ["nats://127.0.0.1:4222"]}} if cluster else {}))
    endpoint = SipEndpoint(settings, handler, trusted=trusted)
    gc.freeze()  # what there is already is no call of this endpoint, and is not searched
    try:
        await endpoint.start()
        idle = sockets()
        sweeps = asyncio.get_running_loop().create_task(sweep(endpoint))
        try:
            yield endpoint
            await until(lambda: endpoint.calls == 0)
            await until(lambda: not any(issubclass(type(thing), SipCall | Dialog) for thing in alive(handler)))
            assert endpoint.rtp_sockets == 0
            assert len(endpoint.control.ticker) == 0
            # The other end of a connection that is closed is closed in its own time.
            await until(lambda: sockets() <= idle + left_open)
            assert endpoint.counters.sdp_mismatches == 0
            assert callbacks.callback_errors == 0
        finally:
            sweeps.cancel()
            await endpoint.stop()
    finally:
        gc.unfreeze()


async def sweep(endpoint: SipEndpoint) -> None:
    """What the media tick does for RTP."""
    while True:
        list(endpoint.receiver.sweep(time.monotonic()))
        await asyncio.sleep(0.01)


def alive(handler: Recorder) -> list[object]:
    """Look at their types alone: some of torch's objects warn when they are asked for their class."""
    handler.calls.clear()
    gc.collect()
    return gc.get_objects()


def sockets() -> int:
    """The Internet sockets of this process: all that SIP and RTP open, and nothing that else goes on here."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    count += copy.family != socket.AF_UNIX
    return count


def loaded(folder: Path, text: str) -> Settings:
    """Settings with these lines in `[sip]`."""
    file = folder / "worker.toml"
    file.write_text(f"[sip]\n{text}")
    return load(file, {})


@pytest.fixture
def sipp(tmp_path: Path) -> Sipp:
    return Sipp(tmp_path)


CODES = bytes(index % 256 for index in range(4000))
"""Half a second of all 256 codes in a row, so that any shift or loss shows."""


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    path = tmp_path / "codes.raw"
    path.write_bytes(CODES)
    return path


def played(packets: list[bytes]) -> bytes:
    return b"".join(packet[12:] for packet in packets)
