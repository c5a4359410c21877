"""The torture messages of RFC 4475, all 49 of its section 3, at a worker with a call: it goes on, sample for sample.

They are in `data/torture` as the RFC has them, but for the bytes of a signature that PJSIP never looks at (mpart01).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from contextlib import closing
from pathlib import Path

import pytest

from lab.sip.endpoint import CODES, played, until
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import media, scene
from lab.sip.sip_peer import SipPeer, sdp

MESSAGES = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[1] / "data/torture").glob("*.dat"))}

ANSWERS = {
    # Section 3.1.1, valid. What nobody serves here is 501, what has a tag of ours that was never given 481.
    "wsinv": 481, "intmeth": 501, "esc01": 200, "escnull": 501, "esc02": 501, "lwsdisp": 200, "longreq": 200,
    "dblreq": 501, "semiuri": 200, "transports": 200, "mpart01": 200, "unreason": 0, "noreason": 0,
    # Section 3.1.2, invalid: 400 would be right, silence is allowed to who cannot make out whom to answer, and what
    # can be understood all the same is taken (PJSIP does as the last paragraphs of many of them say).
    "badinv01": 0, "clerr": 0, "ncl": 0, "scalar02": 0, "scalarlg": 0, "quotbal": 0, "ltgtruri": 0, "lwsruri": 0,
    "lwsstart": 200, "trws": 200, "escruri": 200, "baddate": 200, "regbadct": 0, "badaspec": 200, "baddn": 200,
    "badvers": 0, "mismatch01": 400, "mismatch02": 501, "bigcode": 0,
    # Section 3.2, transaction layer.
    "badbranch": 200,
    # Section 3.3, application layer. PJSIP drops credentials that it does not know.
    "insuf": 0, "unkscm": 416, "novelsc": 416, "unksm2": 501, "bext01": 200, "invut": 415, "regaut01": 0,
    "multi01": 200, "mcl01": 200, "bcast": 0, "zeromf": 200, "cparam01": 501, "cparam02": 501, "regescrt": 501,
    "sdp01": 200,
    # Section 3.4, from RFC 2543.
    "inv2543": 0,
}  # fmt: skip
DATAGRAMS = {
    "clerr": 200,  # what there is of the body is enough; a stream would wait for the rest
    "longreq": 0,  # answered to where its topmost Via says: there is no place for `rport`
}


def answerable(name: str) -> bytes:
    """With a branch of its own, and `rport` so that the answer comes back to whoever sent it."""
    if name == "badbranch":  # the branch is what is bad
        return MESSAGES[name].replace(b";branch=", b";rport;branch=", 1)
    top = f";rport;branch=z9hG4bK-{name}-".encode()
    return re.sub(rb";branch=(z9hG4bK)?", top, MESSAGES[name], count=1)


def first_status(heard: bytes) -> int:
    """Of the first final response, 0 without."""
    found = re.search(rb"SIP/2\.0 ([2-6]\d\d) ", heard)
    return int(found[1]) if found else 0


class Sender:
    """Who sends one message, and hears what comes."""

    def __init__(self, name: str, port: int, kind: socket.SocketKind) -> None:
        self.name, self.heard = name, b""
        self._socket = socket.socket(socket.AF_INET, kind)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._socket.send(answerable(name))

    def listen(self) -> int:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self._socket.recv(65536):
                self.heard += data
        return first_status(self.heard)

    def close(self) -> None:
        self._socket.close()


def test_all_messages_are_there() -> None:
    assert set(MESSAGES) == set(ANSWERS) and len(MESSAGES) == 49


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["udp", "tcp"])
async def test_torture(kind: socket.SocketKind) -> None:
    answers = ANSWERS | (DATAGRAMS if kind == socket.SOCK_DGRAM else {})
    async with scene() as (handler, endpoint, (caller,)):
        with contextlib.ExitStack() as ends:
            speaker = ends.enter_context(closing(RtpSender()))
            after = ends.enter_context(closing(SipPeer(endpoint.port)))
            port, _ = media(await caller.invite(sdp(speaker.port)))
            talking = asyncio.create_task(speaker.talk(CODES, port))
            senders = [ends.enter_context(closing(Sender(name, endpoint.port, kind))) for name in ANSWERS]
            expecting = [sender for sender in senders if answers[sender.name]]
            with contextlib.suppress(TimeoutError):  # the comparison says more
                await until(lambda: all([sender.listen() for sender in expecting]))
            await after.answer(after.send("OPTIONS"), "OPTIONS")  # so everything before it has been read
            assert {sender.name: sender.listen() for sender in senders} == answers
            await talking
            await until(lambda: played(handler.audio[caller.call_id]) == CODES)
            assert media(await caller.invite(sdp(speaker.port, "a=sendonly", version=2)))[1] == "recvonly"
            await caller.bye()
            for call in tuple(handler.calls):
                call.hangup()
            del call
            await until(lambda: endpoint.calls == 0)
        await until(lambda: endpoint.transactions == endpoint.dialogs == 0, 10)  # they hold the connections of TCP
