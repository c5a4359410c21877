"""RTP in real time from a socket of one's own: the media of a peer whose signalling is SIPp's."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable

from audio.rtp.packet import RtpPacket, TelephoneEvent

SAMPLES = 160


class RtpSender:
    """G.711 in packets of 20 ms from one port. What comes back is counted."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((address, 0))
        self._socket.setblocking(False)
        self._address = address
        self.port: int = self._socket.getsockname()[1]
        self._ssrc = secrets.randbits(32)
        self._sequence, self._timestamp = secrets.randbits(14), secrets.randbits(30)
        self.received: list[bytes] = []
        self.sources = set[int]()
        """The ports that something came from. A stranger may still send to who had our port before."""
        self.seal: Callable[[bytes], bytes] = bytes
        """What becomes of a packet before it is sent: encrypted, say."""

    async def talk(self, codes: bytes, port: int, payload_type: int = 0) -> None:
        """To `port` of the same address; returns when all of it has been sent."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for number, at in enumerate(range(0, len(codes), SAMPLES)):
            await asyncio.sleep(begun_s + 0.020 * number - loop.time())
            payload = codes[at : at + SAMPLES].ljust(SAMPLES, b"\xff")
            packet = RtpPacket(payload_type, self._sequence & 0xFFFF, self._timestamp, self._ssrc, payload)
            self._socket.sendto(self.seal(bytes(packet)), (self._address, port))
            self._sequence += 1
            self._timestamp += SAMPLES
            self._drain()

    async def press(self, event: int, port: int, *, payload_type: int = 101, lost: int = 0) -> None:
        """A digit of 100 ms (RFC 4733): a packet every 20 ms, the last three times but for those that are `lost`."""
        for number in range(1, 8):
            await asyncio.sleep(0.020 if number < 6 else 0)
            end = number >= 5
            if end and number - 5 < lost:
                continue
            payload = bytes(TelephoneEvent(event, SAMPLES * min(number, 5), end=end))
            packet = RtpPacket(payload_type, self._sequence & 0xFFFF, self._timestamp, self._ssrc, payload)
            self._socket.sendto(self.seal(bytes(packet)), (self._address, port))
            self._sequence += 1
        self._timestamp += 5 * SAMPLES

    def take(self) -> list[bytes]:
        """What has come back so far."""
        self._drain()
        return self.received

    def _drain(self) -> None:
        try:
            while True:
                data, source = self._socket.recvfrom(2048)
                self.received.append(data)
                self.sources.add(source[1])
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._drain()
        self._socket.close()
