"""Targets behind a call's audio: RTCP, STUN, and encrypted packets beside a stream that must go on."""

from __future__ import annotations

import struct

from aioice.stun import Class, Message, Method

from sip.protocol.rtcp import Reception, Reporter, Sent
from sip.protocol.srtp import KEY_BYTES, SUITES, Crypto, SrtpContext, choose
from sip.protocol.stun import Binding

EACH = 50
"""After so many inputs the stream's next packet is tried."""
_THEIRS, _OURS = Crypto(1, SUITES[0], bytes(KEY_BYTES)), Crypto(1, SUITES[0], bytes(range(KEY_BYTES)))
_PEER = Reporter(99, "them", 0.0)
_ASKED = Binding(0.0)
_ASKED._message.transaction_id = bytes(range(12))  # the same inputs with each start
RTCP_SEEDS = [
    _PEER.report(5.0, Reception(7, 100, 3, 9), Sent(1, 160, 160), bye=True),
    _PEER.report(6.0, Reception(7, 200, 3, 9), Sent(1, 160, 160)),
]


def rtcp(data: bytes) -> None:
    """Whatever the peer says, the next report is one that it can read."""
    ours = Reporter(7, "us", 0.0)
    ours.receive(data, 1.0)
    assert Reporter(8, "them", 0.0).receive(ours.report(5.0, Reception(99, 1, 0, 0), Sent(1, 160, 160)), 5.0)
    assert ours.round_trip_s is None or 0 <= ours.round_trip_s < 65536


def srtp_seeds() -> list[bytes]:
    sender = SrtpContext(_OURS, _THEIRS)
    packets = [struct.pack("!BBHII", 0x80, 0, number, 160 * number, 99) + bytes(160) for number in range(2)]
    return [
        *map(sender.close, packets),
        sender.close_rtcp(RTCP_SEEDS[0]),
        str(_THEIRS).encode() + b"|2^20",
    ]


class Srtp:
    """Datagrams at an encrypted stream, and the same bytes as the value of `a=crypto`."""

    def __init__(self) -> None:
        self._call, self._sender, self._count = SrtpContext(_THEIRS, _OURS), SrtpContext(_OURS, _THEIRS), 0

    def __call__(self, data: bytes) -> None:
        choose([data.decode("latin-1")])
        self._call.open(data)
        self._call.open_rtcp(data)
        self._count += 1
        if self._count % EACH == 0:
            number = 100 + self._count // EACH
            plain = struct.pack("!BBHII", 0x80, 0, number & 0xFFFF, 160 * number & 0xFFFFFFFF, 5) + bytes(160)
            assert self._call.open(self._sender.close(plain)) == plain, "the stream beside it has suffered"


def stun_seeds() -> list[bytes]:
    """Answers to `_ASKED`: right ones, a refusal, and one of an older server."""
    request = _ASKED.request(0.0)
    found = [
        Message(Method.BINDING, Class.RESPONSE, request[8:20], {"XOR-MAPPED-ADDRESS": ("192.0.2.1", 5)}),
        Message(Method.BINDING, Class.RESPONSE, request[8:20], {"XOR-MAPPED-ADDRESS": ("2001:db8::1", 5)}),
        Message(Method.BINDING, Class.RESPONSE, request[8:20], {"MAPPED-ADDRESS": ("192.0.2.1", 5), "SOFTWARE": "x"}),
        Message(Method.BINDING, Class.ERROR, request[8:20], {"ERROR-CODE": (420, "Unknown"), "REALM": "x"}),
    ]
    found[0].add_fingerprint()
    return [bytes(message) for message in found]


def stun(data: bytes) -> None:
    """It is the answer or it is not; nobody else's changes anything."""
    _ASKED.mapped, _ASKED.refused = None, False
    meant = _ASKED.receive(data)
    assert meant == (_ASKED.mapped is not None or _ASKED.refused)
