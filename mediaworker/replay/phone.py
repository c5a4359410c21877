"""What the phone says in a replay: the packets of a capture as they are, from the port its SDP names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from config.addresses import SOCKETS, family_of
from mediaworker.replay.datagrams import Datagram
from mediaworker.replay.link import LinkArrival
from mediaworker.replay.streams import Description
from sip.phone import PhoneCall


async def repeat(line: PhoneCall, description: Description, arrivals: Sequence[LinkArrival[Datagram]]) -> None:
    """Send what was captured, at its own pace; payload types become those that the call has agreed on."""
    stream, over, remote = line.stream, line.over, line.stream.remote
    if remote is None:
        return  # the peer wants to hear nothing
    numbers = {description.payload_type: stream.payload_type}
    if description.telephone_event is not None and stream.telephone_event is not None:
        numbers[description.telephone_event] = stream.telephone_event
    loop = asyncio.get_running_loop()
    with socket.socket(SOCKETS[family_of(remote[0])], socket.SOCK_DGRAM) as stranger:
        start_s = loop.time() - arrivals[0].at_s
        for at_s, datagram, foreign in arrivals:
            if (wait_s := start_s + at_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)
            if over.is_set():
                break
            payload = renumber(datagram.payload, numbers)
            if foreign:
                stranger.sendto(payload, remote)
            else:
                line.socket.forward(payload, remote)


def renumber(datagram: bytes, numbers: dict[int, int]) -> bytes:
    """With another payload type; the marker stays."""
    if len(datagram) < 2:
        return datagram
    kind = datagram[1]
    return datagram[:1] + bytes([kind & 0x80 | numbers.get(kind & 0x7F, kind & 0x7F)]) + datagram[2:]
