"""RTP sockets: which source is heard, which ports are used, what silence is sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from contextlib import closing
from ipaddress import IPv6Address
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Detector
from audio.codecs.codec import Codec
from audio.codecs.g711 import alaw_decode, ulaw_decode
from audio.codecs.g722 import G722Decoder
from audio.rtp.packet import RtpPacket
from config import Endpointing
from config.network.addresses import SOCKETS, Family, canonical
from lab.network.ports import port_range
from lab.patience import timeout, until
from lab.sip.packets import PEER, rtp
from lab.sip.rtp_line import Line, line
from sip.media.latching import SEQUENTIAL
from sip.media.ports import RtpPorts
from sip.media.receiver import BATCH, MAX_BYTES, MAX_PASSES, ROOM, SO_TIMESTAMPNS, RtpReceiver, _Buffers
from sip.protocol.errors import PortsExhausted
from sip.protocol.srtp import SUITES, Crypto, SrtpContext

__all__ = ["line"]


def test_ports_are_even_and_rest_before_reuse() -> None:
    first = port_range(8)[0] | 1
    ports = RtpPorts(first, first + 5, host="127.0.0.1", quarantine_s=10.0)
    sockets = [ports.open(0.0) for _ in range(3)]
    numbers = [bound.getsockname()[1] for bound in sockets]
    assert all(number % 2 == 0 and first <= number <= first + 5 for number in numbers)
    assert len(set(numbers)) == ports.in_use == 3
    with pytest.raises(PortsExhausted):
        ports.open(0.0)
    ports.close(sockets[1], 1.0)
    with pytest.raises(PortsExhausted):
        ports.open(10.9)
    again = ports.open(11.0)
    assert again.getsockname()[1] == numbers[1]
    for bound in (sockets[0], sockets[2], again):
        ports.close(bound, 12.0)
    assert ports.in_use == 0


def test_a_port_of_another_program_is_passed_over() -> None:
    first, _ = port_range(4)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", first))
        ports = RtpPorts(first, first + 3, host="127.0.0.1")
        bound = ports.open(0.0)
        assert bound.getsockname()[1] == first + 2
        ports.close(bound, 0.0)


@pytest.mark.parametrize("family", ["IP4", "IP6"])
def test_a_number_is_in_use_in_one_family_at_a_time(family: Family) -> None:
    first, _ = port_range(2)
    ports = RtpPorts(first, first + 1, host="127.0.0.1", host6="::1", quarantine_s=0.0)
    bound = ports.open(0.0, family)
    assert bound.getsockname()[1] == first and bound.family == SOCKETS[family]
    if family == "IP6":
        assert bound.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
            other.bind(("0.0.0.0", first))  # which is nothing to this one
    for other_family in SOCKETS:
        with pytest.raises(PortsExhausted):
            ports.open(0.0, other_family)
    ports.close(bound, 0.0)
    for other_family in SOCKETS:
        again = ports.open(1.0, other_family)
        ports.close(again, 1.0)


def wait_for_kernel_stamps() -> None:
    """The kernel begins to stamp datagrams some moments after the machine's first socket has asked it to; what came
    before that is stamped when it is read. Keep a socket that has asked open meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

        def stamped_on_arrival() -> bool:
            own.sendto(b"", own.getsockname())
            time.sleep(0.03)
            before = time.time()
            [(_, _, stamp)] = own.recvmsg(16, 64)[1]
            seconds, nanoseconds = struct.unpack("@ll", stamp)
            return bool(seconds + nanoseconds / 1e9 < before - 0.01)

        until(stamped_on_arrival, 10, "the kernel stamps datagrams when they arrive")


async def test_datagrams_arrive_with_their_time(line: Line) -> None:
    line.expect_peer()
    await asyncio.to_thread(wait_for_kernel_stamps)  # the line's own socket has asked too
    sent_s = []
    for sequence in range(3):
        sent_s.append(time.monotonic())
        line.send(rtp(sequence))
        time.sleep(0.03)  # noqa: ASYNC251 - nobody reads meanwhile
    await line.counted(3)
    assert [datagram for datagram, _ in line.heard] == [rtp(0), rtp(1), rtp(2)]
    # Not when they were read: when the kernel got them.
    for (_, last_packet_s), before, after in zip(line.heard, sent_s, [*sent_s[1:], time.monotonic()], strict=True):
        assert before - 0.002 <= last_packet_s <= after + 0.002
    assert line.rtp.packets == line.counters.packets == 3


async def test_a_closed_socket_is_read_no_more_and_its_slot_is_used_again(line: Line) -> None:
    others = [line.open() for _ in range(200)]
    for other in others:
        other.expect(line.address, Codec.PCMU, 0, silence=False)
        line.peer.sendto(rtp(1), (line.host, other.port))
    await line.counted(200)
    assert [other.packets for other in others] == [1] * 200
    slots = {other.slot for other in others}
    for other in others:
        line.peer.sendto(rtp(2), (line.host, other.port))
        other.close()
    again = [line.open() for _ in range(200)]
    assert {other.slot for other in again} == slots
    for other in again:
        assert other.packets == 0
        other.expect(line.address, Codec.PCMU, 0, silence=False)
    line.peer.sendto(rtp(3), (line.host, again[7].port))
    await line.counted(201)
    assert [other.packets for other in again] == [0] * 7 + [1] + [0] * 192
    assert line.counters.packets == 201
    for other in again:
        other.close()


async def test_packets_of_many_legs_reach_them_in_order(line: Line) -> None:
    """More at once than a batch holds, more on one port than a call reads; strangers and RTCP in between."""
    detector = Detector()
    line.receiver = RtpReceiver(detector)
    legs, sockets = [], []
    for _ in range(40):
        opened = line.open()
        opened.leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
        opened.expect(line.address, Codec.PCMU, 0, silence=False)
        legs.append(opened.leg)
        sockets.append(opened)
    count = 3 * ROOM + 2
    assert len(legs) * count > BATCH
    with contextlib.closing(line.plain()) as stranger:
        for number in range(count):
            for index, opened in enumerate(sockets):
                payload = bytes([1 + (number + index) % 100]) * 160
                packet = RtpPacket(0, number, number * 160, index, payload)
                line.peer.sendto(bytes(packet), (line.host, opened.port))
                stranger.sendto(bytes(packet), (line.host, opened.port))
                if number % 7 == 0:
                    line.peer.sendto(bytes([0x80, 200]) + bytes(26), (line.host, opened.port))
    await line.counted(len(legs) * (2 * count + 4))
    assert line.counters.wrong_source == len(legs) * count
    # Looked at one by one: the first of the source, those of the stranger, RTCP. The rest goes in bulk.
    assert [opened.looked_at for opened in sockets] == [1 + count + 4] * len(sockets)
    for index, (leg, opened) in enumerate(zip(legs, sockets, strict=True)):
        assert (leg.packets, leg.lost_packets, leg.end, opened.packets) == (count, 0, count * 160, count)
        list(detector.step(time.monotonic() + 10))
        heard = leg.read(0, count * 160)
        assert heard == b"".join(bytes([1 + (number + index) % 100]) * 160 for number in range(count))
        opened.close()
        detector.close(leg)


async def test_a_flood_on_one_port_leaves_the_others_their_turn(line: Line) -> None:
    line.expect_peer()
    other = line.open()
    other.expect(line.address, Codec.PCMU, 0, silence=False)
    flood = 2 * ROOM * MAX_PASSES
    line.rtp._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    for _ in range(flood):
        line.send(b"\x00")
    line.peer.sendto(rtp(1), (line.host, other.port))
    list(line.receiver.sweep(time.monotonic()))
    assert other.packets == 1
    assert line.rtp.packets <= ROOM * MAX_PASSES
    other.close()


async def test_a_datagram_too_long_for_rtp_is_counted(line: Line) -> None:
    line.expect_peer()
    line.send(bytes(MAX_BYTES + 1))
    line.send(rtp(1))
    await line.counted(1)
    assert line.receiver.truncated == 1
    assert [datagram for datagram, _ in line.heard] == [rtp(1)]


async def test_rtcp_and_strangers_are_counted_and_dropped(line: Line) -> None:
    line.expect_peer()
    line.send(rtp(0))
    await line.counted(1)
    with contextlib.closing(line.plain()) as stranger:
        line.send(rtp(5, ssrc=2), stranger)
        line.send(bytes([0x80, 200]) + bytes(26))
        line.send(b"")
        await line.counted(4)
    assert (line.counters.wrong_source, line.counters.rtcp) == (1, 1)
    assert [datagram for datagram, _ in line.heard] == [rtp(0), b""]


@pytest.mark.parametrize("taken", ["in bulk", "one by one", "decrypted"])
async def test_a_stream_that_moves_is_heard_without_a_gap(line: Line, taken: str) -> None:
    """As when a NAT gives it another port: at once, although the kernel lets nobody else in while it is heard."""
    detector = Detector()
    line.receiver = RtpReceiver(detector if taken == "in bulk" else None)
    line.rtp.close()
    line.rtp, key = line.open(), Crypto(1, SUITES[0], bytes(range(30)))
    keys = (key, key.own()) if taken == "decrypted" else None
    seal = SrtpContext(*reversed(keys)).close if keys else bytes
    line.rtp.leg = leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    line.rtp.expect(line.address, Codec.PCMU, 0, silence=False, keys=keys)
    numbers = iter(range(65500, 66000))
    with contextlib.closing(line.plain()) as other, contextlib.closing(line.plain()) as stranger:
        for turn, source in enumerate((line.peer, other, line.peer, other), 1):
            for _ in range(25):
                line.send(seal(rtp(number := next(numbers))), source)
                line.send(rtp(number + 1, ssrc=7), stranger)
                list(line.receiver.sweep(time.monotonic()))
            async with timeout(5):
                while leg.packets < 25 * turn:
                    for _ in line.receiver.sweep(time.monotonic()):
                        await asyncio.sleep(0)
                    await asyncio.sleep(0.001)
            assert line.rtp.source == source.getsockname()[:2]
    assert (leg.packets, leg.lost_packets, leg.ssrc_changes) == (100, 0, 0)


@pytest.mark.parametrize("codec", [Codec.PCMU, Codec.PCMA, Codec.G722])
async def test_silence_is_paced_and_silent(line: Line, codec: Codec) -> None:
    line.expect_peer(codec, silence=True)
    start_s = line.loop.time()
    packets = await line.receive(11)
    took_s = line.loop.time() - start_s
    assert took_s > 0.19
    decode = {Codec.PCMU: ulaw_decode, Codec.PCMA: alaw_decode, Codec.G722: G722Decoder().decode}[codec]
    first = packets[0]
    assert first.marker and not packets[1].marker
    for index, packet in enumerate(packets):
        assert packet.payload_type == codec.payload_type
        assert packet.sequence == (first.sequence + index) & 0xFFFF
        assert packet.ssrc == first.ssrc
        assert (packet.timestamp - first.timestamp) % 160 == 0
        assert len(packet.payload) == 160
        assert abs(decode(packet.payload)).max() <= 8
    assert packets[-1].timestamp - first.timestamp >= 1600
    steps = sorted(after.timestamp - before.timestamp for before, after in pairwise(packets))
    assert steps[len(steps) // 2] == 160, "one every 20 ms, but for those behind a pause of this process"


async def test_silence_stops_when_a_hold_says_so_and_goes_to_the_learned_source(line: Line) -> None:
    line.rtp.expect((line.host, 9), Codec.PCMU, 0, silence=True)
    for sequence in range(SEQUENTIAL):
        line.send(rtp(sequence))
    await line.counted(SEQUENTIAL)
    assert line.rtp.source == line.address
    await line.receive(2)
    line.rtp.expect(None, Codec.PCMU, 0, silence=False)
    assert len(line.ticker) == 0


async def test_a_blocked_loop_leaves_a_gap_in_time_not_a_burst(line: Line) -> None:
    line.expect_peer(silence=True)
    (first,) = await line.receive(1)
    time.sleep(0.21)  # noqa: ASYNC251 - the point of the test
    (second,) = await line.receive(1)
    begun_s = line.loop.time()
    (third,) = await line.receive(1)
    pause = round(8000 * (line.loop.time() - begun_s))
    assert second.sequence == (first.sequence + 1) & 0xFFFF
    assert second.timestamp - first.timestamp >= 10 * 160
    assert third.timestamp - second.timestamp <= 2 * 160 + pause


async def test_many_senders_share_one_timer(line: Line) -> None:
    others = [line.open() for _ in range(8)]
    for other in others:
        other.expect(line.address, Codec.PCMU, 0, silence=True)
    packets = await line.receive(80)
    by_sender = [sum(packet.ssrc == ssrc for packet in packets) for ssrc in {packet.ssrc for packet in packets}]
    assert len(by_sender) == 8
    assert max(by_sender) - min(by_sender) <= 2
    for other in others:
        other.close()


addresses = st.builds(
    lambda prefix, host, port: (str(IPv6Address(prefix << 64 | host)), port),
    st.sampled_from([0, 1, 0x20010DB8_00000000, 0x20010DB8_00000080, 2**63]) | st.integers(0, 2**64 - 1),
    st.sampled_from([1, 0x81, 2**63, 2**63 + 1]) | st.integers(0, 2**64 - 1),
    st.sampled_from([4000, 4001]),
)


@given(addresses, st.lists(addresses, min_size=1, max_size=20), st.booleans())
def test_nobody_else_is_taken_for_the_locked_source(
    source: tuple[str, int], senders: list[tuple[str, int]], itself: bool
) -> None:
    """All of an IPv6 address counts, of each of many datagrams, beside those of IPv4."""
    receiver, buffers = RtpReceiver(), _Buffers()
    with closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as six, closing(socket.socket(type=2)) as four:
        slots = [receiver.add(None, six), receiver.add(None, four)]  # type: ignore[arg-type]
    source = canonical(source[0]), source[1]
    receiver.lock(slots[0], source)
    receiver.lock(slots[1], PEER)
    senders = [(canonical(host), port) for host, port in senders] + [source] * itself
    for index, (host, port) in enumerate(senders):
        name = socket.AF_INET6.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + bytes(4)
        raw = name + socket.inet_pton(socket.AF_INET6, host) + bytes(4)
        buffers.names[index, : len(raw)] = np.frombuffer(raw, np.uint8)
        assert buffers.address(index) == (host, port)
    count = len(senders)
    name = socket.AF_INET.to_bytes(2, sys.byteorder) + PEER[1].to_bytes(2, "big") + socket.inet_aton(PEER[0])
    buffers.names[count, :8] = np.frombuffer(name, np.uint8)
    assert buffers.address(count) == PEER
    found = receiver._locked(buffers, np.array([slots[0]] * count + [slots[1]]))
    assert found.tolist() == [sender == source for sender in senders] + [True]
