"""What an INVITE, re-INVITE, UPDATE, PRACK or ACK may carry, at one live worker that has another call meanwhile. It
answers each sensibly, lives, and keeps nothing of them.

Every kind of session description comes to it once, each request carrying a fifth of them. What is answered to each, in
a call and without one, is in tests/unit/sip/protocol/test_offers.py."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.patience import seconds, timeout, until
from lab.sip.sip_peer import SipPeer
from lab.worker.peers import Worker, worker
from tools.fuzz.sdp_samples import CRYPTO, FINGERPRINT, PLAIN, SAMPLES, Sample, described

LIMITS = {"SIP__MAX_CALLS": "400", "SIP__MAX_INVITES_PER_S": "0", "SIP__ANSWER_DELAY_S": "0.05"}
AT_ONCE = 12
BUSY_S = 0.05
"""Between two tries at a worker that answers 503."""
PORTIONS = {kind: SAMPLES[at::5] for at, kind in enumerate(("INVITE", "re-INVITE", "UPDATE", "PRACK", "ACK"))}
OFFER = described(PLAIN)
GOOD = Sample("good", OFFER, {200})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(tmp_path_factory.mktemp("worker"), LISTENER_PATH, **LISTENER, **LIMITS) as started:
        yield started


@contextlib.asynccontextmanager
async def beside(running: Worker) -> AsyncIterator[None]:
    """Within, another call goes on; at the end its audio still comes, and nothing but it is left."""
    peer = SipPeer(running.sip_port)
    rtp, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )
    port = rtp.get_extra_info("sockname")[1]
    answer = await peer.invite(described(f"m=audio {port} RTP/AVP 0"))
    there = "127.0.0.1", int(re.search(r"m=audio (\d+)", answer.body)[1])
    sent = 0

    async def talk() -> None:
        nonlocal sent
        while True:
            head = b"\x80\x00" + sent.to_bytes(2, "big") + (sent * 160).to_bytes(4, "big") + b"\0\0\0\1"
            rtp.sendto(head + b"\xff" * 160, there)
            sent += 1
            await asyncio.sleep(0.02)

    talking = asyncio.create_task(talk())
    try:
        yield
        metric = running.metric
        await asyncio.to_thread(until, lambda: metric("mediaworker_calls_active") == 1, 10, "all other calls are over")
        assert (await peer.answer(peer.send("OPTIONS"), "OPTIONS")).start_line == "SIP/2.0 200 OK"
        heard = await asyncio.to_thread(metric, "mediaworker_rtp_packets_total")
        await asyncio.to_thread(until, lambda: metric("mediaworker_rtp_packets_total") >= heard + 20, 10, "its audio")
        hold = Sample("hold", described(f"m=audio {port} RTP/AVP 0", "a=sendonly"), {200})
        assert await ask(peer, "INVITE", hold) == 200
    finally:
        talking.cancel()
        rtp.close()
    await peer.bye()
    peer.close()
    await asyncio.to_thread(until, lambda: metric("mediaworker_calls_active") == 0, 10)


async def each(running: Worker, samples: list[Sample], attempt: Callable[[SipPeer, Sample], Awaitable[str]]) -> None:
    """Several at a time, each with a peer of its own; `attempt` returns what is wrong."""
    waiting, wrong = iter(samples), []

    async def one_after_the_other() -> None:
        for sample in waiting:
            peer = SipPeer(running.sip_port)
            try:
                problem = await attempt(peer, sample)
            except AssertionError as error:
                problem = str(error)
            finally:
                peer.close()
            if problem:
                wrong.append(f"{sample.name}: {problem}")
            assert running.process.poll() is None, f"the worker has ended: {wrong}"

    async with timeout(150):
        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
    assert not wrong, f"{len(wrong)} of {len(samples)}:\n" + "\n".join(wrong[:40])


def said(statuses: set[int], sample: Sample) -> str:
    return "" if statuses <= sample.statuses else f"{statuses}, not {sample.statuses}"


async def ask(peer: SipPeer, method: str, sample: Sample, *headers: str) -> int:
    """The status of the final answer; an INVITE's is acknowledged. A machine that is too busy is asked again."""
    deadline = asyncio.get_running_loop().time() + seconds(60)
    while True:
        within, branch = peer.to_tag, f"{method}{next(peer.cseq)}"
        cseq = peer.send(method, sample.body, f"Content-Type: {sample.content_type}", *headers, branch=branch)
        status = int((await peer.answer(cseq, method)).start_line.split()[1])
        if method == "INVITE":
            peer.send("ACK", cseq=cseq, branch="" if status < 300 else branch)
        if status != 503 or asyncio.get_running_loop().time() > deadline:
            return status
        peer.to_tag = within
        await asyncio.sleep(BUSY_S)


async def test_in_an_invite(running: Worker) -> None:
    async def attempt(peer: SipPeer, sample: Sample) -> str:
        status = await ask(peer, "INVITE", sample)
        if status == 200:
            await peer.bye()
        return said({status}, sample)

    async with beside(running):
        await each(running, PORTIONS["INVITE"], attempt)


@pytest.mark.parametrize(("kind", "method"), [("re-INVITE", "INVITE"), ("UPDATE", "UPDATE")])
async def test_within_a_call(running: Worker, kind: str, method: str) -> None:
    async def attempt(peer: SipPeer, sample: Sample) -> str:
        assert await ask(peer, "INVITE", GOOD) == 200
        status = await ask(peer, method, sample)
        wrong = said({status}, sample)
        if not wrong and await ask(peer, method, GOOD) != 200:
            wrong = "a good offer behind it was refused"
        await peer.bye()
        return wrong

    async with beside(running):
        await each(running, PORTIONS[kind], attempt)


async def test_in_a_prack(running: Worker) -> None:
    """An offer there is none that can be answered yet; whatever is said to it, the call comes about."""

    async def attempt(peer: SipPeer, sample: Sample) -> str:
        cseq = peer.send("INVITE", OFFER, "Require: 100rel")
        ringing = await peer.answer(cseq, status=180)
        rack = f"RAck: {ringing.header('rseq')} {cseq} INVITE"
        status = await ask(peer, "PRACK", sample, rack)
        if status != 200:
            await ask(peer, "PRACK", Sample("none", "", {200}), rack)
        await peer.answer(cseq, status=200)
        peer.send("ACK", cseq=cseq)
        await peer.bye()
        return said({status}, sample)

    async with beside(running):
        await each(running, PORTIONS["PRACK"], attempt)


async def test_in_an_ack(running: Worker) -> None:
    """The answer to an offer of the worker's: with its first line the call goes on, without a usable one it ends."""

    async def attempt(peer: SipPeer, sample: Sample) -> str:
        while not (await peer.answer(cseq := peer.send("INVITE"))).start_line.startswith("SIP/2.0 200"):
            peer.to_tag = ""  # too busy: once more
            await asyncio.sleep(BUSY_S)
        peer.send("ACK", sample.body, f"Content-Type: {sample.content_type}", cseq=cseq)
        if 200 not in sample.statuses:
            peer.reply(await peer.request("BYE"), "200 OK")
            return ""
        there = (await peer.answer(peer.send("OPTIONS"), "OPTIONS")).start_line == "SIP/2.0 200 OK"
        ended = any(message.start_line.startswith("BYE ") for message in peer.heard)
        peer.send("BYE")
        answers = sample.body.split("\r\nm=")[1:2] == [PLAIN.removeprefix("m=")] and sample.statuses == {200}
        return "the call was ended" if answers and (ended or not there) else ""

    async with beside(running):
        await each(running, PORTIONS["ACK"], attempt)


async def test_a_description_that_only_pjsip_sees_is_refused(running: Worker) -> None:
    """What is judged is what PJSIP reads: nobody gets past by a message that two parsers read in two ways."""
    dtls, plain = described("m=audio 40002 UDP/TLS/RTP/SAVPF 0", *FINGERPRINT), described(PLAIN)
    kind, mixed = "Content-Type: application/sdp", "Content-Type: multipart/mixed;boundary=b"
    part = "--b\r\n{}\r\n\r\n{}\r\n"

    def parts(first: str, second: str) -> str:
        return part.format(first, plain) + part.format(second, dtls) + "--b--\r\n"

    hidden = {
        "a header in a header's value": (mixed, parts(f"X: y\x85{kind}", kind)),
        "a header behind a bare CR": (mixed, parts(f"X: y\r{kind}", kind)),
        "a folded header": (mixed, part.format("Content-Type:\r\n application/sdp", dtls) + parts(kind, kind)),
        "two parameters": (
            'Content-Type: multipart/mixed;x="boundary=c";boundary=b',
            f"--c\r\n{kind}\r\n\r\n{plain}" + parts("X: y", kind),
        ),
        "two lengths": (f"{kind}\r\nContent-Length: 0\r\nContent-Length: {len(dtls)}", dtls),
        "two types": (f"{kind}\r\n{mixed}", parts("X: y", kind)),
        "a blank line of bare CR": (f"{kind}\r\r" + dtls.replace("\r\n", "\r"), ""),
        "nothing but CR": (kind, dtls),
    }  # fmt: skip
    peer = SipPeer(running.sip_port)
    async with beside(running):
        for number, (name, (head, body)) in enumerate(hidden.items()):
            lines = [f"INVITE sip:1000@127.0.0.1:{running.sip_port} SIP/2.0", "CSeq: 1 INVITE", "Max-Forwards: 70"]
            lines += [
                f"Via: SIP/2.0/UDP 127.0.0.1:{peer.port};branch=z9hG4bKhidden{number}",
                f"Call-ID: {number}-hidden",
            ]
            lines += ["From: <sip:4711@127.0.0.1>;tag=a", "To: <sip:1000@127.0.0.1>"]
            lines += [f"Contact: <sip:4711@127.0.0.1:{peer.port}>", head, "", body]
            text = "\r\n".join(lines)
            peer.put((text.replace("\r\n", "\r") if name == "nothing but CR" else text).encode("latin-1"))
            status = (await peer.answer(1)).start_line.split()[1]
            assert status in ("400", "415", "488"), f"{name}: {status}"
            peer.heard.clear()
    peer.close()
    assert "could not be judged" not in running.log.read_text()


async def test_lines_are_refused_in_place_over_tcp(running: Worker) -> None:
    """Two requests in one segment: what is closed in one is not what is closed in the other."""
    dtls, keys = "m=audio 40002 UDP/TLS/RTP/SAVPF 0", "m=audio 40004 RTP/SAVP 0"
    reader, writer = await asyncio.open_connection("127.0.0.1", running.sip_port)
    port = writer.get_extra_info("sockname")[1]

    def request(method: str, number: int, to: str, body: str = "") -> str:
        lines = [f"{method} sip:1000@127.0.0.1:{running.sip_port} SIP/2.0", f"CSeq: 1 {method}", "Max-Forwards: 70"]
        lines += [f"Via: SIP/2.0/TCP 127.0.0.1:{port};branch=z9hG4bK{method}{number}", f"Call-ID: tcp-{number}"]
        lines += ["From: <sip:4711@127.0.0.1>;tag=a", f"To: {to}"]
        lines += [f"Contact: <sip:4711@127.0.0.1:{port};transport=tcp>"]
        return "\r\n".join([*lines, "Content-Type: application/sdp", f"Content-Length: {len(body)}", "", body])

    mixed = described(keys, *FINGERPRINT, PLAIN, dtls, keys, CRYPTO)
    offers = [described(dtls, PLAIN), described(PLAIN, dtls), mixed]
    writer.write("".join(request("INVITE", n, "<sip:1000@127.0.0.1>", body) for n, body in enumerate(offers)).encode())
    text = ""
    while text.count("SIP/2.0 200 OK") < len(offers) or not text.endswith("\r\n"):
        text += (await reader.read(65536)).decode()
    for number in range(len(offers)):
        answer = next(each for each in text.split("SIP/2.0 ") if each.startswith("200") and f"tcp-{number}" in each)
        lines = re.findall(r"m=audio (\d+) (\S+)", answer)
        assert [protocol for port, protocol in lines if port != "0"] == [("RTP/AVP", "RTP/AVP", "RTP/SAVP")[number]]
        assert len(lines) == offers[number].count("m=audio")
        to = re.search(r"(?m)^To: ([^\r]+)", answer)[1]
        writer.write((request("ACK", number, to) + request("BYE", number, to).replace("CSeq: 1", "CSeq: 2")).encode())
    await asyncio.to_thread(until, lambda: running.metric("mediaworker_calls_active") == 0, 10)
    writer.close()
