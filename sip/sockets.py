"""RTP sockets on the event loop, and the silence that is sent from them.

A socket is drained by the loop's reader callback, one datagram per wake-up: at 50 packets a second there is never more
than one, and it costs as much as a datagram endpoint of the same loop while opening and closing stay synchronous, so
that a SIP callback can do it.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from audio.codec import Codec
from sip.latch import Address, SourceLatch
from sip.ports import RtpPorts

PTIME_S = 0.020
SAMPLES = 160
"""RTP clock ticks of 20 ms at 8 kHz, for G.722 too."""

_MAX_DATAGRAM = 2048
_PHASES = 4

# The byte of each codec that decodes to silence: 0 in G.711, -2 of 32768 in G.722.
_SILENCE = {Codec.PCMU: b"\xff", Codec.PCMA: b"\xd5", Codec.G722: b"\xff"}


@dataclass(slots=True)
class RtpCounters:
    """Totals over all sockets, for metrics."""

    closed_packets: int = 0
    """Packets taken by sockets that are closed; `packets` has all."""
    wrong_source: int = 0
    """Datagrams of a source that is not the stream's."""
    rtcp: int = 0
    sent: int = 0
    send_errors: int = 0
    receive_errors: int = 0
    open_sockets: set[RtpSocket] = field(default_factory=set)

    @property
    def packets(self) -> int:
        """Taken from the right source: counted where they arrive, summed when somebody asks."""
        return self.closed_packets + sum(socket.packets for socket in self.open_sockets)


def _ignore(datagram: bytes, now: float) -> None:
    """Until a handler has set `on_packet`."""


class RtpSocket:
    """One stream's socket: datagrams of the right source go to `on_packet(datagram, now)`, RTCP is counted away."""

    __slots__ = (
        "_counters", "_latch", "_loop", "_marker", "_opened_s", "_payload_type", "_ports", "_receive", "_sequence",
        "_socket", "_ssrc", "_ticker", "_time", "_timestamp", "on_packet", "packets", "port", "sent", "silence",
    )  # fmt: skip

    def __init__(
        self, ports: RtpPorts, counters: RtpCounters, ticker: SilenceTicker, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Raises PortsExhausted."""
        self._loop = loop
        self._ports = ports
        self._counters = counters
        self._ticker = ticker
        self._socket: socket.socket = ports.open(loop.time())
        self._latch = SourceLatch()
        self._receive = self._socket.recvfrom
        self._time = loop.time
        self._ssrc = secrets.randbits(32)
        self._sequence = secrets.randbits(15)  # the top bit clear: room before the first wrap (RFC 3711 section 3.3.1)
        self._timestamp = secrets.randbits(31)
        self._marker = 0x80
        self._payload_type = 0
        self.port: int = self._socket.getsockname()[1]
        self.on_packet: Callable[[bytes, float], None] = _ignore
        self.silence = b""
        """Payload of 20 ms of silence in the codec being sent."""
        self.packets = 0
        self.sent = 0
        self._opened_s = loop.time()
        counters.open_sockets.add(self)
        loop.add_reader(self._socket.fileno(), self._readable)

    @property
    def last_packet_s(self) -> float:
        """When a packet last came; when the socket was opened, before the first one."""
        return max(self._opened_s, self._latch.heard_s)

    @property
    def source(self) -> Address | None:
        """The source that the stream is locked to."""
        return self._latch.source

    def expect(self, remote: Address | None, codec: Codec, payload_type: int, *, silence: bool) -> None:
        """Take over the outcome of an offer/answer: learn the source anew, and send silence from now on or not."""
        self._latch.expect(remote, self._time())
        self._payload_type = payload_type
        self.silence = _SILENCE[codec] * SAMPLES
        if silence:
            self._ticker.add(self)
        else:
            self._ticker.remove(self)

    def send(self, payload: bytes, ticks: int = 1) -> None:
        """Send one RTP packet of 20 ms. `ticks`: how many periods have gone by since the last one."""
        if ticks > 1:
            self._timestamp += SAMPLES * (ticks - 1)
        target = self._latch.target
        if target is not None:
            second = self._marker | self._payload_type
            header = struct.pack(
                "!BBHII", 0x80, second, self._sequence & 0xFFFF, self._timestamp & 0xFFFFFFFF, self._ssrc
            )
            try:
                self._socket.sendto(header + payload, target)
            except OSError:
                # A full buffer or an ICMP error: the packet is gone, as on any network.
                self._counters.send_errors += 1
            else:
                self.sent += 1
                self._counters.sent += 1
            self._marker = 0
            self._sequence += 1
        self._timestamp += SAMPLES

    def close(self) -> None:
        """Idempotent. The port rests before another stream gets it."""
        if self._socket.fileno() < 0:
            return
        self._ticker.remove(self)
        self._counters.open_sockets.discard(self)
        self._counters.closed_packets += self.packets
        self._loop.remove_reader(self._socket.fileno())
        self._ports.close(self._socket, self._time())
        self.on_packet = _ignore

    def _readable(self) -> None:
        try:
            datagram, address = self._receive(_MAX_DATAGRAM)
        except BlockingIOError:
            return
        except OSError:
            self._counters.receive_errors += 1
            return
        # RFC 5761 section 4: packet types 192 to 223 are RTCP.
        if len(datagram) > 1 and 192 <= datagram[1] <= 223:
            self._counters.rtcp += 1
            return
        latch, now = self._latch, self._time()
        if address == latch.source:  # nearly always: the latch has nothing to decide
            latch.heard_s = now
            self.packets += 1
            self.on_packet(datagram, now)
            return
        for accepted in latch.accept(datagram, address, now):
            self.packets += 1
            self.on_packet(accepted, now)
        if latch.refused:
            self._counters.wrong_source += latch.refused
            latch.refused = 0


class SilenceTicker:
    """One timer for the silence of all sockets: 20 ms each, spread over four phases so that no tick is long."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._phases: list[dict[RtpSocket, int]] = [{} for _ in range(_PHASES)]
        self._timer: asyncio.TimerHandle | None = None
        self._start_s = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._phases))

    def add(self, sender: RtpSocket) -> None:
        if any(sender in phase for phase in self._phases):
            return
        if self._timer is None:
            self._start_s = self._loop.time()
            self._arm(0)
        due = self._index(self._loop.time())
        phase = min(range(_PHASES), key=lambda i: len(self._phases[i]))
        self._phases[phase][sender] = due

    def remove(self, sender: RtpSocket) -> None:
        for phase in self._phases:
            phase.pop(sender, None)
        if self._timer is not None and not any(self._phases):
            self._timer.cancel()
            self._timer = None

    def _index(self, now: float) -> int:
        return int((now - self._start_s) / (PTIME_S / _PHASES))

    def _arm(self, index: int) -> None:
        self._timer = self._loop.call_at(self._start_s + index * PTIME_S / _PHASES, self._tick, index)

    def _tick(self, index: int) -> None:
        # The schedule is absolute: a late tick does not move the next ones, and periods that were missed altogether
        # show in the RTP timestamp only.
        index += max(0, self._index(self._loop.time()) - index) // _PHASES * _PHASES
        senders = self._phases[index % _PHASES]
        for sender, last in senders.items():
            sender.send(sender.silence, max(1, (index - last) // _PHASES))
            senders[sender] = index
        index += 1
        while not self._phases[index % _PHASES]:
            index += 1
        self._arm(index)
