"""Recording sessions in the shape that recording clients document, sent by SIPp: none of them can be run here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from audio.codecs.g711 import alaw_encode, ulaw_decode
from lab.events.story import check_story
from lab.sip.rtp_sender import RtpSender
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Body, Pause, Send, mixed, offer
from lab.sip.siprec import ended, talking
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID, file

ROLES = [{"match": "1234", "role": "agent"}]
SESSION = "application/sdp\nContent-Disposition: session;handling=required"
RECORDING = "application/rs-metadata+xml\nContent-Disposition: recording-session"
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<recording xmlns="urn:ietf:params:xml:ns:recording:1">'
TIME = "<associate-time>2026-05-13T15:32:45.293Z</associate-time>"
ANSWER = ("a=label:1", "a=label:2", "a=recvonly", r"Contact: <[^>]*>;\+sip\.srs")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    roles = {"SIPREC__PARTICIPANTS": _toml(ROLES), "SIPREC__OTHERS": "customer"}
    with worker(tmp_path_factory.mktemp("worker"), **QWEN, **roles, ASR__PRELOAD="true") as started:
        yield started


def _toml(entries: list[dict[str, str]]) -> str:
    pairs = [", ".join(f"{key} = {json.dumps(value)}" for key, value in entry.items()) for entry in entries]
    return "[" + ", ".join(f"{{{pair}}}" for pair in pairs) + "]"


def person(one: str, stream: str, label: int, aor: str, name: str = "") -> str:
    """As CUBE writes it: the participant, its association with the session and its stream, one after the other."""
    named = f'<name xml:lang="en">{name}</name>\n' if name else ""
    return (
        f'<participant participant_id="{one}">\n<nameID aor="{aor}">\n{named}</nameID>\n</participant>\n'
        f'<participantsessionassoc participant_id="{one}" session_id="MIgZ2nTLEemWFaQi==">\n{TIME}\n'
        f'</participantsessionassoc>\n<stream stream_id="{stream}" session_id="MIgZ2nTLEemWFaQi==">\n'
        f"<label>{label}</label>\n</stream>\n"
    )


def hears(one: str, sends: str, receives: str) -> str:
    return (
        f'<participantstreamassoc participant_id="{one}">\n<send>{sends}</send>\n<recv>{receives}</recv>\n'
        "</participantstreamassoc>\n"
    )


def cube(senders: list[RtpSender]) -> Send:
    """Cisco Unified Border Element, IOS XE 17.6 onwards: comfort noise as payload type 19, a session timer, 100rel."""
    lines = [
        f"m=audio {sender.port} RTP/AVP 0 101 19\nc=IN IP4 [media_ip]\na=rtpmap:0 PCMU/8000\n"
        "a=rtpmap:101 telephone-event/8000\na=fmtp:101 0-16\na=rtpmap:19 CN/8000\na=ptime:20\na=sendonly\n"
        f"a=label:{label}"
        for label, sender in enumerate(senders, 1)
    ]
    session = (
        '<session session_id="MIgZ2nTLEemWFaQi==">\n<sipSessionID>a0b9b2a1;remote=6bea1555</sipSessionID>\n'
        "<start-time>2026-05-13T15:32:45.293Z</start-time>\n</session>\n"
    )
    people = person("p1==", "s1==", 1, "sip:911@192.0.2.1", "Bea") + person("p2==", "s2==", 2, "sip:1234@192.0.2.15")
    heard = hears("p1==", "s1==", "s2==") + hears("p2==", "s2==", "s1==")
    text = f"{HEAD}\n<datamode>complete</datamode>\n{session}{people}{heard}</recording>"
    headers = (
        "Require: siprec",
        "Supported: 100rel,timer,resource-priority,replaces,sdp-anat",
        "Min-SE: 1800",
        "Session-Expires: 1800",
        "Cisco-Guid: 0802710458-1959465449-2686421522-1015028268",
        "Session-ID: a62dd6d8be0059c38d142bae9b46880b;remote=00000000000000000000000000000000",
        "Allow-Events: telephone-event",
        "Expires: 180",
    )
    body = mixed(Body(SESSION, offer(*lines).text), Body(RECORDING, text))
    return Send("INVITE", body, headers, has=(*ANSWER, "Session-Expires: 1800"), keep={"ports": "m=audio.*"})


def opensips(senders: list[RtpSender]) -> Send:
    """OpenSIPS' module `siprec`: everybody's elements of a kind together; the Call-ID as the session's id."""
    lines = [
        f"m=audio {sender.port} RTP/AVP 8 101\na=rtpmap:8 PCMA/8000\na=rtpmap:101 telephone-event/8000\na=sendonly\n"
        f"a=rtcp:{sender.port + 1}\na=label:{label}"
        for label, sender in enumerate(senders, 1)
    ]
    people = (("p1", "s1", "sip:911@192.0.2.1", "Bea"), ("p2", "s2", "sip:1234@192.0.2.15", "Ann"))
    parts = [
        "<datamode>complete</datamode>",
        '<session session_id="u1"><sipSessionID>4711-abc@192.0.2.1</sipSessionID></session>',
        *(
            f'<participant participant_id="{one}"><nameID aor="{aor}"><name>{name}</name></nameID></participant>'
            for one, _, aor, name in people
        ),
        *(
            f'<stream stream_id="{stream}" session_id="u1"><label>{label}</label></stream>'
            for label, (_, stream, _, _) in enumerate(people, 1)
        ),
        f'<sessionrecordingassoc session_id="u1">{TIME}</sessionrecordingassoc>',
        *(
            f'<participantsessionassoc participant_id="{one}" session_id="u1">{TIME}</participantsessionassoc>'
            for one, *_ in people
        ),
        hears("p1", "s1", "s2"),
        hears("p2", "s2", "s1"),
    ]
    text = HEAD + "\n".join(parts) + "</recording>"
    body = mixed(Body("application/sdp", offer(*lines).text), Body(RECORDING, text))
    return Send("INVITE", body, ("Require: siprec",), has=ANSWER, keep={"ports": "m=audio.*"})


@pytest.mark.parametrize(
    ("client", "names", "session", "payload_type"),
    [(cube, ["Bea", "1234"], "a0b9b2a1;remote=6bea1555", 0), (opensips, ["Bea", "Ann"], "4711-abc@192.0.2.1", 8)],
    ids=["cube", "opensips"],
)
async def test_both_sides_are_read_word_for_word(
    recorder: Worker,
    tmp_path: Path,
    client: Callable[[list[RtpSender]], Send],
    names: list[str],
    session: str,
    payload_type: int,
) -> None:
    senders, before = [RtpSender(), RtpSender()], len(recorder.calls())
    async with talking(Sipp(tmp_path), recorder, senders, client(senders), Pause(10_000), Send("BYE")) as found:
        codes = [file(name).read_bytes() for name in ("customer", "agent")]
        if payload_type == 8:
            codes = [alaw_encode(ulaw_decode(each)) for each in codes]
        await asyncio.gather(
            *(each.talk(code, port, payload_type) for each, code, port in zip(senders, codes, found, strict=True))
        )
    events = await ended(recorder, before)
    finals, started = check_story(events), events[0]
    assert started["source"] == "siprec" and started["custom"]["session-id"] == session
    assert [(leg["leg"], leg["role"], leg["name"]) for leg in started["legs"]] == [
        ("1", "customer", names[0]),
        ("2", "agent", names[1]),
    ]
    said = {role: [final["text"] for final in finals if final["role"] == role] for role in ("customer", "agent")}
    assert said == {role: SAID[role] for role in said}
    assert all(leg["lost"] == 0 for leg in events[-1]["legs"])
