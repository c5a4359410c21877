"""The query for a socket's public address: a STUN Binding request (RFC 8489). No I/O; time is an argument."""

from __future__ import annotations

import struct

from aioice.stun import Class, Message, Method, parse_message

PORT = 3478
REQUESTS_S = (0.0, 0.1, 0.3)
"""The times of the requests after the first one. They are shorter than RFC 8489's half a second, as a call waits."""
GIVE_UP_S = 0.7


class Binding:
    """One Binding request, retransmitted until it is answered or has timed out."""

    def __init__(self, now: float) -> None:
        self._message = Message(Method.BINDING, Class.REQUEST)
        self._times = [now + wait_s for wait_s in (*REQUESTS_S, GIVE_UP_S)]
        self._sent = 0
        self.mapped: tuple[str, int] | None = None
        """The public address of the socket, once it is known."""
        self.refused = False

    @property
    def over(self) -> bool:
        """Whether the request was answered or refused, or has timed out."""
        return self.mapped is not None or self.refused or self._sent > len(REQUESTS_S)

    @property
    def next_s(self) -> float:
        """When `request` has something to say again; valid until it is over."""
        return self._times[self._sent]

    def request(self, now: float) -> bytes:
        """The datagram to send now; empty if none is due."""
        if self.over or now < self.next_s:
            return b""
        self._sent += 1
        return b"" if self.over else bytes(self._message)

    def receive(self, datagram: bytes) -> bool:
        """Process a datagram; returns whether it is the response. Any other datagram changes nothing."""
        if not is_stun(datagram):
            return False
        try:
            message = parse_message(datagram)
        except (ValueError, struct.error):  # of an attribute that is too short
            return False
        if message.transaction_id != self._message.transaction_id or message.message_method != Method.BINDING:
            return False
        if message.message_class == Class.ERROR:
            self.refused = True
            return True
        # A server of RFC 3489 knows the plain one only.
        found = message.attributes.get("XOR-MAPPED-ADDRESS") or message.attributes.get("MAPPED-ADDRESS")
        if message.message_class != Class.RESPONSE or found is None:
            return False
        self.mapped = (str(found[0]), int(found[1]))
        return True


def is_stun(datagram: bytes) -> bool:
    """Whether a datagram on a port shared with RTP is STUN (RFC 7983 section 7): its first byte is below 4, unlike that
    of RTP."""
    return len(datagram) >= 20 and datagram[0] < 4 and datagram[4:8] == b"\x21\x12\xa4\x42"
