"""Calls over IPv6: signalling, media, and what crosses from one family to the other."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from config import ConfigError
from config.load import parse
from config.network.addresses import Family, family_of
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.network.authority import Authority
from lab.network.ports import free_port
from lab.sip.endpoint import CODES, PCMU, Recorder, codes, played, sipp, until, worker
from lab.sip.registrar_peer import RegistrarPeer
from lab.sip.rtp_sender import RtpSender
from lab.sip.scenes import media, quick
from lab.sip.sip_peer import SipPeer, sdp
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Pause, Send, offer, scenario
from lab.sip.tls import ask, secured
from lab.worker import peers
from sip.pjsip.endpoint import SipEndpoint
from sip.pjsip.registrar import Registrar, in_order
from sip.protocol.errors import SipError
from sip.protocol.message import SipMessage

__all__ = ["codes", "sipp"]

V4, V6 = "127.0.0.1", "::1"
ONLY = {"host": "", "host6": V6}
BOTH = {"host6": V6}
STARTED = ("call", "PCMU", "sendrecv")
HERE = "c=IN IP6 ::1"


@pytest.fixture
def senders() -> Iterator[dict[str, RtpSender]]:
    """Media at both addresses."""
    with closing(RtpSender(V4)) as four, closing(RtpSender(V6)) as six:
        yield {V4: four, V6: six}


@contextlib.asynccontextmanager
async def scene(at: str, **sip: object) -> AsyncIterator[tuple[Recorder, SipEndpoint, SipPeer]]:
    """A caller at that address."""
    handler = Recorder()
    with quick():
        async with worker(handler, **sip) as endpoint:
            with closing(SipPeer(endpoint.port, host=at)) as caller:
                yield handler, endpoint, caller


def named(message: SipMessage) -> list[str]:
    """The `c=` and `o=` of a description."""
    lines = message.body.splitlines()
    return [line for line in lines if line.startswith("c=")] + [
        f"o={line.split(' ', 3)[3]}" for line in lines if line.startswith("o=")
    ]


# -- calls by SIPp -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["u1", "t1"])
@pytest.mark.parametrize("sip", [ONLY, BOTH, {"host": "", "host6": "::"}], ids=["only", "both", "any address"])
async def test_a_call(sipp: Sipp, codes: Path, transport: str, sip: dict[str, object]) -> None:
    handler = Recorder()
    async with worker(handler, **sip) as endpoint:
        values = {**PCMU, "audio": f"{codes},1,0,PCMU/8000", "talk_ms": 800}
        task = sipp.start("call", f"[::1]:{endpoint.port}", source=V6, transport=transport, **values)
        await until(lambda: len(handler.calls) == 1)
        call = handler.calls[0]
        assert call.peer == V6 and call.streams[0].socket._latch.expected[0] == V6
        assert re.fullmatch(r"sip:4711@\[::1\](:\d+)?", call.from_uri) and call.to_uri.startswith("sip:1000@[::1]")
        del call
        await task
        await until(lambda: ("end", "hangup") in handler.log)
        assert handler.log == [STARTED, ("end", "hangup")]
        (packets,) = handler.audio.values()
        assert played(packets) == CODES
        assert endpoint.counters.answered == endpoint.counters.invites == 1
        assert endpoint.rtp.wrong_source == endpoint.rtp.send_errors == 0
        assert endpoint.rtp.sent > 20


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_the_worker_hangs_up(sipp: Sipp, transport: str) -> None:
    """Over UDP the BYE goes to the Contact, `<sip:4711@[::1]:PORT>`, over TCP back by the connection."""
    handler = Recorder()
    async with worker(handler, **BOTH) as endpoint:
        values = {**PCMU, "audio": "", "talk_ms": 500}
        task = sipp.start("until_bye", f"[::1]:{endpoint.port}", source=V6, transport=transport, **values)
        await until(lambda: len(handler.calls) == 1)
        await asyncio.sleep(0)
        handler.calls[0].hangup()
        await task
        assert ("end", "local") in handler.log


async def test_one_call_of_each_family_at_once(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    async with worker(handler, **BOTH) as endpoint:
        values = {**PCMU, "audio": f"{codes},1,0,PCMU/8000", "talk_ms": 1200}
        tasks = [
            sipp.start("call", f"{target}:{endpoint.port}", source=source, **values)
            for target, source in ((V4, V4), ("[::1]", V6))
        ]
        await until(lambda: len(handler.calls) == 2)
        assert {family_of(call.streams[0].socket._latch.expected[0]) for call in handler.calls} == {"IP4", "IP6"}
        await asyncio.gather(*tasks)
        await until(lambda: endpoint.calls == 0)
        assert [played(packets) for packets in handler.audio.values()] == [CODES] * 2


@pytest.mark.parametrize("again", [False, True])
async def test_what_the_worker_offers_is_of_the_family_of_the_signalling(sipp: Sipp, codes: Path, again: bool) -> None:
    handler = Recorder()
    async with worker(handler, **BOTH) as endpoint:
        audio = f"{codes},1,0,PCMU/8000"
        target = f"[::1]:{endpoint.port}"
        if not again:
            await sipp.run("late_offer", target, source=V6, audio=audio, talk_ms=800, **PCMU)
            await until(lambda: ("end", "hangup") in handler.log)
            (packets,) = handler.audio.values()
            assert played(packets) == CODES
        else:
            answer = offer("m=audio 40000 RTP/AVP 0", version=2)
            steps = scenario(
                Send("INVITE", offer("m=audio 40000 RTP/AVP 0"), has=(HERE,)),
                Send("INVITE", has=(HERE, "o=.* IN IP6 ::1"), ack=answer),
                Pause(200),
                Send("BYE"),
            )
            await sipp.run(steps, target, source=V6)
            await until(lambda: endpoint.calls == 0)
            assert handler.log == [STARTED, ("media", "PCMU", "sendrecv", "live"), ("end", "hangup")]


@pytest.mark.parametrize("null", ["::", "::0", "0:0:0:0:0:0:0:0"])
async def test_hold_by_the_null_address(sipp: Sipp, null: str) -> None:
    handler = Recorder()
    async with worker(handler, **ONLY) as endpoint:
        line = "m=audio 40000 RTP/AVP 0"
        steps = scenario(
            Send("INVITE", offer(line), has=(HERE, "a=sendrecv")),
            Send("INVITE", offer(line, address=null, version=2), has=("a=recvonly", "c=IN IP6")),
            Send("INVITE", offer(line, version=3), has=(HERE, "a=sendrecv")),
            Send("BYE"),
        )
        await sipp.run(steps, f"[::1]:{endpoint.port}", source=V6)
        await until(lambda: endpoint.calls == 0)
    assert handler.log == [
        STARTED, ("media", "PCMU", "recvonly", "held"), ("media", "PCMU", "sendrecv", "live"), ("end", "hangup"),
    ]  # fmt: skip


async def test_the_public_address(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler, **BOTH, public_address="198.51.100.7", public_address6="2001:DB8:0::7") as endpoint:
        for target, source, public in ((V4, V4, "IP4 198.51.100.7"), ("[::1]", V6, "IP6 2001:db8::7")):
            body = offer("m=audio 40000 RTP/AVP 0")
            contact = public.split()[1].replace("2001:db8::7", r"\[2001:db8::7\]")
            steps = scenario(Send("INVITE", body, has=(f"c=IN {public}", f"Contact:.*@{contact}:")), Send("BYE"))
            await sipp.run(steps, f"{target}:{endpoint.port}", source=source)
        await until(lambda: endpoint.calls == 0)


# -- from one family to the other --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signalling", "audio"), [(V4, V6), (V6, V4)])
async def test_media_of_the_other_family(signalling: str, audio: str, senders: dict[str, RtpSender]) -> None:
    async with scene(signalling, **BOTH) as (handler, endpoint, caller):
        sender = senders[audio]
        answer = await caller.invite(sdp(sender.port, address=audio))
        family = "IP6" if audio == V6 else "IP4"
        assert named(answer) == [f"c=IN {family} {audio}", f"o=IN {family} {audio}"]
        await sender.talk(CODES, media(answer)[0])
        await until(lambda: played(next(iter(handler.audio.values()), [])) == CODES)
        assert sender.take(), "silence comes back"
        assert endpoint.rtp.wrong_source == endpoint.rtp.send_errors == 0
        await caller.bye()


async def test_a_call_that_moves_from_one_family_to_the_other_and_back(senders: dict[str, RtpSender]) -> None:
    async with scene(V4, **BOTH) as (handler, endpoint, caller):
        for number, address in enumerate((V4, V6, V4)):
            sender = senders[address]
            answer = await caller.invite(sdp(sender.port, address=address, version=number + 1))
            if number:  # a test's handler hears of the socket of the first description only
                await until(lambda count=number: len(handler.log) == count + 1)
                packets = next(iter(handler.audio.values()))
                handler.calls[0].streams[0].socket.on_packet = lambda datagram, now, kept=packets: kept.append(datagram)
            port = media(answer)[0]
            await sender.talk(CODES, port)
            await until(lambda count=number: played(next(iter(handler.audio.values()))) == CODES * (count + 1))
            assert endpoint.rtp_sockets == 1, "the one of before is closed"
        assert [entry[0] for entry in handler.log] == ["call", "media", "media"]
        await caller.bye()


async def test_where_nothing_can_be_sent_the_source_is_learned_and_nobody_else_is_heard() -> None:
    async with scene(V6, **ONLY) as (handler, endpoint, caller):
        with closing(RtpSender(V6)) as sender, closing(RtpSender(V6)) as stranger:
            port = media(await caller.invite(sdp(4000, address="::ffff:192.0.2.9")))[0]
            await sender.talk(CODES, port)
            await until(lambda: played(next(iter(handler.audio.values()), [])) == CODES)
            await asyncio.gather(sender.talk(CODES, port), stranger.talk(CODES[::-1], port))
            await until(lambda: played(next(iter(handler.audio.values()))) == CODES * 2)
            await until(lambda: endpoint.rtp.wrong_source == len(CODES) / 160)
            assert sender.take() and not stranger.take()
        await caller.bye()


async def test_each_stream_has_its_own_family(senders: dict[str, RtpSender]) -> None:
    """A recording client with an old and a new leg: the answer names both of the worker's addresses."""
    async with scene(V6, **BOTH) as (handler, _, caller):
        lines = [
            f"m=audio {sender.port} RTP/AVP 0\r\nc=IN {family} {address}\r\na=label:{label}\r\na=sendonly"
            for label, family, (address, sender) in zip("12", ("IP4", "IP6"), senders.items(), strict=True)
        ]
        body = "\r\n".join(["v=0", "o=- 1 1 IN IP6 ::1", "s=-", "t=0 0", *lines, ""])
        answer = await caller.invite(body, "Require: siprec", "Content-Type: application/sdp")
        assert named(answer) == ["c=IN IP4 127.0.0.1", "c=IN IP6 ::1", "o=IN IP4 127.0.0.1"]
        first, second = handler.calls[0].streams
        assert first.socket._latch.expected == (V4, senders[V4].port)
        assert second.socket._latch.expected == (V6, senders[V6].port)
        del first, second
        await caller.bye()


@pytest.mark.parametrize(
    ("sip", "signalling", "audio"), [({}, V4, V6), (ONLY, V6, V4)], ids=["IPv4 alone", "IPv6 alone"]
)
async def test_media_of_a_family_that_the_worker_has_not(sip: dict[str, object], signalling: str, audio: str) -> None:
    async with scene(signalling, **sip) as (handler, endpoint, caller):
        refused = caller.send("INVITE", sdp(40000, address=audio))
        assert (await caller.answer(refused)).start_line.startswith("SIP/2.0 488")
        caller.send("ACK", cseq=refused)
        assert endpoint.counters.refused[488] == 1 and not handler.log
        caller.to_tag = ""
        await caller.invite(sdp(40000, address=signalling))
        again = caller.send("INVITE", sdp(40000, address=audio, version=2))
        assert (await caller.answer(again)).start_line.startswith("SIP/2.0 488")
        caller.send("ACK", cseq=again)
        assert handler.log == [STARTED], "the call goes on as it was"
        await caller.bye()


async def test_without_a_free_port_a_move_to_the_other_family_is_refused_and_the_call_goes_on() -> None:
    async with scene(V4, **BOTH) as (handler, endpoint, caller):
        await caller.invite(sdp(40000))
        with contextlib.ExitStack() as taken:
            for _ in range(len(endpoint.control.ports._free)):
                taken.callback(endpoint.control.ports.close, endpoint.control.ports.open(0.0, "IP6"), 0.0)
            again = caller.send("INVITE", sdp(40000, address=V6, version=2))
            # PJSIP refuses any offer with 488, whatever the reason.
            assert (await caller.answer(again)).start_line.startswith("SIP/2.0 488")
            caller.send("ACK", cseq=again)
        assert handler.log == [STARTED]
        await caller.bye()


# -- who calls ---------------------------------------------------------------------------------------------------------


async def test_who_is_not_on_the_list(sipp: Sipp) -> None:
    handler = Recorder()
    async with worker(handler, trusted=("127.0.0.0/8",), **BOTH) as endpoint:
        refused = scenario(Send("INVITE", offer("m=audio 40000 RTP/AVP 0"), answer=403))
        await sipp.run(refused, f"[::1]:{endpoint.port}", source=V6)
        endpoint.allow(("::/64",))
        steps = scenario(Send("INVITE", offer("m=audio 40000 RTP/AVP 0")), Send("BYE"))
        await sipp.run(steps, f"[::1]:{endpoint.port}", source=V6)
        await until(lambda: endpoint.calls == 0)
        assert endpoint.counters.refused[403] == 1 and handler.log == [STARTED, ("end", "hangup")]


async def test_who_shows_credentials(sipp: Sipp, codes: Path) -> None:
    handler = Recorder()
    users = [{"user": "branch", "password": "secret"}]
    async with worker(handler, trusted=("127.0.0.0/8",), users=users, digest=["MD5"], **BOTH) as endpoint:
        values = {**PCMU, "audio": f"{codes},1,0,PCMU/8000", "talk_ms": 500, "user": "branch", "password": "secret"}
        await sipp.run("with_digest", f"[::1]:{endpoint.port}", source=V6, **values)
        await until(lambda: ("end", "hangup") in handler.log)
        assert [call.account for call in handler.calls] == ["branch"]
        assert endpoint.admission.counters.challenged == 1


# -- registration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
async def test_a_registration_and_a_call_by_its_connection(authority: Authority, secure: bool) -> None:
    handler = Recorder()
    pair = authority.issue("pbx", "IP:::1") if secure else None
    async with RegistrarPeer(pair, host=V6) as registrar:
        account = {"registrar": registrar.uri, "user": "alice", "password": "secret", "name": "trunk"}
        keys = {"accounts": [account], "tls_ca": str(authority.cert)}
        async with worker(handler, left_open=4, **BOTH, **keys) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            assert endpoint.registrations[0].registrar == registrar.uri
            request = registrar.requests[0]
            assert request.startswith("REGISTER sip:[::1]:") and "\r\nFrom: <sip:alice@[::1]>" in request
            assert re.search(r"(?m)^Via: SIP/2.0/T(CP|LS) \[::1\]:\d+;", request)
            assert re.search(r"(?m)^Contact: <sip:alice@\[::1\]:\d+;", request) and "maddr" not in request
            await registrar.invite()
            assert handler.log[0] == STARTED and handler.calls[0].account == "trunk"
            handler.calls[0].hangup()
            await until(lambda: any(each.startswith("BYE") for each in registrar.requests))
            registrar.hang_up()
            await until(lambda: endpoint.registrations[0].reason == "the connection was lost")
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
        assert "Expires: 0" in registrar.requests[-1]


class Known(Registrar):
    """A name in a domain name system that has it."""

    async def _look_up(self, families: Sequence[Family], host: str) -> list[str]:
        return in_order([V6], families)


@pytest.mark.parametrize("sip", [ONLY, BOTH], ids=["only", "both"])
async def test_a_registrars_name_stays_beside_its_address(authority: Authority, sip: dict[str, object]) -> None:
    """It registers where the connection comes from, though only the route says where that goes."""
    handler = Recorder()
    async with RegistrarPeer(authority.issue("pbx", "DNS:pbx.test"), host=V6) as registrar:
        uri = f"sip:pbx.test:{registrar.port};transport=tls"
        keys = {"accounts": [{"registrar": uri, "user": "alice"}], "tls_ca": str(authority.cert)}
        async with worker(handler, left_open=2, **sip, **keys) as endpoint:
            endpoint._accounts[0].registrars[:] = [Known("pbx.test", registrar.port, "tls")]
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            assert endpoint.registrations[0].registrar == f"{uri} (::1)" and registrar.names == ["pbx.test"]
            assert re.search(r"(?m)^Contact: <sip:alice@\[::1\]:\d+;transport=TLS", registrar.requests[0])
            await registrar.invite()
            handler.calls[0].hangup()
            await until(lambda: any(each.startswith("BYE") for each in registrar.requests))
            assert len(registrar.names) == 1, "no other connection was made"


async def test_a_registration_over_udp(sipp: Sipp) -> None:
    port = free_port()
    server = sipp.start("registrar", port=port, source=V6)
    account = {"registrar": f"sip:[::1]:{port}", "user": "alice", "password": "secret", "name": "trunk"}
    async with worker(Recorder(), **ONLY, accounts=[account]) as endpoint:
        await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=8)
        await until(lambda: endpoint.counters.registrations_ok == 2, timeout_s=8)
    await server
    assert endpoint.registrations[0].state == "unregistered"


async def test_the_other_family_is_where_an_account_goes_when_one_fails(authority: Authority) -> None:
    async with RegistrarPeer(host=V6) as registrar:
        dead = free_port()
        account = {"registrar": f"sip:127.0.0.1:{dead};transport=tcp", "backups": [registrar.uri], "user": "alice"}
        async with worker(Recorder(), left_open=2, **BOTH, accounts=[account]) as endpoint:
            await until(lambda: endpoint.registrations[0].state == "registered", timeout_s=10)
            assert endpoint.registrations[0].registrar == registrar.uri


@pytest.mark.parametrize(("sip", "uri"), [({}, "sip:[2001:db8::1]"), (ONLY, "sip:192.0.2.1")])
def test_a_registrar_that_cannot_be_reached_stops_the_start(sip: dict[str, object], uri: str) -> None:
    with pytest.raises(ConfigError, match=r"sip\.accounts\[0\]\.registrar = .*cannot be reached without sip\.host"):
        parse({"sip": {**sip, "accounts": [{"registrar": uri, "user": "alice"}]}})


async def test_an_address_that_is_not_this_machines_stops_the_start() -> None:
    settings = parse({"sip": {"host": "", "host6": "2001:db8::1", "port": free_port()}})
    with pytest.raises(SipError, match=r"cannot listen on udp \[2001:db8::1\]:\d+: "):
        await SipEndpoint(settings, Recorder()).start()


# -- TLS, and the phone ------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_a_renewed_certificate_is_for_both(authority: Authority) -> None:
    trusting = ssl.create_default_context(cafile=str(authority.cert))
    pair = authority.issue("first", "DNS:localhost", file="live")
    async with worker(Recorder(), **BOTH, **secured(pair, authority)) as endpoint:
        for name in ("", "second", "third"):
            if name:
                authority.issue(name, "DNS:localhost", file="live")
                endpoint.renew_certificate()
            shown = ssl.PEM_cert_to_DER_cert(pair.cert.read_text())
            for host in (V4, V6):
                assert await ask(endpoint.tls_port, trusting, host) == ("SIP/2.0 200 OK", shown)
        await until(lambda: len(endpoint.admission.connections) == 0)


@pytest.mark.timeout(120)
def test_the_test_phone_calls_a_worker(tmp_path: Path, authority: Authority) -> None:
    pair, port = authority.issue("worker", "IP:::1"), free_port()
    sound = tmp_path / "sound.ulaw"
    sound.write_bytes(b"\xff" * 4000)
    files = {"SIP__TLS_CERT": str(pair.cert), "SIP__TLS_KEY": str(pair.key), "SIP__TLS_PORT": str(port)}
    with peers.worker(tmp_path, LISTENER_PATH, **files, **LISTENER, SIP__HOST6="::1") as running:
        ways = ("udp", f"[::1]:{running.sip_port}"), ("tls", f"[::1]:{port}"), ("udp", f"localhost:{running.sip_port}")
        for transport, at in ways:
            call = ["call", f"sip:100@{at}", "--play", str(sound), "--transport", transport, "--tail", "0"]
            done = peers.command(*call, "--ca", str(authority.cert))
            assert done.returncode == 0, (transport, at, done.stderr)
        for call in running.wait_ended(len(ways)):
            started, *_, ended = running.events(call["call_id"])
            assert (started["source"], started["from"], started["to"]) == ("sip", "mediaworker", "100")
            assert ended["legs"][0]["packets"] == 25 and ended["legs"][0]["lost"] == 0
        assert running.metric("mediaworker_sip_answered_total") == len(ways)
        assert running.get("/readyz")["status"] == "ready"
