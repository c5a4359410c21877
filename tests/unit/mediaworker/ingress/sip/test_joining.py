"""SIP calls of one conversation: what their headers call it, and one call of which each is a leg."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec
from audio.codecs.g711 import ulaw_encode
from config import ConfigError
from config.load import parse
from lab.calls.desks import Desk, Hashed, sip_call
from lab.media.speech import speech
from mediaworker.calls.shared import MAX_NAMES
from mediaworker.events import schema as events
from mediaworker.ingress.sip.calls import SipIngress
from mediaworker.ingress.sip.headers import shared_names
from mediaworker.ingress.sip.joining import MAX_LEGS

A, B, C, NIL = "a" * 32, "0b" * 16, "c1" * 16, "0" * 32
WORDS = ulaw_encode(speech("auth-thankyou")) + b"\xff" * 6400
NEAR = '"Ann;x-refci=7" <sip:2000@ucm1;x-nearend;x-refci=42;x-farendrefci=41>;tag=1'
FAR = "<sip:2000@ucm1;x-farend;X-Refci = 42;x-nearenddevice=deviceB>;tag=2"


@pytest.mark.parametrize(
    ("rule", "header", "names"),
    [
        ("X-Talk", " 17 ", {"17"}),
        ("x-talk", "17", {"17"}),
        ("X-Talk", "", set()),
        ("Session-ID", f"{A};remote={B}", {A, B}),
        ("Session-ID", f"{B};remote={A}", {A, B}),
        ("Session-ID", f"{A};remote={NIL}", {A}),
        ("Session-ID", f"{NIL};remote={A}", {A}),
        ("Session-ID", f"{NIL};remote={NIL}", set()),
        ("Session-ID", A, {A}),
        ("session-id", f" {A.upper()} ; p=1 ; Remote = {B} ;q", {A, B}),
        ("Session-ID", f"{A};remote={A}", {A}),
        ("Session-ID", f"{A};remote=", set()),
        ("Session-ID", f"{A[1:]};remote={B}", set()),
        ("Session-ID", f"{A};remote={B}, {C}", set()),
        ("From;x-refci", NEAR, {"42"}),
        ("From;X-REFCI", FAR, {"42"}),
        ("From;x-nearend", NEAR, set()),
        ("From;refci", NEAR, set()),
        ("X-Talk;id", "voice;id=17;p, other;id=18", {"17"}),
    ],
)
def test_what_a_header_calls_a_conversation(rule: str, header: str, names: set[str]) -> None:
    assert set(shared_names(rule, {rule.lower().split(";")[0]: header})) == names
    assert shared_names(rule, {}) == shared_names("", {"x-talk": "17"}) == ()


@given(
    st.sampled_from(["Session-ID", "X-Talk", "From;x-refci"]),
    st.text(st.sampled_from(' ";=,<>\\0aremotex-fci') | st.characters(), max_size=300),
)
def test_any_header_names_a_conversation_or_none(rule: str, header: str) -> None:
    names = shared_names(rule, {rule.lower().split(";")[0]: header})
    assert all(names) and len(set(names)) == len(names) <= 2
    assert NIL not in names and (rule != "Session-ID" or all(len(name) == 32 for name in names))


@pytest.mark.parametrize("rule", ["Two words", "X-Talk:", "From;", ";x", "From;a;b", "X-Tälk"])
def test_a_rule_is_a_header_or_a_parameter_of_one(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"routes\[0\]\.join"):
        parse({"routes": [{"join": rule}]})


class Fork:
    """A PBX that sends each side of a conversation in a call of its own."""

    def __init__(self, *routes: dict[str, Any]) -> None:
        self.settings = parse({"routes": list(routes)})
        self.desk = Desk(routes=self.settings.routes)
        self.ingress = SipIngress(self.desk.registry, lambda: self.settings)
        self.hung_up: list[Any] = []

    def invite(self, *, codec: Codec = Codec.PCMU, held: bool = False, **headers: str) -> Any:
        """A SIP call with these headers (`X_Talk="17"`); `peer` and `account` are its own."""
        about = {name: headers.pop(name) for name in ("peer", "account") if name in headers}
        sip = Hashed(sip_call(codec))
        sip.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        sip.held, sip.hangup = held, lambda code=0: self.hung_up.append((sip, code))
        vars(sip).update(about)
        self.ingress.on_call(sip)
        return sip

    async def say(self, sip: Any) -> None:
        leg = sip.streams[0].socket.leg
        await self.desk.play(WORDS, leg.codec.payload_type, leg.receive_rtp)

    def end(self, sip: Any, reason: str = "hangup") -> None:
        self.ingress.on_end(sip, reason)

    @property
    def legs(self) -> list[list[tuple[str, str, str]]]:
        """(leg, role, name) of each leg of each call that is open."""
        return [
            [(name, member.speaker.role, member.speaker.name) for name, member in call.members.items()]
            for call in self.desk.registry
        ]


def customer(**headers: str) -> dict[str, str]:
    return {"X_Mediaworker_Role_main": "customer", "X_Mediaworker_Name_main": "Bea"} | headers


def agent(**headers: str) -> dict[str, str]:
    return {"X_Mediaworker_Role_main": "agent", "X_Mediaworker_Name_main": "Ann"} | headers


BEA, ANN = ("main", "customer", "Bea"), ("main-2", "agent", "Ann")


async def test_two_calls_of_one_conversation_are_one_call_of_two_legs() -> None:
    fork = Fork({"join": "X-Talk"})
    one, two = fork.invite(**customer(X_Talk="17")), fork.invite(**agent(X_Talk="17"), codec=Codec.PCMA)
    assert fork.legs == [[BEA, ANN]]
    await fork.say(one)
    fork.end(one)
    (first,) = fork.desk.of(events.TranscriptFinal)
    assert (first.leg, first.role, first.name) == ("main", "customer", "Bea")
    (left,) = fork.desk.of(events.CallHeld)
    assert (left.leg, left.left) == ("main", True) and not fork.desk.of(events.CallEnded)
    await fork.say(two)
    fork.end(two, "media_timeout")
    assert [(final.leg, final.name) for final in fork.desk.of(events.TranscriptFinal)] == [
        ("main", "Bea"),
        ("main-2", "Ann"),
    ]
    (ended,) = fork.desk.of(events.CallEnded)
    assert ended.reason == "media_timeout" and [leg.leg for leg in ended.legs] == ["main", "main-2"]
    assert not fork.legs and not fork.desk.detector.legs
    fork.invite(X_Talk="17")
    assert len(fork.desk.of(events.CallStarted)) == 2, "what comes after the end is another call"


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (f"{A};remote={B}", f"{B};remote={A}", True),
        (f"{A};remote={NIL}", f"{B};remote={A}", True),
        (f"{A};remote={NIL}", f"{A};remote={B}", True),
        (f"{A};remote={NIL}", A, True),
        (f"{A};remote={B}", f"{C};remote={B}", True),
        (f"{A};remote={NIL}", f"{B};remote={NIL}", False),
        (f"{NIL};remote={NIL}", f"{NIL};remote={NIL}", False),
        ("nonsense", "nonsense", False),
        (f"{A};remote={B}", "", False),
    ],
)
async def test_calls_of_one_session_id(first: str, second: str, joined: bool) -> None:
    fork = Fork({"join": "Session-ID"})
    fork.invite(Session_ID=first)
    fork.invite(**({"Session_ID": second} if second else {}))
    assert len(fork.legs) == (1 if joined else 2)


async def test_a_session_is_known_by_every_uuid_that_came_with_it() -> None:
    fork = Fork({"join": "Session-ID"})
    for header in (f"{A};remote={NIL}", f"{A};remote={B}", f"{C};remote={B}"):
        fork.invite(Session_ID=header)
    assert [len(legs) for legs in fork.legs] == [3]


@pytest.mark.parametrize("stranger", [{"peer": "203.0.113.5"}, {"account": "another"}, {"X_Talk": "18"}, {}])
async def test_a_stranger_joins_no_call(stranger: dict[str, str]) -> None:
    """By the address and the account; and where no route says so, nobody joins anybody."""
    fork = Fork({"join": "X-Talk"} if stranger else {"called": "2"})
    fork.invite(X_Talk="17")
    fork.invite(**{"X_Talk": "17", **stranger})
    assert [len(legs) for legs in fork.legs] == [1, 1]


async def test_routes_of_different_headers_join_nothing_by_chance() -> None:
    fork = Fork({"join": "X-A", "headers": {"X-A": "*"}}, {"join": "X-B", "headers": {"X-B": "*"}})
    fork.invite(X_A="17")
    fork.invite(X_B="17")
    assert [len(legs) for legs in fork.legs] == [1, 1]


async def test_the_two_calls_of_a_built_in_bridge() -> None:
    """CUCM names the conversation, and which end it is, in parameters of From."""
    fork = Fork(
        {"headers": {"From": "*;x-nearend;*"}, "join": "From;x-refci", "roles": {"main": "agent"}},
        {"headers": {"From": "*;x-farend;*"}, "join": "From;x-refci", "roles": {"main": "customer"}},
    )
    fork.invite(From=NEAR)
    fork.invite(From=FAR)
    assert fork.legs == [[("main", "agent", ""), ("main-2", "customer", "")]]


async def test_a_route_names_the_second_leg() -> None:
    fork = Fork({"join": "X-Talk", "roles": {"main": "customer", "main-2": "agent"}, "names": {"main-2": "Ann"}})
    fork.invite(X_Talk="17")
    fork.invite(X_Talk="17")
    assert fork.legs == [[("main", "customer", ""), ("main-2", "agent", "Ann")]]


async def test_who_comes_back_has_the_leg_again() -> None:
    """As after a hold, for which some PBXs end the call of one side; another speaker has a leg of his own."""
    fork = Fork({"join": "X-Talk"})
    one, two = fork.invite(**customer(X_Talk="17")), fork.invite(**agent(X_Talk="17"))
    await fork.say(one)
    fork.end(two)
    assert fork.invite(**agent(X_Talk="17", X_Mediaworker_Name_main="Cleo")) and len(fork.legs[0]) == 3
    again = fork.invite(**agent(X_Talk="17"), codec=Codec.PCMA)
    assert fork.legs == [[BEA, ANN, ("main-3", "agent", "Cleo")]]
    assert [(body.leg) for body in fork.desk.of(events.CallResumed)] == ["main-2"]
    await fork.say(again)
    assert fork.desk.of(events.SpeechStarted)[-1].leg == "main-2"
    (call,) = fork.desk.registry
    assert call.members["main-2"].info().codec == "PCMA"


async def test_hold_digits_and_a_new_description_are_of_a_leg() -> None:
    fork = Fork({"join": "X-Talk"})
    one, two = fork.invite(X_Talk="17"), fork.invite(X_Talk="17", held=True)
    fork.ingress.on_dtmf(two, "5", 100)
    two.held = False
    fork.ingress.on_media(two)
    one.streams[:] = sip_call(Codec.PCMA).streams
    fork.ingress.on_media(one)
    told = [(type(body), body.leg) for body in fork.desk.published[1:]]
    assert told == [
        (events.LegUpdated, "main-2"),
        (events.CallHeld, "main-2"),
        (events.Dtmf, "main-2"),
        (events.CallResumed, "main-2"),
        (events.LegUpdated, "main"),
    ]
    (call,) = fork.desk.registry
    assert [each.streams[0].socket.leg for each in (one, two)] == list(call.legs.values())


async def test_a_peer_that_comes_and_goes_with_ever_new_uuids_leaves_few_of_them() -> None:
    fork = Fork({"join": "Session-ID"})
    fork.invite(Session_ID=f"{A};remote={NIL}")
    for number in range(2 * MAX_NAMES):
        sip = fork.invite(Session_ID=f"{A};remote={number + 1:032x}")
        fork.end(sip)
    assert [len(legs) for legs in fork.legs] == [2]
    assert len(fork.ingress._joined._named) == MAX_NAMES
    (call,) = fork.desk.registry
    call.hangup()
    assert not fork.ingress._joined._named


async def test_a_hang_up_ends_every_leg() -> None:
    fork = Fork({"join": "X-Talk"})
    one, two = fork.invite(X_Talk="17"), fork.invite(X_Talk="17")
    (call,) = fork.desk.registry
    call.hangup()
    assert [sip for sip, _ in fork.hung_up] == [one, two]
    fork.end(one, "local")
    fork.end(two, "local")
    assert [body.reason for body in fork.desk.of(events.CallEnded)] == ["api"] and not fork.desk.of(events.CallHeld)


@pytest.mark.parametrize("memory", [True, False])
async def test_a_call_that_takes_no_more_legs_refuses_them(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = Fork({"join": "X-Talk"})
    for _ in range(MAX_LEGS if memory else 1):
        fork.invite(X_Talk="17")
    if not memory:
        monkeypatch.setattr(fork.desk.detector, "open", _no_memory)
    refused = fork.invite(X_Talk="17")
    assert fork.hung_up == [(refused, 503)]
    assert [len(legs) for legs in fork.legs] == [MAX_LEGS if memory else 1]
    assert (fork.desk.registry.trouble is None) is memory


def _no_memory(*arguments: Any, **named: Any) -> None:
    raise MemoryError("none")
