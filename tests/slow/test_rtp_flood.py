"""Foreign datagrams on a call's RTP port: the kernel drops them, so that they take no room from the call's audio.

python -m tests.slow.test_rtp_flood [SECONDS]     which rates of foreign packets cost audio, with the filter and without
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.codecs.codec import Codec
from config.network.addresses import family_of
from lab.sip.packets import rtp
from lab.sip.rtp_line import Line, line
from sip.media import source_filter
from sip.media.latching import SEQUENTIAL, SILENCE_S, Address
from sip.media.source_filter import program

__all__ = ["line"]
TICK_S = 0.032

FLOOD = """
import socket, sys, time
host, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sender = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
sender.connect((host, port))
packet = bytes([0x80, 0]) + bytes(10) + b"\\x11" * 160
print("begun", flush=True)
begun, sent = time.monotonic(), 0
while True:
    for _ in range(64):
        try:
            sender.send(packet)
        except OSError:
            pass
        sent += 1
    if rate and (ahead := sent / rate - (time.monotonic() - begun)) > 0:
        time.sleep(ahead)
"""


@contextlib.contextmanager
def flood(host: str, port: int, rate: float = 0) -> Iterator[None]:
    """A process that sends `rate` packets a second, or as many as it can."""
    command = [sys.executable, "-S", "-c", FLOOD, host, str(port), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


async def ticks(line: Line, seconds: float) -> None:
    """The media tick of a worker that has little else to do."""
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        for _ in line.receiver.sweep(now):
            await asyncio.sleep(0)
        await asyncio.sleep(TICK_S)


async def talk(line: Line, first: int, packets: int) -> None:
    begun = time.monotonic()
    for number in range(packets):
        line.send(rtp(first + number))
        await asyncio.sleep(max(0.0, begun + (number + 1) * 0.020 - time.monotonic()))


# -- the program -------------------------------------------------------------------------------------------------------

ADDRESSES = st.sampled_from(["192.0.2.1", "192.0.2.2", "0.0.0.0", "255.255.255.255", "2001:db8::1", "2001:db8::2"])
SOURCES = st.tuples(ADDRESSES, st.sampled_from([0, 1, 5060, 65535]))


def run(code: list[source_filter.Instruction], packet: bytes, header: bytes) -> int:
    """As the kernel does (networking/filter): `packet` from the UDP header on, behind its IP `header`."""
    at, accumulator = 0, 0
    while True:
        operation, when, otherwise, operand = code[at]
        at += 1
        match operation:
            case 0x20 | 0x28:
                data, offset = (header, operand - 0xFFF00000) if operand >= 0xFFF00000 else (packet, operand)
                size = 4 if operation == 0x20 else 2
                if len(data) < offset + size:
                    return 0
                accumulator = int.from_bytes(data[offset : offset + size], "big")
            case 0x15:
                at += when if accumulator == operand else otherwise
            case 0x06:
                return operand


@given(st.lists(SOURCES, max_size=3), SOURCES, st.sampled_from([None, 1, 2, 0xFFFFFFFF]), st.integers(0, 20))
def test_the_program_lets_in_who_is_named_and_nobody_else(
    named: list[Address], source: Address, ssrc: int | None, length: int
) -> None:
    address, port = source
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    header = bytes(12 if len(packed) == 4 else 8) + packed + bytes(16)
    datagram = port.to_bytes(2, "big") + bytes(6) + rtp(1)
    same = [each for each in named if family_of(each[0]) == family_of(address)]  # a socket has one family
    assert bool(run(program(same, ssrc), datagram, header)) == (source in named or ssrc == 1)
    short = length >= 2 and source in named or length == 20 and ssrc == 1
    assert bool(run(program(same, ssrc), datagram[:length], header)) == short


# -- in the kernel -----------------------------------------------------------------------------------------------------


async def test_audio_beside_a_flood_arrives_whole(line: Line) -> None:
    """As many foreign packets as a process can send; before, some ten thousand a second displaced audio."""
    line.expect_peer()
    line.send(rtp(0))
    await line.counted(1)
    ticking = asyncio.create_task(ticks(line, 30))
    await asyncio.sleep(2 * TICK_S)
    with flood(line.host, line.rtp.port):
        await talk(line, 1, 60)
        await asyncio.sleep(2 * TICK_S)
    ticking.cancel()
    assert [datagram for datagram, _ in line.heard] == [rtp(number) for number in range(61)]
    assert line.counters.wrong_source > 10_000, "they are counted where they are dropped"
    before = line.counters.wrong_source
    line.rtp.close()
    assert line.counters.wrong_source == before


async def test_who_may_be_heard_after_all(line: Line) -> None:
    """The filter follows the rules of `sip.media.latching`: silence, a new description, and who takes a place back."""
    with contextlib.closing(line.plain()) as other, contextlib.closing(line.plain()) as third:
        line.expect_peer()
        for number in range(SEQUENTIAL):
            line.send(rtp(number, ssrc=2), other)  # another source than the SDP's was first
        await line.counted(SEQUENTIAL)
        assert line.rtp.source == other.getsockname()[:2]
        list(line.receiver.sweep(time.monotonic()))  # from here on it is filtered
        line.send(rtp(1, ssrc=3), third)
        await line.counted(SEQUENTIAL + 1)
        assert line.counters.refused_source == 0 and line.counters.wrong_source == 1
        line.send(bytes([0x80, 200]) + bytes(26), other)  # RTCP over the same port
        await line.counted(SEQUENTIAL + 2)
        assert line.counters.rtcp == 1
        for number in range(SEQUENTIAL):
            line.send(rtp(number))  # the address in the SDP takes its place back
        await line.counted(2 * SEQUENTIAL + 2)
        assert line.rtp.source == line.address
        list(line.receiver.sweep(time.monotonic()))
        for number in range(SEQUENTIAL):
            line.send(rtp(number, ssrc=3), third)
        await line.counted(3 * SEQUENTIAL + 2)
        assert line.rtp.source == line.address
        # As if time had passed: its silence lets another source in, and then keeps others out again.
        later = time.monotonic() + SILENCE_S
        line.receiver.last_packet_s -= SILENCE_S
        line.rtp._latch.last_packet_s -= SILENCE_S
        list(line.receiver.sweep(later - SILENCE_S))
        for number in range(SEQUENTIAL):
            line.send(rtp(number, ssrc=3), third)
        await line.counted(4 * SEQUENTIAL + 2)
        assert line.rtp.source == third.getsockname()[:2]
        list(line.receiver.sweep(time.monotonic()))
        before = line.counters.refused_source
        line.send(rtp(9, ssrc=4), other)
        await line.counted(4 * SEQUENTIAL + 3)
        assert line.counters.refused_source == before
        # A new offer and answer: at once, without a tick in between.
        line.rtp.expect(other.getsockname()[:2], Codec.PCMU, 0, silence=False)
        line.send(rtp(20, ssrc=5), other)
        await line.counted(4 * SEQUENTIAL + 4)
        assert line.heard[-1][0] == rtp(20, ssrc=5)


async def test_where_the_kernel_has_no_filters_the_call_goes_on(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_filter, "SO_ATTACH_FILTER", 9999)
    line.expect_peer()
    line.send(rtp(0))
    await line.counted(1)
    with contextlib.closing(line.plain()) as stranger:
        list(line.receiver.sweep(time.monotonic()))
        line.send(rtp(5, ssrc=2), stranger)
        line.send(rtp(1))
        await line.counted(3)
    assert line.counters.refused_source == line.counters.wrong_source == 1
    assert [datagram for datagram, _ in line.heard] == [rtp(0), rtp(1)]


# -- the rate that does no harm ----------------------------------------------------------------------------------------


async def measure(rate: float, seconds: float, *, filtered: bool) -> tuple[float, float]:
    """(share of the call's packets that is lost, foreign packets a second)."""
    line = Line("127.0.0.1")
    kept = source_filter.SO_ATTACH_FILTER
    source_filter.SO_ATTACH_FILTER = kept if filtered else 9999
    try:
        line.expect_peer()
        line.send(rtp(0))
        await line.counted(1)
        ticking = asyncio.create_task(ticks(line, seconds + 10))
        await asyncio.sleep(2 * TICK_S)
        packets = round(seconds / 0.020)
        with flood(line.host, line.rtp.port, rate):
            dropped = source_filter.drops(line.rtp._socket)
            begun, read = time.monotonic(), line.counters.refused_source
            await talk(line, 1, packets)
            came = line.counters.refused_source - read + source_filter.drops(line.rtp._socket) - dropped
            took_s = time.monotonic() - begun
        await asyncio.sleep(2 * TICK_S)
        ticking.cancel()
        return 1 - (line.rtp.packets - 1) / packets, came / took_s
    finally:
        source_filter.SO_ATTACH_FILTER = kept
        line.rtp.close()
        line.peer.close()


if __name__ == "__main__":
    for wanted in (2_000, 5_000, 8_000, 10_000, 20_000, 50_000, 100_000, 0):
        for filtered in (False, True):
            lost, came = asyncio.run(
                measure(wanted, float(sys.argv[1]) if len(sys.argv) > 1 else 5.0, filtered=filtered)
            )
            how = "with the filter" if filtered else "without"
            sys.stdout.write(f"{came:9,.0f} foreign packets a second, {how:15}: {lost:6.1%} of the audio lost\n")
