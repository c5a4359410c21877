"""Asterisk's WebSocket channels message by message, without a socket or a clock."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec
from audio.rtp.dtmf import DIGIT_BURST
from config import Settings
from config.load import parse as configured
from lab.calls.stream_desks import Desk, StreamCall, StreamLeg
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.asterisk.calls import MAX_LEGS, AsteriskCalls
from mediaworker.ingress.asterisk.messages import (
    FORMATS,
    PLAIN,
    DtmfEnd,
    MediaStart,
    Notice,
    command,
    parse,
)
from mediaworker.ingress.asterisk.routes import AsteriskIngress, bearing
from mediaworker.ingress.asterisk.session import (
    EARLY_BYTES,
    FORGOTTEN_S,
    PROBE_S,
    SILENT_S,
    AsteriskSession,
)
from mediaworker.ingress.errors import MalformedMessage, UnknownMessage
from mediaworker.ingress.interfaces import Upgrade
from mediaworker.ingress.outbox import LINGER_S
from mediaworker.ingress.session import SessionState


class GrowingCall(StreamCall):
    def add_leg(self, spec: LegSpec) -> StreamLeg:
        assert spec.leg not in self.legs
        self.specs.append(spec)
        self.legs[spec.leg] = StreamLeg(spec.codec.position_bytes)
        return self.legs[spec.leg]

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.specs = list(arguments["legs"])


class GrowingDesk(Desk):
    def open(self, *, legs: Any, **arguments: Any) -> GrowingCall:
        if self.refused is not None:
            raise self.refused
        call = GrowingCall({"legs": legs, **arguments})
        call.id = f"call-{len(self.calls)}"
        self.calls.append(call)
        return call


def session(calls: AsteriskCalls | None = None, *, owner: str = "pbx", answers: bool = True) -> AsteriskSession:
    settings = configured({"asterisk": {"answer": answers}})
    made = AsteriskSession(settings, owner, calls if calls is not None else AsteriskCalls(GrowingDesk()), 0.0)
    assert made.streaming is False
    return made


def start(codec: str = "slin16", plain: bool = False, **variables: str) -> str:
    if plain:
        return (
            f"MEDIA_START connection_id:media1 channel:WebSocket/media1/0x7f channel_id:17.5 format:{codec} "
            f"optimal_frame_size:160 ptime:20"
        )
    fields = {"connection_id": "media1", "channel": "WebSocket/media1/0x7f", "channel_id": "17.5", "format": codec}
    return json.dumps({"event": "MEDIA_START", **fields, "ptime": 20, "channel_variables": variables})


def begun(codec: str = "slin16", plain: bool = False, **variables: str) -> tuple[AsteriskSession, GrowingCall]:
    desk = GrowingDesk()
    made = session(AsteriskCalls(desk))
    made.receive(start(codec, plain, **variables), 0.0)
    assert made.state is SessionState.STREAMING
    assert told(made) == ["ANSWER" if plain else '{"command":"ANSWER"}']
    return made, desk.calls[0]


def told(of: AsteriskSession) -> list[str | tuple[int, str]]:
    found: list[Any] = []
    while (output := of.outbox.next()) is not None:
        found.append(output if isinstance(output, str) else (output.code, output.reason))
    return found


def pcm(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(-20000, 20000, count).astype("<i2").tobytes()


# -- messages ---------------------------------------------------------------------------------------------------------


def test_both_forms_say_the_same() -> None:
    plain, other = parse(start(plain=True)), parse(start())
    assert isinstance(plain, MediaStart) and isinstance(other, MediaStart)
    for name in ("format", "connection_id", "channel", "channel_id", "variables"):
        assert getattr(plain, name) == getattr(other, name)
    assert (plain.json, other.json) == (False, True)
    assert parse("DTMF_END digit:d channel_id:1.2") == parse('{"event":"DTMF_END","digit":"D"}') == DtmfEnd("D")
    for name in PLAIN - {"MEDIA_START", "DTMF_END"}:
        assert parse(name) == parse(json.dumps({"event": name})) == Notice(name)
    assert parse("ERROR channel_id:1.2 error_text:no such thing") == Notice("ERROR", "no such thing")


def test_names_of_channels_may_hold_spaces_and_colons() -> None:
    found = parse("MEDIA_START connection_id:a channel:Local/a b@c:1;2 format:ulaw later:x")
    assert isinstance(found, MediaStart) and (found.channel, found.format) == ("Local/a b@c:1;2", "ulaw")


def test_variables_for_us_have_any_case_and_may_be_inherited() -> None:
    given = {
        "__MEDIAWORKER_CALL": "c",
        "mediaworker_leg": "l",
        "_Mediaworker_Role": "agent",
        "X": "y",
        "MEDIAWORKER_NAME": "",
    }
    found = parse(start(**given))
    assert isinstance(found, MediaStart)
    assert found.own == {"call": "c", "leg": "l", "role": "agent"} and found.others == {"X": "y"}


@pytest.mark.parametrize(
    "text", ["", " ", "hello", "{", "[]", '{"event":7}', '{"a":1}', '{"event":"\ud800"}', '{"event":' + "[" * 5000]
)
def test_what_is_no_message_is_malformed(text: str) -> None:
    with pytest.raises(MalformedMessage):
        parse(text)


def test_other_events_are_unknown_and_other_types_malformed() -> None:
    for text in ("MEDIA_STOP", '{"event":"media_start"}', "HANGUP a:b"):
        with pytest.raises(UnknownMessage):
            parse(text)
    for text in ('{"event":"DTMF_END","digit":5}', '{"event":"MEDIA_START","format":["ulaw"]}'):
        with pytest.raises(MalformedMessage):
            parse(text)


def test_commands_are_in_the_form_of_the_peer() -> None:
    assert command("HANGUP", json=False) == "HANGUP"
    assert json.loads(command("GET_STATUS", json=True)) == {"command": "GET_STATUS"}


# -- a channel --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
def test_media_start_opens_the_call(plain: bool) -> None:
    _, call = begun("ulaw", plain)
    arguments = call.arguments
    assert (arguments["source"], arguments["external_id"]) == ("asterisk-ws", "17.5"), "of the names the unique one"
    assert arguments["custom"] == {"channel": "WebSocket/media1/0x7f", "channel_id": "17.5", "connection_id": "media1"}
    (spec,) = call.specs
    assert (spec.leg, spec.codec, spec.role, spec.transport) == ("main", Codec.PCMU, "unknown", "stream")


def test_variables_say_what_the_call_is() -> None:
    variables = {
        "MEDIAWORKER_LANGUAGE": "de", "MEDIAWORKER_PROFILE": "bot", "MEDIAWORKER_CONTEXT": "Köln",
        "MEDIAWORKER_ROLE": "Agent", "MEDIAWORKER_NAME": "Ann", "MEDIAWORKER_LEG": "desk", "MEDIAWORKER_FROM": "100",
        "MEDIAWORKER_TO": "200", "ORDER": "A-17",
    }  # fmt: skip
    _, call = begun(**variables)
    arguments = call.arguments
    assert arguments["overrides"] == {
        "language": "de", "profile": "bot", "context": "Köln", "role.desk": "agent", "name.desk": "Ann",
    }  # fmt: skip
    assert (arguments["from_"], arguments["to"], arguments["custom"]["ORDER"]) == ("100", "200", "A-17")
    assert not [name for name in arguments["custom"] if name.upper().startswith("MEDIAWORKER")]
    (spec,) = call.specs
    assert (spec.leg, spec.role, spec.name) == ("desk", "agent", "Ann")


@pytest.mark.parametrize("codec", FORMATS)
def test_every_format_becomes_its_leg(codec: str) -> None:
    made, call = begun(codec)
    data = pcm(FORMATS[codec].rate_hz // 5) if codec.startswith("slin") else bytes(range(256)) * 6
    made.receive(data, 0.0)
    made.connection_lost(1.0)
    assert call.legs["main"].audio and call.ends == ["hangup"]
    if codec in ("ulaw", "alaw", "slin16"):
        assert call.legs["main"].audio == data


@given(st.sampled_from(["ulaw", "slin", "slin16", "slin44"]), st.lists(st.integers(0, 20_000), max_size=20))
def test_samples_do_not_depend_on_the_cuts(codec: str, places: list[int]) -> None:
    data, heard = pcm(3000), []
    at = sorted(place % (len(data) + 1) for place in places)
    for parts in ([data], [data[low:high] for low, high in zip([0, *at], [*at, len(data)], strict=True)]):
        made, call = begun(codec)
        for part in parts:
            made.receive(part, 0.0)
            while made.is_ahead():
                call.legs["main"].catch_up()
        made.connection_lost(0.0)
        heard.append(call.legs["main"].audio)
    assert heard[0] == heard[1]


def test_audio_that_overtakes_its_start_is_kept_for_a_second() -> None:
    desk = GrowingDesk()
    made = session(AsteriskCalls(desk))
    for seed in range(60):
        made.receive(pcm(320, seed), 0.0)
    assert (made.counters.early, made.counters.early_lost) == (60, 10)
    made.receive(start(), 0.5)
    made.receive(pcm(320, 99), 0.5)
    call = desk.calls[0]
    while made.is_ahead():
        call.legs["main"].catch_up()
    kept = b"".join(pcm(320, seed) for seed in range(50))
    assert len(kept) == EARLY_BYTES and call.legs["main"].audio == kept + pcm(320, 99)


def test_answering_can_be_left_to_others() -> None:
    made = session(answers=False)
    made.receive(start(), 0.0)
    assert told(made) == []


def test_digits_are_of_their_leg_and_no_flood() -> None:
    made, call = begun(MEDIAWORKER_LEG="desk")
    made.receive("DTMF_END digit:7", 0.0)
    made.receive('{"event":"DTMF_END","digit":"77"}', 0.0)
    made.receive('{"event":"DTMF_END","digit":""}', 0.0)
    assert call.digits == [("desk", "7", 0)] and made.counters.malformed == 2
    for _ in range(100):
        made.receive("DTMF_END digit:1", 0.0)
    assert len(call.digits) <= DIGIT_BURST and made.counters.implausible == 101 - len(call.digits)
    early = session()
    early.receive("DTMF_END digit:7", 0.0)
    assert early.counters.unexpected == 1


def test_what_is_wrong_is_counted_and_the_channel_goes_on() -> None:
    made, call = begun()
    for text in ("", "nonsense", "MEDIA_STOP", start(), "ERROR error_text:busy", "MEDIA_XOFF", "STATUS queue_length:1"):
        made.receive(text, 0.0)
    counters = made.counters
    assert (counters.malformed, counters.unknown, counters.unexpected) == (2, 1, 2)
    made.receive(pcm(320), 0.0)
    assert call.legs["main"].audio == pcm(320) and told(made) == []


@pytest.mark.parametrize("codec", ["g722", "opus", "", "SLIN16X"])
def test_a_format_that_we_cannot_take_is_refused(codec: str) -> None:
    made = session()
    made.receive(start(codec), 0.0)
    ((code, reason),) = told(made)
    assert code == 1003 and codec in reason and made.counters.refused == {"format": 1}
    made.receive(pcm(320), 0.0)
    made.connection_lost(0.1)


def test_no_room_and_no_start() -> None:
    full = session(AsteriskCalls(GrowingDesk(CallRefused(503, "full", busy=True))))
    full.receive(start(), 0.0)
    assert told(full) == [(1013, "full")]
    late = session()
    late.expire(4.9)
    assert late.deadline == 5.0 and told(late) == []
    late.expire(5.0)
    assert told(late)[0][0] == 1008 and late.counters.refused == {"start_timeout": 1}
    cuts: list[int] = []
    late.outbox.listen(lambda: None, lambda close: cuts.append(1))
    late.expire(5.0 + LINGER_S)
    assert cuts, "a peer that does not take the close is cut off"


def test_a_silent_channel_is_asked_before_it_is_given_up() -> None:
    made, call = begun()
    made.expire(SILENT_S)
    assert told(made) == ['{"command":"GET_STATUS"}'] and made.deadline == SILENT_S + PROBE_S
    made.receive('{"event":"STATUS","queue_length":0}', SILENT_S + 1)
    assert made.deadline == 2 * SILENT_S + 1, "it is there: hold may last"
    made.expire(2 * SILENT_S + 1)
    made.expire(2 * SILENT_S + 1 + PROBE_S)
    assert call.ends == ["media_timeout"] and told(made)[-1][0] == 1001 and made.counters.silent == 1


def test_a_channel_that_nobody_is_heard_through_does_not_stay_for_ever() -> None:
    """It answers, since it still is in a bridge that has been left by whom it heard."""
    made, call = begun()
    made.receive(bytes(640), 5.0)
    now = 5.0
    while not call.ends:
        assert made.deadline is not None and now < made.deadline <= 5.0 + FORGOTTEN_S
        now = made.deadline
        made.expire(now)
        if not call.ends:
            made.receive('{"event":"STATUS","queue_length":0}', now + 1)
    assert now == 5.0 + FORGOTTEN_S and call.ends == ["media_timeout"] and made.counters.silent == 1
    assert told(made)[-2:] == ['{"command":"HANGUP"}', (1000, "no audio")]


def test_our_hang_up_is_a_command_and_a_close() -> None:
    made, call = begun(plain=True)
    made.receive(pcm(320), 0.0)
    call.hangup()
    assert call.ends == ["api"] and told(made) == ["HANGUP", (1000, "call ended by the worker")]
    made.receive(pcm(320), 0.1)
    made.connection_lost(0.2)
    made.connection_lost(0.3)
    assert call.ends == ["api"] and call.legs["main"].audio == pcm(320)


# -- channels that share a call ---------------------------------------------------------------------------------------


def pair(**second: str) -> tuple[GrowingDesk, AsteriskSession, AsteriskSession]:
    desk = GrowingDesk()
    calls = AsteriskCalls(desk)
    one, two = session(calls), session(calls)
    one.receive(start("ulaw", MEDIAWORKER_CALL="7", MEDIAWORKER_ROLE="customer"), 0.0)
    two.receive(start(**({"MEDIAWORKER_CALL": "7", "MEDIAWORKER_ROLE": "agent"} | second)), 0.0)
    return desk, one, two


def test_channels_of_one_name_are_legs_of_one_call() -> None:
    desk, one, two = pair(MEDIAWORKER_NAME="Ann")
    (call,) = desk.calls
    assert [(spec.leg, spec.role, spec.name, spec.codec) for spec in call.specs] == [
        ("customer", "customer", "", Codec.PCMU),
        ("agent", "agent", "Ann", Codec.L16),
    ]
    assert call.arguments["external_id"] == "7" and (one.counters.joined, two.counters.joined) == (0, 1)
    one.receive(b"\x11" * 160, 0.0)
    two.receive(pcm(320), 0.0)
    assert call.legs["customer"].audio == b"\x11" * 160 and call.legs["agent"].audio == pcm(320)
    one.connection_lost(1.0)
    assert call.ends == [] and call.flushes == 1, "the other still speaks"
    two.connection_lost(2.0)
    assert call.ends == ["hangup"]


def test_a_hang_up_reaches_every_channel() -> None:
    desk, one, two = pair()
    desk.calls[0].hangup()
    for each in (one, two):
        assert told(each)[-2:] == ['{"command":"HANGUP"}', (1000, "call ended by the worker")]
        each.connection_lost(1.0)
    assert desk.calls[0].ends == ["api"]


def test_a_name_of_a_call_that_is_ending_begins_another() -> None:
    desk, one, _ = pair()
    calls = one._calls
    desk.calls[0].hangup()
    again = session(calls)
    again.receive(start(MEDIAWORKER_CALL="7"), 1.0)
    assert len(desk.calls) == 2 and again.call is desk.calls[1]
    again.connection_lost(2.0)
    assert desk.calls[1].ends == ["hangup"] and len(calls) == 0


def test_a_channel_that_comes_back_speaks_in_its_leg_again() -> None:
    desk, one, two = pair()
    (call,) = desk.calls
    two.receive(pcm(320), 0.0)
    two.connection_lost(1.0)
    back = session(one._calls)
    back.receive(start("alaw", MEDIAWORKER_CALL="7", MEDIAWORKER_ROLE="agent"), 2.0)
    assert back._legs == ("agent",) and call.codecs == [Codec.PCMA] and len(call.specs) == 2
    double = session(one._calls)
    double.receive(start(MEDIAWORKER_CALL="7", MEDIAWORKER_ROLE="agent"), 2.0)
    assert double._legs == ("agent-2",), "what is said twice is not lost, nor mixed"


def test_another_key_does_not_join() -> None:
    desk = GrowingDesk()
    calls = AsteriskCalls(desk)
    for owner in ("ann", "bob"):
        session(calls, owner=owner).receive(start(MEDIAWORKER_CALL="7"), 0.0)
    assert len(desk.calls) == 2


def test_a_call_has_so_many_legs() -> None:
    desk = GrowingDesk()
    calls = AsteriskCalls(desk)
    made = [session(calls) for _ in range(MAX_LEGS + 1)]
    for each in made:
        each.receive(start(MEDIAWORKER_CALL="7"), 0.0)
    assert len(desk.calls) == 1 and len(desk.calls[0].legs) == MAX_LEGS
    assert told(made[-1]) == [(1013, f"the call has {MAX_LEGS} legs")]
    made[-1].connection_lost(1.0)
    assert desk.calls[0].ends == []


# -- anything at all --------------------------------------------------------------------------------------------------

VARIABLES = st.dictionaries(
    st.sampled_from(["MEDIAWORKER_CALL", "MEDIAWORKER_LEG", "__MEDIAWORKER_ROLE", "MEDIAWORKER_NAME", "X"]),
    st.sampled_from(["", "1", "a b", "agent", "customer", "é" * 300]),
)
TEXTS = st.one_of(
    st.builds(
        lambda codec, plain, given: start(codec, plain, **given),
        st.sampled_from([*FORMATS, "g722"]),
        st.booleans(),
        VARIABLES,
    ),
    st.sampled_from(["DTMF_END digit:1", "STATUS", "MEDIA_XOFF", '{"event":"DTMF_END","digit":"#"}']),
    st.text(max_size=30),
)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("mmmmehl"), TEXTS | st.binary(max_size=400), st.floats(0, 40)),
        max_size=40,
    )
)
def test_nothing_raises_and_each_call_ends_once(story: list[Any]) -> None:
    desk, now = GrowingDesk(), 0.0
    calls = AsteriskCalls(desk)
    made = [session(calls) for _ in range(3)]
    for which, what, message, wait in story:
        now += wait
        if what == "m":
            made[which].receive(message, now)
        elif what == "e":
            made[which].expire(now)
        elif what == "l":
            made[which].connection_lost(now)
        elif desk.calls and not desk.calls[-1].ending:
            desk.calls[-1].hangup()
        for call in desk.calls:
            for leg in call.legs.values():
                leg.catch_up()
        made[which].is_ahead()
    for each in made:
        each.connection_lost(now)
        assert sum(isinstance(output, tuple) for output in told(each)) <= 1
    assert len(calls) == 0 and not calls._named
    assert all(len(call.ends) == 1 for call in desk.calls)


# -- the door ---------------------------------------------------------------------------------------------------------


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_a_password_is_a_key() -> None:
    assert bearing([("Authorization", basic("pbx:a:b"))]) == [("Authorization", "Bearer a:b")]
    for wrong in ("Basic", "Basic =", "Basic w6k", basic("no colon"), "basic " + base64.b64encode(b"\xff:x").decode()):
        ((_, value),) = bearing([("authorization", wrong)])
        assert value == "Bearer ", wrong
    assert bearing([("Authorization", "Bearer k"), ("X", "Basic y")]) == [
        ("Authorization", "Bearer k"),
        ("X", "Basic y"),
    ]


async def test_who_may_connect() -> None:
    keys = [
        {"name": "pbx", "key": "pbx-key-12345", "scopes": ["stream"]},
        {"name": "eye", "key": "eye-key-12345", "scopes": ["events"]},
    ]
    ingress = AsteriskIngress(configured({"auth": {"api_keys": keys}}), GrowingDesk())

    def ask(value: str | None, peer: str = "192.0.2.1") -> int:
        headers = (("Host", "w"), *((("Authorization", value),) if value is not None else ()))
        try:
            session = ingress.admit(Upgrade("/asterisk/media", headers, peer))(asyncio.get_running_loop().time())
        except CallRefused as refused:
            assert bool(refused.challenge) == (refused.status in (401, 403))
            return refused.status
        session.connection_lost(0.0)
        return 101

    assert ask(basic("any:pbx-key-12345")) == ask("Bearer pbx-key-12345") == 101
    assert ask(None) == ask(basic("pbx:wrong-key-1")) == ask(basic("pbx-key-12345")) == 401
    assert ask(basic("eye:eye-key-12345")) == 403
    assert ingress.counters.refused == {"unauthorized": 3, "forbidden": 1, "no_start": 2} and ingress.channels == 0
    ingress.use(configured({}))
    assert ask(None) == 401 and ask(None, "127.0.0.1") == 401, "the Host is somebody else's"


def test_asterisks_formats_are_their_rates() -> None:
    rates = {name: form.rate_hz for name, form in FORMATS.items() if name.startswith("slin")}
    assert rates == {
        "slin": 8000, "slin12": 12000, "slin16": 16000, "slin24": 24000, "slin32": 32000, "slin44": 44100,
        "slin48": 48000, "slin96": 96000, "slin192": 192000,
    }  # fmt: skip
    assert {name: FORMATS[name].encoding for name in ("ulaw", "alaw", "slin")} == {
        "ulaw": "mulaw", "alaw": "alaw", "slin": "pcm_s16le",
    }  # fmt: skip


def test_each_problem_is_counted_and_says_what_came_on_a_channel() -> None:
    problems: list[tuple[str, str]] = []
    desk = GrowingDesk()
    made = AsteriskSession(
        Settings(), "pbx", AsteriskCalls(desk), 0.0, on_problem=lambda what, detail: problems.append((what, detail))
    )
    made.receive('{"event":"DTMF_END","digit":"1"}', 0.0)
    made.receive(start(), 0.0)
    for text in (start(), '{"event":"ERROR","error_text":"no such thing"}', "{", '{"event":"NEW_THING"}'):
        made.receive(text, 0.1)
    made.receive('{"event":"DTMF_END","digit":"X"}', 0.2)
    assert [what for what, _ in problems] == [
        "unexpected message of Asterisk's",
        "Asterisk reports an error",
        "malformed message of Asterisk's",
        "unknown message of Asterisk's",
        "malformed digit of Asterisk's",
    ]
    assert problems[0][1] == "MEDIA_START again" and problems[1][1] == "no such thing" and "NEW_THING" in problems[3][1]
    counters = made.counters
    assert (counters.unexpected, counters.unknown, counters.events, counters.started) == (3, 1, 7, 1)
    made.expire(SILENT_S + 0.2)
    made.expire(SILENT_S + 0.2 + PROBE_S)
    assert problems[-1] == ("Asterisk is silent", f"no answer within {PROBE_S:g} s") and counters.silent == 1
    assert counters.probes == 1 and desk.calls[0].ends == ["media_timeout"]


def test_a_channel_that_is_refused_says_why() -> None:
    problems: list[tuple[str, str]] = []
    for refusal, code in ((CallRefused(503, "full"), 1013), (CallRefused(403, "not yours"), 1008)):
        desk = GrowingDesk()
        desk.refused = refusal
        made = AsteriskSession(
            Settings(), "pbx", AsteriskCalls(desk), 0.0, on_problem=lambda what, detail: problems.append((what, detail))
        )
        made.receive(start(), 0.0)
        assert told(made) == [(code, refusal.reason)] and made.counters.refused == {"capacity": 1}
    other = session()
    other.receive(start("opus"), 0.0)
    assert told(other) == [(1003, "format 'opus' is not supported")] and other.counters.refused == {"format": 1}
    assert problems == [("channel of Asterisk's refused", "full"), ("channel of Asterisk's refused", "not yours")]
