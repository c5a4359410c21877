"""Recording sessions (RFC 7866) by SIPp: what is answered, who is heard, and what updates change."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from pathlib import Path
from typing import Any

import pytest

from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.events.story import check_story
from lab.patience import until
from lab.sip.rtp_sender import RtpSender
from lab.sip.sip_peer import SipPeer
from lab.sip.sipp_caller import Sipp
from lab.sip.sipp_scenario import Body, Expect, Pause, Send, Step, mixed, offer, scenario
from lab.sip.siprec import ANSWERED, PEOPLE, REQUIRE, ROLES, SRC, both, ended, line, metadata, talking
from lab.worker.peers import Worker, worker
from lab.worker.qwen import QWEN, SAID, file
from lab.worker.reload import configured
from sip.pjsip.call import MAX_STREAMS
from sip.protocol.srtp import SUITES, Crypto, SrtpContext

HOLDS = ("call.held", "call.resumed")
GONE = "m=audio 0 RTP/AVP 0"
VIDEO = "m=video 4000 RTP/AVP 96\na=rtpmap:96 H264/90000"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with worker(tmp_path_factory.mktemp("worker"), **QWEN, **ROLES, SIP__HOST6="::1") as started:
        yield started


@pytest.mark.parametrize(("secure", "host"), [(False, "127.0.0.1"), (True, "::1")])
async def test_both_sides_of_a_recorded_call(running: Worker, tmp_path: Path, secure: bool, host: str) -> None:
    senders = [RtpSender(host), RtpSender(host)]
    keys = [Crypto(tag, suite, os.urandom(30)) if secure else None for tag, suite in enumerate(SUITES, 1)]
    lines = [line(sender.port, label, crypto=key) for sender, label, key in zip(senders, "12", keys, strict=True)]
    for sender, key in zip(senders, keys, strict=True):
        if key is not None:
            sender.seal = SrtpContext(key.own(), key).close
    invite = Send("INVITE", mixed(offer(*lines), metadata()), REQUIRE, has=ANSWERED, keep={"ports": "m=audio.*"})
    before, packets = len(running.calls()), running.metric("mediaworker_rtp_packets_total")
    async with talking(Sipp(tmp_path), running, senders, invite, Expect("BYE"), host=host) as ports:
        codes = [file(name).read_bytes() for name in ("customer", "agent")]
        await asyncio.gather(*(s.talk(c, p) for s, c, p in zip(senders, codes, ports, strict=True)))
        sent = sum(-(-len(each) // 160) for each in codes)
        received = lambda: running.metric("mediaworker_rtp_packets_total") == packets + sent  # noqa: E731
        await asyncio.to_thread(until, received)
        (live,) = (call for call in running.calls() if not call["ended_at"])
        await asyncio.to_thread(running.hang_up, live["call_id"])
    events = await ended(running, before)
    finals = check_story(events)
    started = events[0]
    assert started["source"] == "siprec" and started["custom"]["siprec-session"] == "q"
    assert started["custom"]["session-id"] == "ab30;remote=47"
    assert [(leg["leg"], leg["role"], leg["label"], leg["name"]) for leg in started["legs"]] == [
        ("1", "customer", "1", "Bea"), ("2", "agent", "2", "Ann"),
    ]  # fmt: skip
    said = {role: [final["text"] for final in finals if final["role"] == role] for role in ("customer", "agent")}
    assert said == {role: SAID[role] for role in said}
    assert not any(sender.sources & set(ports) for sender in senders), "nothing is sent to who records"
    assert all(leg["packets"] > 300 and leg["lost"] == 0 for leg in events[-1]["legs"])
    assert running.metric("mediaworker_sip_recordings_total") >= 1


async def story(running: Worker, sipp: Sipp, *steps: Step, **options: Any) -> list[dict[str, Any]]:
    """Signalling alone. The call's events."""
    before = len(running.calls())
    await sipp.run(scenario(*steps, contact=SRC), f"127.0.0.1:{running.sip_port}", timeout_s=30, **options)
    return await ended(running, before)


def shown(events: list[dict[str, Any]], *kinds: str) -> list[tuple[Any, ...]]:
    fields = {"leg.updated": ("leg", "role", "name"), "call.ended": ("reason",)}
    return [
        (event["type"], *(event[field] for field in fields.get(event["type"], ("leg",))))
        for event in events
        if event["type"] in kinds
    ]


async def test_updates_say_who_speaks_now(running: Worker, tmp_path: Path) -> None:
    """Complete in a re-INVITE, partial in an UPDATE without SDP and in one with, unreadable in a third."""
    media = [RtpSender(), RtpSender()]
    transfer = metadata({"2": ("c", "sip:4799@pbx.example", "Cleo")}, "partial")
    gone = "<participantstreamassoc participant_id='b'><disassociate-time>2026-01-01T00:00:00Z</disassociate-time>"
    transfer.text = transfer.text.replace("</recording>", f"{gone}<send>s2</send></participantstreamassoc></recording>")
    named = metadata({"1": ("a", "", "Beatrice")}, "partial", kind="")
    unreadable = Body("application/rs-metadata+xml", "<recording><participant></recording>")
    errors = running.metric("mediaworker_sip_metadata_errors_total")
    events = await story(
        running,
        Sipp(tmp_path),
        Send("INVITE", both(media), REQUIRE, has=ANSWERED),
        Pause(50),
        Send("INVITE", mixed(both(media, version=2), metadata()), has=ANSWERED[:3]),
        Send("UPDATE", transfer, lacks=("m=audio",)),
        Send("UPDATE", mixed(both(media, version=3), named), has=ANSWERED[:3]),
        Send("UPDATE", unreadable),
        Pause(50),
        Send("BYE"),
    )
    assert [(leg["leg"], leg["role"], leg["name"]) for leg in events[0]["legs"]] == [
        ("1", "unknown", ""), ("2", "unknown", ""),
    ]  # fmt: skip
    assert shown(events, "leg.updated") == [
        ("leg.updated", "1", "customer", "Bea"),
        ("leg.updated", "2", "agent", "Ann"),
        ("leg.updated", "2", "agent", "Cleo"),
        ("leg.updated", "1", "customer", "Beatrice"),
    ]
    assert running.metric("mediaworker_sip_metadata_errors_total") == errors + 1
    for sender in media:
        sender.close()


HOLDS_METADATA = metadata().text.replace("<send>s2</send>", "<recv>s1</recv>")
MOVES = "<disassociate-time>2026-01-01T00:00:00Z</disassociate-time>"
ABSENCES = {
    "one of two holds": HOLDS_METADATA,
    "both hold": HOLDS_METADATA.replace("<send>s1</send>", ""),
    "one has left": metadata({"1": PEOPLE["1"]}).text,
    "all have left": metadata({}).text,
    "from one session to another": metadata().text.replace(
        "</recording>",
        f"<session session_id='r'/><participantsessionassoc participant_id='b' session_id='r'/>"
        f"<participantsessionassoc participant_id='b' session_id='q'>{MOVES}</participantsessionassoc></recording>",
    ),
    "a stream for another": metadata()
    .text.replace("stream_id='s2'", "stream_id='t2'")
    .replace("<send>s2</send>", "<send>t2</send>"),
}


@pytest.mark.parametrize("mode", ["complete", "partial"])
async def test_who_is_not_named_has_not_gone(running: Worker, tmp_path: Path, mode: str) -> None:
    """As Cisco's and others' recording clients say hold, resume, transfer and leaving: with whole documents."""
    media = [RtpSender(), RtpSender()]
    documents = (text.replace("<datamode>complete", f"<datamode>{mode}") for text in ABSENCES.values())
    events = await story(
        running,
        Sipp(tmp_path),
        Send("INVITE", mixed(both(media), metadata()), REQUIRE, has=ANSWERED),
        Pause(50),
        *(Send("UPDATE", Body("application/rs-metadata+xml", text), lacks=("m=audio",)) for text in documents),
        Pause(50),
        Send("BYE"),
    )
    assert shown(events, "leg.updated") == []
    assert [(leg["role"], leg["name"]) for leg in events[0]["legs"]] == [("customer", "Bea"), ("agent", "Ann")]
    for sender in media:
        sender.close()


def body(found: Body) -> tuple[str, str]:
    """The text and Content-Type of a body, for a peer that fills nothing in."""
    text = found.text.replace("[media_ip_type]", "4").replace("[media_ip]", "127.0.0.1")
    return text, f"Content-Type: {found.content_type}"


async def test_people_keep_what_they_said(running: Worker) -> None:
    """Who takes the stream over is told, while the other speaks, by metadata alone."""
    media, before = [RtpSender(), RtpSender()], len(running.calls())
    caller, codes = SipPeer(running.sip_port), file("agent").read_bytes()
    answer = await caller.invite(*body(mixed(both(media), metadata())), *REQUIRE)
    port = int(re.findall(r"m=audio ([0-9]+) ", answer.body)[1])
    for name, number in (("Ann", "4711"), ("Cleo", "4799")):
        text = body(metadata({"2": ("b", f"sip:{number}@pbx.example", name)}, "partial"))
        assert (await caller.answer(caller.send("UPDATE", *text), "UPDATE")).start_line == "SIP/2.0 200 OK"
        await media[1].talk(codes, port)
    await caller.bye()
    events = await ended(running, before)
    finals = check_story(events)
    names = [final["name"] for final in finals]
    assert names == sorted(names) and set(names) == {"Ann", "Cleo"}
    for name in ("Ann", "Cleo"):
        words = " ".join(final["text"] for final in finals if final["name"] == name).split()
        assert words == " ".join(SAID["agent"]).split(), "nothing is cut off where one ends and the other begins"
    (updated,) = [event for event in events if event["type"] == "leg.updated"]
    assert (updated["name"], updated["since_ms"]) == ("Cleo", pytest.approx(updated["at_ms"], abs=1000))
    told = running.get(f"/v1/calls/{events[0]['call_id']}/transcript")["segments"]
    assert [line["speaker"] for line in told] == names
    for each in (caller, *media):
        each.close()


async def test_streams_are_held_one_by_one(running: Worker, tmp_path: Path) -> None:
    """It begins with one of them inactive; silence is no end."""
    media = [RtpSender(), RtpSender()]
    events = await story(
        running,
        Sipp(tmp_path),
        Send(
            "INVITE", mixed(both(media, "sendonly", "inactive"), metadata()), REQUIRE, has=("a=recvonly", "a=inactive")
        ),
        Pause(300),
        Send("INVITE", both(media, "inactive", "inactive", version=2), lacks=("recvonly", "sendrecv")),
        Pause(600),
        Send("INVITE", both(media, "sendonly", "sendonly", version=3), lacks=("inactive",)),
        Pause(100),
        Send("BYE"),
    )
    assert shown(events, "call.held", "call.resumed", "call.ended") == [
        ("call.held", "2"), ("call.held", "1"), ("call.resumed", "1"), ("call.resumed", "2"), ("call.ended", "hangup"),
    ]  # fmt: skip
    (metrics,) = [event for event in events if event["type"] == "metrics"]
    assert 500 <= metrics["hold_ms"] < metrics["hold_ms"] + metrics["silence_ms"], "while all of them are held"
    for sender in media:
        sender.close()


async def test_somebody_joins_and_leaves(running: Worker, tmp_path: Path) -> None:
    media = [RtpSender() for _ in range(3)]
    joined = metadata({"3": ("d", "sip:supervisor@pbx.example", "Dora")}, "partial")
    lines = [line(sender.port, label) for sender, label in zip(media, "123", strict=True)]
    events = await story(
        running,
        Sipp(tmp_path),
        Send("INVITE", mixed(offer(*lines[:2]), metadata()), REQUIRE, has=ANSWERED),
        Pause(50),
        Send("INVITE", mixed(offer(*lines, version=2), joined), has=("a=label:3", "(m=audio [1-9].*){3}")),
        Pause(50),
        Send("INVITE", offer(lines[0], GONE, lines[2], version=3), has=("m=audio 0", "a=label:3")),
        Pause(50),
        Send("INVITE", offer(*lines, version=4), has=("(m=audio [1-9].*){3}",)),
        Pause(50),
        Send("INVITE", offer(*lines[:2], GONE, version=5), has=("m=audio 0",)),
        Send("INVITE", offer(*lines[:2], GONE, version=6), has=("m=audio 0",)),
        Pause(50),
        Send("BYE"),
    )
    assert shown(events, "leg.updated", "call.ended") == [
        ("leg.updated", "3", "customer", "Dora"), ("call.ended", "hangup"),
    ]  # fmt: skip
    assert [(event["type"], event["leg"], event.get("left")) for event in events if event["type"] in HOLDS] == [
        ("call.held", "2", True), ("call.resumed", "2", None), ("call.held", "3", True),
    ]  # fmt: skip
    assert [leg["leg"] for leg in events[-1]["legs"]] == ["1", "2", "3"]
    for sender in media:
        sender.close()


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_what_clients_leave_out_and_how_long_they_write(running: Worker, tmp_path: Path, transport: str) -> None:
    """No labels, no `Require`, XML of the drafts, and more of it than a packet holds."""
    media = [RtpSender(), RtpSender()]
    draft = (
        "<?xml version='1.0'?>\n<recording xmlns='urn:ietf:params:xml:ns:recording'><dataMode>Complete</dataMode>"
        "<participant id='p1' session='x'><aor>sip:4711@pbx.example</aor><send>m1</send></participant>"
        "<participant id='p2' session='x'><nameID aor='tel:+49301'/><send>m2</send></participant>"
        "<stream id='m1' session='x'><mode>separate</mode></stream><stream id='m2' session='x'/>"
        + "<extensiondata>" + "x" * 60 + "</extensiondata>\n"
    ) + "".join(f"<note n='{number}'>{'y' * 60}</note>\n" for number in range(300)) + "</recording>"  # fmt: skip
    body = mixed(both(media, labels=("", "")), Body("application/rs-metadata", draft))
    assert len(body.text) > 20_000
    options = ("-max_socket", "64", "-buff_size", "131072")
    events = await story(
        running, Sipp(tmp_path), Send("INVITE", body, lacks=("a=label",)), Pause(50), Send("BYE"),
        transport=transport, options=options,
    )  # fmt: skip
    assert events[0]["source"] == "siprec"
    assert [(leg["leg"], leg["role"], leg["name"]) for leg in events[0]["legs"]] == [
        ("0", "agent", "4711"), ("1", "customer", "+49301"),
    ]  # fmt: skip
    for sender in media:
        sender.close()


async def test_streams_beyond_the_limit_are_refused_and_the_session_goes_on(running: Worker, tmp_path: Path) -> None:
    media = [RtpSender() for _ in range(MAX_STREAMS + 1)]
    lines = [line(sender.port, f"leg {number}") for number, sender in enumerate(media)]
    refused = Send("INVITE", offer(*lines, VIDEO), REQUIRE, has=("m=audio 0 ", "m=video 0 "))
    events = await story(running, Sipp(tmp_path), refused, Pause(50), Send("BYE"))
    assert [leg["leg"] for leg in events[0]["legs"]] == [f"leg {number}" for number in range(MAX_STREAMS)]
    for sender in media:
        sender.close()


ROUTES = """[
    {source = "siprec", participant = "sip:47??@*", headers = {"Cisco-GUID" = "1-2-*"}, names = {"1" = "Routed"}},
    {source = "siprec", participant = "nobody@*", names = {"1" = "Wrong"}},
]""".replace("\n", " ")


async def test_a_mixed_stream_is_left_out_and_a_route_goes_by_who_takes_part(tmp_path: Path) -> None:
    """No associations, base64, and a third stream in which both are heard. Without others it would be taken."""
    media = [RtpSender() for _ in range(3)]
    whole = metadata()
    text = re.sub("<participantstreamassoc.*?</participantstreamassoc>", "", whole.text)
    third = "<stream stream_id='s3'><label>3</label><mode>mixed</mode></stream>"
    text = text.replace("</recording>", f"{third}</recording>")
    coded = Body(whole.content_type, base64.encodebytes(text.encode()).decode())
    lines = [line(sender.port, label) for sender, label in zip(media, "123", strict=True)]
    guid = "Cisco-GUID: 1-2-3-4"
    with configured(tmp_path, "", None, LISTENER_PATH, **LISTENER, ROUTES=ROUTES) as (running, reload):
        assert "siprec.ignore_mixed" in reload("[siprec]\nignore_mixed = true\n")
        sipp = Sipp(tmp_path)
        both_and_mix = Send(
            "INVITE", mixed(offer(*lines), coded), (*REQUIRE, guid), has=("(m=audio [1-9].*){2}", "m=audio 0 ")
        )
        events = await story(running, sipp, both_and_mix, Pause(50), Send("BYE"))
        alone = Send("INVITE", mixed(offer(lines[2]), coded), REQUIRE, has=("m=audio [1-9]",))
        other = await story(running, sipp, alone, Pause(50), Send("BYE"))
    assert [(leg["leg"], leg["name"]) for leg in events[0]["legs"]] == [("1", "Routed"), ("2", "Ann")]
    assert events[0]["custom"]["cisco-guid"] == "1-2-3-4"
    assert [(leg["leg"], leg["name"]) for leg in other[0]["legs"]] == [("3", "")]
    for sender in media:
        sender.close()
