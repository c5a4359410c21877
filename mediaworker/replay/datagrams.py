"""Extracts UDP datagrams from the frames of a capture: link layers, IPv4, IPv6. TCP segments are included one by one,
because they may hold SIP.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mediaworker.replay.pcap import CapturedFrame, CaptureError

Address = tuple[str, int]
_UDP, _TCP = 17, 6
_IPV4, _IPV6 = 0x0800, 0x86DD
_VLAN = {0x8100, 0x88A8, 0x9100}
_IPV6_OPTIONS = {0, 43, 60}
"""The IPv6 extension headers that contain their own length: hop-by-hop, routing and destination options."""


class Datagram(NamedTuple):
    """A UDP datagram or the payload of a TCP segment, with its addresses and its time."""

    at_s: float
    source: Address
    target: Address
    payload: bytes
    udp: bool = True


@dataclass(slots=True)
class DatagramCounters:
    """The number of frames that were left out because of what is wrong with them."""

    cut: int = 0
    """Packets that were captured only in part; `tcpdump -s 0` captures whole packets."""


def datagrams(frames: Iterable[CapturedFrame], counters: DatagramCounters) -> Iterator[Datagram]:
    """Yield the datagrams of frames; malformed packets are counted. Raises CaptureError for an unknown link type."""
    for frame in frames:
        try:
            packet = _network(frame)
            found = None if packet is None else _transport(frame.at_s, packet)
        except (struct.error, IndexError, ValueError):
            counters.cut += 1
            continue
        if found is not None:
            yield found


def _network(frame: CapturedFrame) -> bytes | None:
    """Return the IP packet in a frame; None when it holds another protocol."""
    data = frame.data
    match frame.link_type:
        case 1:  # Ethernet
            (kind,), start = struct.unpack_from("!H", data, 12), 14
            while kind in _VLAN:
                (kind,), start = struct.unpack_from("!H", data, start + 2), start + 4
        case 113:  # Linux cooked, `tcpdump -i any`
            (kind,), start = struct.unpack_from("!H", data, 14), 16
        case 276:  # Linux cooked, version 2
            (kind,), start = struct.unpack_from("!H", data), 20
        case 0 | 108:  # BSD loopback: a protocol family in either byte order
            kind, start = (_IPV4 if data[4] >> 4 == 4 else _IPV6), 4
        case 12 | 14 | 101 | 228 | 229:  # IP itself
            kind, start = (_IPV4 if data[0] >> 4 == 4 else _IPV6), 0
        case other:
            raise CaptureError(f"link type {other} is not known; capture on Ethernet, loopback, any or raw IP")
    return data[start:] if kind in (_IPV4, _IPV6) else None


def _transport(at_s: float, packet: bytes) -> Datagram | None:
    """Return the datagram in an IP packet; None for another protocol, and for a fragment, as none is reassembled.

    Raises struct.error, IndexError or ValueError for a packet that was captured only in part.
    """
    if packet[0] >> 4 == 4:
        start, protocol = 4 * (packet[0] & 0x0F), packet[9]
        total, fragment = struct.unpack_from("!H2xH", packet, 2)
        # The total length is 0 when the sender leaves segmentation to its network card (TSO).
        end, fragmented = total or len(packet), bool(fragment & 0x3FFF)
        hosts = [str(ipaddress.IPv4Address(packet[at : at + 4])) for at in (12, 16)]
    else:
        start, protocol = 40, packet[6]
        # A fragment has the protocol 44.
        end, fragmented = 40 + struct.unpack_from("!H", packet, 4)[0], False
        hosts = [str(ipaddress.IPv6Address(packet[at : at + 16])) for at in (8, 24)]
        while protocol in _IPV6_OPTIONS:
            protocol, start = packet[start], start + 8 + 8 * packet[start + 1]
    if fragmented or protocol not in (_UDP, _TCP):
        return None
    source, target = struct.unpack_from("!HH", packet, start)
    if protocol == _UDP:
        (size,) = struct.unpack_from("!H", packet, start + 4)
        begin, end = start + 8, start + size
    else:
        begin = start + 4 * (packet[start + 12] >> 4)
    if end > len(packet) or begin > end:
        raise ValueError("the packet is cut off")
    return Datagram(at_s, (hosts[0], source), (hosts[1], target), packet[begin:end], protocol == _UDP)


def ip_packet(source: Address, target: Address, payload: bytes) -> bytes:
    """Return a UDP datagram in an IP packet; the inverse of `datagrams`."""
    hosts = [ipaddress.ip_address(host) for host, _ in (source, target)]
    udp = struct.pack("!HHHH", source[1], target[1], 8 + len(payload), 0) + payload
    addresses = b"".join(host.packed for host in hosts)
    if hosts[0].version == 6:
        return struct.pack("!IHBB", 6 << 28, len(udp), _UDP, 64) + addresses + udp
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, _UDP, 0) + addresses
    words = sum(struct.unpack("!10H", head))
    checksum = ~(words + (words >> 16)) & 0xFFFF
    return head[:10] + struct.pack("!H", checksum) + head[12:] + udp
