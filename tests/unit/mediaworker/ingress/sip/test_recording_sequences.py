"""Whole calls as recording clients tell them: who said each sentence stays who said it, whatever is told later.

The sequences have the shape that Cisco (CUBE), Oracle, AudioCodes and Avaya document and that RFC 8068 draws: complete
documents or partial ones, the elements of RFC 7865 or of its drafts, ids that stay, come anew or are used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from audio.codecs.g711 import ulaw_encode
from config import Settings
from config.load import parse as settings_of
from lab.calls.desks import Desk, Hashed, sip_call
from lab.media.speech import speech
from mediaworker.events import schema as events
from mediaworker.ingress.sip.calls import SipIngress
from mediaworker.transcripts.call import segments
from sip.protocol.siprec import Recording, parse

WORDS = ulaw_encode(speech("auth-thankyou")) + b"\xff" * 6400
SETTINGS = settings_of({"siprec": {"participants": [{"match": "47??", "role": "agent"}], "others": "customer"}})
GONE = "<disassociate-time>2026-03-02T10:15:00Z</disassociate-time>"
SINCE = "<associate-time>2026-03-02T10:10:00Z</associate-time>"
BEA, ANN, CLEO, NOBODY = ("customer", "Bea"), ("agent", "Ann"), ("agent", "Cleo"), ("unknown", "")
Heard = tuple[tuple[str, str], tuple[str, str]]
"""(role, name) of who is heard on the first leg and on the second."""
Documents = Sequence[tuple[str, Heard]]
"""Documents, and who is heard after each of them."""


def document(mode: str, *parts: str, namespace: str = "urn:ietf:params:xml:ns:recording:1") -> str:
    return f"<recording xmlns='{namespace}'><datamode>{mode}</datamode>{''.join(parts)}</recording>"


def person(one: str, aor: str = "", name: str = "", inside: str = "") -> str:
    shown = f"<nameID aor='{aor}'>{f'<name>{name}</name>' if name else ''}</nameID>" if aor or name else ""
    return f"<participant participant_id='{one}'>{shown}{inside}</participant>"


def stream(one: str, label: str) -> str:
    return f"<stream stream_id='{one}' session_id='q1'><label>{label}</label></stream>"


def in_session(one: str, session: str = "q1", when: str = SINCE) -> str:
    return f"<participantsessionassoc participant_id='{one}' session_id='{session}'>{when}</participantsessionassoc>"


def hears(one: str, send: str = "", recv: str = "", when: str = "") -> str:
    parts = "".join(f"<{kind}>{each}</{kind}>" for kind, each in (("send", send), ("recv", recv)) if each)
    return f"<participantstreamassoc participant_id='{one}'>{parts}{when}</participantstreamassoc>"


B, A, C = (
    person("pB", "sip:+4930123456@carrier.example", "Bea"),
    person("pA", "sip:4711@pbx.example", "Ann"),
    person("pC", "sip:4799@pbx.example", "Cleo"),
)
STREAMS = stream("s1", "1") + stream("s2", "2")
TALK = document("complete", "<session session_id='q1'/>", B, A, in_session("pB"), in_session("pA"), STREAMS,
                hears("pB", "s1", "s2"), hears("pA", "s2", "s1"))  # fmt: skip

# Complete documents in re-INVITEs: who holds sends nothing, and a transfer ends one session and begins another.
CUBE: Documents = (
    (TALK, (BEA, ANN)),
    (document("complete", "<session session_id='q1'/>", B, A, STREAMS, hears("pB", recv="s2"), hears("pA")),
     (BEA, ANN)),
    (TALK, (BEA, ANN)),
    (
        document("complete", "<session session_id='q1'><stop-time>x</stop-time></session><session session_id='q2'/>",
                 B, A, C, in_session("pB", when=GONE), in_session("pA", when=GONE), in_session("pB", "q2"),
                 in_session("pC", "q2"), stream("t1", "1"), stream("t2", "2"), hears("pA", "s2", when=GONE),
                 hears("pB", "t1", "t2"), hears("pC", "t2", "t1")),
        (BEA, CLEO),
    ),
    (document("complete", in_session("pB", "q2", GONE), in_session("pC", "q2", GONE)), (BEA, CLEO)),
)  # fmt: skip


def drafted(mode: str, *parts: str) -> str:
    extension = (
        "<extensiondata><apkt:callerOrig xmlns:apkt='http://acme.example/x'>true</apkt:callerOrig></extensiondata>"
    )
    return document(mode, *parts, extension, namespace="urn:ietf:params:xml:ns:recording").replace(
        "datamode", "dataMode"
    )


def drafted_person(one: str, aor: str, *inside: str) -> str:
    return f"<participant id='{one}' session='q1'><nameID aor='{aor}'/>{''.join(inside)}</participant>"


DRAFT_STREAMS = "".join(
    f"<stream id='{one}' session='q1'><mode>separate</mode><label>{label}</label></stream>"
    for one, label in (("s1", "1"), ("s2", "2"))
)
# The drafts' elements, no display names, and partial documents for what has changed.
ORACLE: Documents = (
    (
        drafted("complete", "<session id='q1'><start-time>x</start-time></session>",
                drafted_person("pB", "sip:+4930123456@carrier.example", "<send>s1</send>"),
                drafted_person("pA", "sip:4711@pbx.example", "<send>s2</send>"), DRAFT_STREAMS),
        (("customer", "+4930123456"), ("agent", "4711")),
    ),
    (
        drafted("partial", drafted_person("pA", "sip:4711@pbx.example", "<recv>s1</recv>")),
        (("customer", "+4930123456"), ("agent", "4711")),
    ),
    (
        drafted("partial", drafted_person("pA", "sip:4711@pbx.example", GONE),
                drafted_person("pC", "sip:4799@pbx.example", "<send>s2</send>")),
        (("customer", "+4930123456"), ("agent", "4799")),
    ),
    (
        drafted("partial", "<session id='q1'><stop-time>x</stop-time></session>",
                drafted_person("pC", "sip:4799@pbx.example", GONE)),
        (("customer", "+4930123456"), ("agent", "4799")),
    ),
)  # fmt: skip


def anew(number: int, second: str) -> str:
    """A complete document whose ids are those of no other, but for their places."""
    b, a, s1, s2 = (f"{name}-{number}" for name in ("B", "A", "s1", "s2"))
    return document("complete", person(b, "+4930123456@192.0.2.1", "Bea"), second.replace("pA", a), stream(s1, "1"),
                    stream(s2, "2"), hears(b, s1, s2), hears(a, s2, s1))  # fmt: skip


# Addresses without a scheme, ids made anew in each document; and one id for whoever is at that side.
AUDIOCODES: Documents = (
    (anew(1, person("pA", "4711@192.0.2.2", "Ann")), (BEA, ANN)),
    (anew(2, person("pA", "sip:4711@192.0.2.2:5060;user=phone", "Ann")), (BEA, ANN)),
    (anew(2, person("pA", "4799@192.0.2.2", "Cleo")), (BEA, CLEO)),
    (anew(3, person("pA", "4755@192.0.2.2")), (BEA, ("agent", "4755"))),
    (anew(4, person("pA", "4711@192.0.2.2", "Ann")), (BEA, ANN)),
)
# Partial documents that name by the id alone who was there before: hold, a conference at one side, a return.
AVAYA: Documents = (
    (document("complete", "<group group_id='g'/>", "<session session_id='q1'/>", B, STREAMS, hears("pB", "s1")),
     (BEA, NOBODY)),
    (document("partial", A, in_session("pA"), hears("pA", "s2", "s1")), (BEA, ANN)),
    (document("partial", person("pA"), hears("pA", recv="s1", when=GONE)), (BEA, ANN)),
    (document("partial", person("pA"), hears("pA", "s2", "s1")), (BEA, ANN)),
    (document("partial", C, in_session("pC"), hears("pC", "s2", "s1")), (BEA, ("agent", "Ann, Cleo"))),
    (document("partial", in_session("pA", when=GONE)), (BEA, CLEO)),
    (document("partial", in_session("pC", when=GONE)), (BEA, CLEO)),
    (document("partial", person("pA"), in_session("pA"), hears("pA", "s2")), (BEA, ANN)),
    (document("complete", person("pB"), person("pA"), STREAMS.replace("<label>2</label>", ""), hears("pB", "s1"),
              hears("pA", "s2")), (BEA, ANN)),
)  # fmt: skip
# RFC 8068: a hold, a transfer by REFER, a customer who hands the telephone over, and the end, all of them partial.
FLOWS: Documents = (
    (TALK, (BEA, ANN)),
    (document("partial", hears("pA", "s2", when=GONE), hears("pB", recv="s2", when=GONE)), (BEA, ANN)),
    (document("partial", in_session("pA", when=GONE), C, in_session("pC"), hears("pC", "s2", "s1")), (BEA, CLEO)),
    (
        document("partial", person("pD", "sip:+4930777@carrier.example", "Dora"), hears("pD", "s1"),
                 hears("pB", "s1", when=GONE)),
        (("customer", "Dora"), CLEO),
    ),
    (document("partial", *(in_session(one, when=GONE) for one in ("pB", "pC", "pD"))), (("customer", "Dora"), CLEO)),
)  # fmt: skip
# The INVITE of a session may come without metadata: who is named first has been there.
LATER: Documents = (("", (NOBODY, NOBODY)), *CUBE)


def session(labels: str = "12") -> Any:
    """What the ingress sees of a recording session with these streams."""
    sip = Hashed(sip_call())
    streams = [sip_call(label=label).streams[0] for label in labels]
    for index, each in enumerate(streams):
        each.index, each.held = index, False
    sip.streams, sip.recording, sip.mixed = streams, Recording(), frozenset()
    return sip


async def played(sequence: Documents, settings: Settings = SETTINGS) -> tuple[Desk, Any]:
    """Everybody says something after each document."""
    desk, sip = Desk(), session()
    ingress = SipIngress(desk.registry, lambda: settings)
    for number, (text, _) in enumerate(sequence):
        if text:
            sip.recording.update(parse(text))
        if not number:
            ingress.on_call(sip)
        elif text:
            ingress.on_metadata(sip)
        for each in sip.streams:
            await desk.play(WORDS, 0, each.socket.leg.receive_rtp)
    ingress.on_end(sip, "hangup")
    assert not len(ingress)
    return desk, sip


def transcript(desk: Desk) -> list[tuple[str, str, str]]:
    return [(each.leg, each.role, each.speaker) for each in segments(*desk.stored())]


@pytest.mark.parametrize(
    "sequence", [CUBE, ORACLE, AUDIOCODES, AVAYA, FLOWS, LATER],
    ids=["cube", "oracle", "audiocodes", "avaya", "rfc8068", "later"],
)  # fmt: skip
async def test_what_was_said_stays_theirs(sequence: Documents) -> None:
    desk, _ = await played(sequence)
    finals = [(body.leg, body.role, body.name) for body in desk.of(events.TranscriptFinal)]
    assert finals == [(leg, *who) for _, heard in sequence for leg, who in zip("12", heard, strict=True)]
    # In the transcript, whoever is named first was there from the beginning.
    last = {leg: next(who[1] for _, heard in sequence if (who := heard["12".index(leg)])[1]) for leg in "12"}
    expected = [(leg, role, name or last[leg]) for leg, role, name in finals]
    assert transcript(desk) == expected
