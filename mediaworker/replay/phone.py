"""A phone that sends the packets of a capture as they are, from the port its SDP names."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Sequence
from typing import Any

from mediaworker.replay.datagrams import Datagram
from mediaworker.replay.link import Arrival
from mediaworker.replay.streams import Description
from sip.phone import CallFailed, PhoneResult, SipPhone
from sip.sockets import RtpSocket


class ReplayPhone(SipPhone):
    """Calls with the codec of the capture; payload types become those that the call has agreed on."""

    def __init__(self, description: Description, arrivals: Sequence[Arrival[Datagram]]) -> None:
        super().__init__(codec=description.codec, user="replay")
        self._description, self._arrivals = description, arrivals

    async def _talk(self, dialog: Any, socket: RtpSocket, *rest: Any) -> PhoneResult:
        try:
            stream = await asyncio.wait_for(asyncio.shield(dialog.answered), rest[-1])
        except TimeoutError:
            return PhoneResult(408, "no answer", 0, 0, False)
        except CallFailed as failure:
            return PhoneResult(failure.status, failure.reason, 0, 0, False)
        numbers = {self._description.payload_type: stream.payload_type}
        if self._description.telephone_event is not None and stream.telephone_event is not None:
            numbers[self._description.telephone_event] = stream.telephone_event
        sent, over = 0, dialog.over
        loop = asyncio.get_running_loop()
        with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as stranger:
            start_s = loop.time() - self._arrivals[0].at_s
            for at_s, datagram, foreign in self._arrivals:
                if (wait_s := start_s + at_s - loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                if over.is_set():
                    break
                payload = renumber(datagram.payload, numbers)
                (stranger if foreign else socket._socket).sendto(payload, stream.remote)
                sent += not foreign
        return PhoneResult(200, "OK", sent, 0, over.is_set())


def renumber(datagram: bytes, numbers: dict[int, int]) -> bytes:
    """With another payload type; the marker stays."""
    if len(datagram) < 2:
        return datagram
    kind = datagram[1]
    return datagram[:1] + bytes([kind & 0x80 | numbers.get(kind & 0x7F, kind & 0x7F)]) + datagram[2:]
