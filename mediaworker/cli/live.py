"""The live mode of `mediaworker replay`: a source is sent to a running worker in real time, with its faults."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from config.network.addresses import SOCKETS, family_of
from mediaworker.cli.stream import StreamTarget, stream
from mediaworker.cli.terminal.output import CommandError, UsageError
from mediaworker.ingress.twilio.sender import StreamWriter
from mediaworker.ingress.twilio.webhook import sign
from mediaworker.replay.datagrams import Datagram
from mediaworker.replay.link import LinkArrival
from mediaworker.replay.source import Messages, Packets
from mediaworker.replay.streams import Description
from sip.protocol.errors import NO_PJSUA2, SipError

if TYPE_CHECKING:
    from sip.phone import PhoneCall


async def to_websocket(url: str, source: Messages, auth_token: str | None, tls: ssl.SSLContext | None = None) -> str:
    """Send every message when it is due; returns a summary. Raises StreamError."""
    begin_s = source.arrivals[0].at_s
    headers = {"X-Twilio-Signature": sign(auth_token, url)} if auth_token else {}
    messages: Iterator[tuple[float, partial[str]]] = (
        (arrival.at_s - begin_s, partial(str, arrival.what.text)) for arrival in source.arrivals
    )
    # The recording contains its own responses to marks, so none are added.
    await stream(StreamTarget(url, url, {}, True, tls=tls), headers, StreamWriter("", "", ""), messages)
    return f"{len(source.arrivals)} messages in {source.arrivals[-1].at_s - begin_s:.1f} s"


async def to_sip(uri: str, source: Packets, index: int) -> str:
    """Place a call with the stream's codec and send its packets; returns a summary. Raises CommandError."""
    try:
        from sip.phone import SipPhone
    except ImportError as error:
        raise CommandError(f"{NO_PJSUA2} ({error})") from None
    if not 0 <= index < len(source.streams):
        raise UsageError(f"--leg {index}: the capture has {len(source.streams)} streams")
    description, arrivals = source.streams[index].descriptions[0], source.arrivals[index]
    try:
        phone = SipPhone(codec=description.codec, user="replay")
        result = await phone.talk(uri, lambda line: repeat(line, description, arrivals))
    except SipError as error:
        raise CommandError(f"{uri}: {error}") from None
    if not result.ok:
        why = "hung up before all was sent" if result.hung_up_by_peer else f"{result.status} {result.reason}"
        raise CommandError(f"{uri}: {why}")
    return f"{result.status} {result.reason}: {result.packets_sent} packets sent"


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
