"""A STUN server says what a NAT has made of a socket; nobody else does, and one that is silent costs no call much."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from lab.network import nat as neighbourhood
from lab.network.nat import OUTSIDE, Address, nat, stun_server
from lab.network.ports import port_range
from lab.sip.endpoint import CODES, Recorder, played, until, worker
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import media
from lab.sip.sip_peer import SipPeer, sdp
from sip.media import nat as neighbours
from sip.media.nat import SPARES, Nat
from sip.media.ports import RtpPorts
from sip.media.rtp_socket import KEEPALIVE
from sip.pjsip.endpoint import SipEndpoint

MAPPED = ("198.51.100.7", 40000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with stun_server(tmp_path_factory.mktemp("coturn")) as address:
        yield address


async def test_the_public_address_is_found(server: Address) -> None:
    async with nat(server) as box:
        behind = Nat(f"{box.inside[0]}:{box.inside[1]}")
        await behind.find(0)
        assert behind.address == OUTSIDE
        assert (behind.answered, behind.unanswered) == (1, 0)


async def test_a_server_that_is_silent_is_not_asked_by_calls(server: Address) -> None:
    async with nat(server) as box:
        behind = Nat(f"{box.inside[0]}:{box.inside[1]}")
        box.silent = True
        await behind.find(0)
        assert (behind.address, behind.unanswered) == ("", 1)
        box.silent = False
        await behind.find(0)
        assert behind.address == OUTSIDE


async def test_a_name_that_does_not_exist_is_no_end() -> None:
    behind = Nat("stun.invalid")
    await behind.find(0)
    assert (behind.address, behind.unanswered) == ("", 1)


async def test_without_a_server_nothing_is_asked() -> None:
    behind = Nat("")
    await behind.find(0)
    assert (behind.address, behind.unanswered) == ("", 0)


@pytest.mark.parametrize("steps", range(20))
async def test_the_worker_may_stop_at_any_moment_of_asking(server: Address, steps: int) -> None:
    behind, ports = Nat(f"{server[0]}:{server[1]}"), RtpPorts(*port_range(2 * SPARES), host="127.0.0.1")
    await behind.find(0)
    following = asyncio.create_task(behind.follow(ports, reports=True))
    for _ in range(steps):
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait([following])
    assert (behind.held, ports.in_use) == (0, 0)


@contextlib.asynccontextmanager
async def behind(
    server: Address, **sip: object
) -> AsyncIterator[tuple[Recorder, SipEndpoint, SipPeer, neighbourhood.Nat]]:
    """A worker behind a NAT, with its ports at hand, and a caller who is outside."""
    handler = Recorder()
    async with nat(server) as box:
        # Descriptors are also the NAT's, which has one for each port that it has seen, and those of ports at hand.
        async with worker(handler, stun=f"{box.inside[0]}:{box.inside[1]}", left_open=100, **sip) as endpoint:
            await until(lambda: endpoint.nat.spares == SPARES)
            with closing(SipPeer(endpoint.port)) as caller:
                yield handler, endpoint, caller, box


def place(body: str) -> tuple[str, int]:
    """Where a description says that its stream is received."""
    address = re.search(r"(?m)^c=IN IP4 (\S+)", body)
    port = re.search(r"(?m)^m=audio (\d+)", body)
    assert address and port
    return address[1], int(port[1])


async def test_the_answer_says_where_the_nat_has_put_it(server: Address) -> None:
    async with behind(server) as (handler, endpoint, caller, box):
        with closing(RtpSender(OUTSIDE)) as sender:
            answer = await caller.invite(sdp(sender.port, address=OUTSIDE))
            (call,) = handler.calls
            own = call.streams[0].socket.port
            doors = {inside[1]: door.place for inside, door in box.doors.items()}
            assert place(answer.body) == doors[own] != (OUTSIDE, own)
            assert f"a=rtcp:{doors[own + 1][1]}" in answer.body.splitlines(), "where it is not the next port"
            assert OUTSIDE in answer.header("contact")
            await sender.talk(CODES, doors[own][1])
            await until(lambda: any(map(len, handler.audio.values())))
            assert sender.take(), "what the worker sends comes back through it"
            del call
        await caller.bye()
        (packets,) = handler.audio.values()
        assert played(packets) == CODES
        assert endpoint.nat.unanswered == 0
        await until(lambda: endpoint.nat.spares == SPARES)


async def test_an_offer_of_ours_says_it_too(server: Address) -> None:
    async with behind(server) as (handler, _, caller, box):
        cseq = caller.send("INVITE")
        offered = await caller.answer(cseq, status=200)
        doors = [door.place for door in box.doors.values()]
        assert place(offered.body) in doors
        caller.send("ACK", sdp(40000), cseq=cseq)
        await until(lambda: bool(handler.calls))
        await caller.bye()


async def test_more_calls_than_ports_at_hand(server: Address) -> None:
    """Those that are too many say the address, and the port as it is; then there are ports at hand again."""
    async with behind(server) as (handler, endpoint, _, box):
        callers = [SipPeer(endpoint.port) for _ in range(SPARES + 4)]
        answers = await asyncio.gather(*(caller.invite(sdp(40000)) for caller in callers))
        places = [place(answer.body) for answer in answers]
        assert {address for address, _ in places} == {OUTSIDE} and len(set(places)) == len(places)
        doors = {door.place for door in box.doors.values()}
        assert len(doors & set(places)) >= SPARES
        for caller in callers:
            await caller.bye()
            caller.close()
        await until(lambda: endpoint.nat.spares == SPARES)
        assert endpoint.rtp_sockets == 0


async def test_a_server_that_has_died_is_no_reason_to_refuse(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "FRESH_S", 0.4)
    monkeypatch.setattr(neighbours, "RETRY_S", 0.4)
    async with behind(server) as (handler, endpoint, caller, box):
        box.silent = True
        await until(lambda: endpoint.nat.spares == 0)
        answer = await caller.invite(sdp(40000))
        own = handler.calls[0].streams[0].socket.port
        assert place(answer.body) == (OUTSIDE, own), "the address that was known, and the port as it is"
        await caller.bye()
        box.silent = False
        await until(lambda: endpoint.nat.spares == SPARES)


async def test_what_a_nat_has_forgotten_is_learned_anew(server: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "FRESH_S", 0.8)
    async with behind(server) as (handler, endpoint, caller, box):
        before = {door.place for door in box.doors.values()}
        box.forget()
        await until(lambda: not {spare.mapped for spare in endpoint.nat._spares} & before)
        answer = await caller.invite(sdp(40000))
        assert place(answer.body) in {door.place for door in box.doors.values()}
        await caller.bye()


async def test_a_stream_on_which_nothing_is_sent_is_kept_open() -> None:
    handler = Recorder()
    async with worker(handler, public_address=OUTSIDE, keepalive_s=1, send_audio="none") as endpoint:
        with closing(SipPeer(endpoint.port)) as caller, closing(RtpSender()) as sender:
            answer = await caller.invite(sdp(sender.port))
            await until(lambda: len(sender.take()) >= 2)
            packets = [packet for packet in sender.received if packet[1] == KEEPALIVE]
            assert {len(packet) for packet in packets} == {12}, "RTP without a payload"
            port, _ = media(answer)
            await sender.talk(CODES, port)
            held = await caller.invite(sdp(sender.port, "a=inactive", version=2))
            assert media(held)[1] == "inactive"
            await caller.bye()
        (heard,) = handler.audio.values()
        assert played(heard) == CODES


async def test_without_a_nat_nothing_is_kept_open() -> None:
    async with worker(Recorder(), keepalive_s=1, send_audio="none") as endpoint:
        with closing(SipPeer(endpoint.port)) as caller, closing(RtpSender()) as sender:
            await caller.invite(sdp(sender.port))
            await asyncio.sleep(1.5)  # a packet would have come after `keepalive_s`
            assert not sender.take()
            await caller.bye()


class UdpRegistrar(asyncio.DatagramProtocol):
    """Takes everybody, who comes from behind a NAT as it sees it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.kept = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.port: int = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if not data.strip():
            self.kept += 1
            return
        head = data.decode()
        self.requests.append(head)
        lines = [line.strip() for line in re.findall(r"(?im)^(?:via|from|to|call-id|cseq|contact):.*$", head)]
        lines = [line.replace(";rport", f";received={MAPPED[0]};rport={MAPPED[1]}") for line in lines]
        copied = "\r\n".join(lines)
        self.transport.sendto(f"SIP/2.0 200 OK\r\n{copied}\r\nExpires: 300\r\nContent-Length: 0\r\n\r\n".encode(), addr)


async def test_a_registration_from_behind_a_nat_is_for_where_it_came_from_and_is_kept_open() -> None:
    transport, registrar = await asyncio.get_running_loop().create_datagram_endpoint(
        UdpRegistrar, local_addr=("127.0.0.1", 0)
    )
    account = {"registrar": f"sip:127.0.0.1:{registrar.port}", "user": "alice"}
    try:
        async with worker(Recorder(), accounts=[account], keepalive_s=1) as endpoint:
            outside = f"<sip:alice@{MAPPED[0]}:{MAPPED[1]}"
            await until(lambda: any(f"Contact: {outside}" in request for request in registrar.requests))
            await until(lambda: endpoint.registrations[0].state == "registered" and registrar.kept >= 2)
    finally:
        transport.close()
