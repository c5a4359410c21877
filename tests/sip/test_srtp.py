"""SDES: calls of SIPp whose media is encrypted."""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path

import pytest

from lab.sip.crypto_lines import INLINE, LONG, SHORT, line
from lab.sip.endpoint import Recorder, until, worker
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Pause, Send, offer, scenario
from sip.protocol.srtp import KEY_BYTES, SUITES, Crypto, SrtpContext


@pytest.mark.parametrize("suite", SUITES)
async def test_an_encrypted_call(tmp_path: Path, suite: str) -> None:
    """Held and resumed with the same key, then with another; what is not encrypted with it is not heard."""
    handler, sender = Recorder(), RtpSender()
    keys = [f"2 {suite} inline:{base64.b64encode(bytes([number]) * KEY_BYTES).decode()}" for number in (1, 2)]
    ports = tmp_path / "ports"
    steps = (
        Send("INVITE", offer(line(sender.port, "1 NULL inline:x", keys[0])), lacks=(keys[0].split("inline:")[1][:20],),
             has=("RTP/SAVP 0", f"a=crypto:2 {suite} inline:"), keep={"first": "m=audio.*"}),
        Pause(1000),
        Send("INVITE", offer(line(sender.port, keys[0], direction="sendonly"), version=2), has=("a=recvonly",)),
        Send("INVITE", offer(line(sender.port, keys[1]), version=3), has=("RTP/SAVP 0",), keep={"second": "m=audio.*"}),
        Pause(1500),
        Send("BYE"),
    )  # fmt: skip
    async with worker(handler) as endpoint:
        options = ("-trace_logs", "-log_file", str(ports))
        task = Sipp(tmp_path).start(scenario(*steps), f"127.0.0.1:{endpoint.port}", options=options, timeout_s=20)
        answered = []
        for number, told in enumerate(keys):
            await until(lambda number=number: ports.exists() and ports.read_text().count("m=audio") > number, 10)
            answer = ports.read_text().split("m=audio ")[-1]
            port, own = int(answer.split()[0]), re.search(r"a=crypto:(.*)", answer)
            assert own is not None
            answered.append(own[1].strip())
            mine, theirs = Crypto.parse(told), Crypto.parse(answered[-1])
            assert mine is not None and theirs is not None and mine.key != theirs.key
            context = SrtpContext(theirs, mine)
            sender.seal = context.close
            heard = len(handler.audio[next(iter(handler.audio))])
            await sender.talk(bytes([number + 1]) * 160 * 20, port)
            (packets,) = handler.audio.values()
            await until(lambda packets=packets, heard=heard: len(packets) >= heard + 20)
            assert {packet[12:] for packet in packets[heard:]} == {bytes([number + 1]) * 160}
            silence = [context.open(packet) for packet in sender.received]
            assert any(packet and set(packet[12:]) == {0xFF} for packet in silence), "silence comes back, encrypted"
        sender.seal = bytes
        await sender.talk(b"\x55" * 160 * 5, port)  # in clear
        await until(lambda: endpoint.rtp.srtp_errors >= 5)
        assert all(packet[12:] != b"\x55" * 160 for packet in packets)
        assert answered[0] != answered[1]
        await task
    sender.close()


@pytest.mark.parametrize(("use", "protocol"), [("off", "RTP/SAVP"), ("mandatory", "RTP/AVP")])
async def test_what_the_policy_forbids_is_refused(tmp_path: Path, use: str, protocol: str) -> None:
    body = offer(line(40000, f"1 {LONG} inline:{INLINE}", protocol=protocol))
    async with worker(Recorder(), srtp=use) as endpoint:
        await Sipp(tmp_path).run(scenario(Send("INVITE", body, answer=488)), f"127.0.0.1:{endpoint.port}")
        await asyncio.sleep(0)
        assert endpoint.counters.refused == {488: 1}


@pytest.mark.parametrize("keys", [("no-key",), (INLINE, INLINE[::-1])])
async def test_keys_beside_plain_rtp_are_left_alone(tmp_path: Path, keys: tuple[str, ...]) -> None:
    """As phones offer that would take both."""
    async with worker(Recorder()) as endpoint:
        steps = []
        for number, (way, answer) in enumerate([("sendrecv", "a=sendrecv"), ("sendonly", "a=recvonly")], 1):
            crypto = [f"{tag} {SUITES[tag - 1]} inline:{key}" for tag, key in enumerate(keys, 1)]
            body = offer(line(40000, *crypto, protocol="RTP/AVP", direction=way), version=number)
            steps.append(Send("INVITE", body, has=("RTP/AVP 0", answer), lacks=("crypto",)))
        await Sipp(tmp_path).run(scenario(*steps, Pause(50), Send("BYE")), f"127.0.0.1:{endpoint.port}")


async def test_suites_that_are_not_spoken_here_come_first(tmp_path: Path) -> None:
    """As newer clients offer: RFC 6188 with keys of 46 bytes, RFC 7714 with 28 and 44."""
    sizes = {"AEAD_AES_256_GCM": 44, "AEAD_AES_128_GCM": 28, "AES_256_CM_HMAC_SHA1_80": 46, SHORT: 30, LONG: 30}
    keys = [
        f"{tag} {suite} inline:{base64.b64encode(bytes(range(size))).decode()}"
        for tag, (suite, size) in enumerate(sizes.items(), 1)
    ]
    async with worker(Recorder()) as endpoint:
        invite = Send("INVITE", offer(line(40000, *keys)), has=(f"a=crypto:4 {SHORT} ",))
        await Sipp(tmp_path).run(scenario(invite, Pause(50), Send("BYE")), f"127.0.0.1:{endpoint.port}")
