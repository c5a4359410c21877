"""The Twilio session against its corpora, message by message, and against whatever Hypothesis can think of."""

from __future__ import annotations

import base64
import json
import re
from random import Random
from types import SimpleNamespace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Detector
from config import Endpointing, Settings
from config.load import parse
from lab.calls.recording_call import Desk, RecordedCall
from lab.house import ROOT
from mediaworker.calls.registry import CallRefused
from mediaworker.events.schema import type_of
from mediaworker.ingress.errors import UnknownMessage
from mediaworker.ingress.outbox import CloseConnection
from mediaworker.ingress.session import SessionState
from mediaworker.ingress.twilio import messages
from mediaworker.ingress.twilio.calls import TwilioCalls
from mediaworker.ingress.twilio.session import (
    ABSENT,
    LINGER_S,
    SILENT_S,
    STALL_S,
    TwilioSession,
)

CORPUS = ROOT / "tests/data" / "twilio"
SID = "MZ18ad3ab5a668481ce02b83e7395059f0"


def lines(name):
    return (CORPUS / name).read_text(encoding="utf-8").splitlines()


def cases(name):
    return [pytest.param(case, id=case["why"]) for case in map(json.loads, lines(name))]


def new_session(desk=None, *, now=0.0, trusted=True, tokens=(), problems=None):
    desk = desk if desk is not None else Desk()
    settings = parse({"twilio": {"require_token": not trusted}})
    on_problem = (lambda what, detail: problems.append((what, detail))) if problems is not None else lambda *_: None
    session = TwilioSession(
        settings,
        TwilioCalls(desk),
        now,
        check_token=lambda token, call, stream: (token, call) in tokens,
        on_problem=on_problem,
    )
    session.closes = []
    session.outbox.listen(lambda: None, session.closes.append)
    return session


def play(session, texts, *, now=0.0, step_s=0.0):
    """How the session has closed its connection by then; nothing is sent in answer to any message."""
    for index, text in enumerate(texts):
        session.receive(text, now + index * step_s)
    assert session.outbox.next() is None
    return session.closes


def expire(session, now):
    session.expire(now)
    return session.closes


def started(*, mode="start", tracks=("inbound", "outbound"), now=0.0):
    desk = Desk()
    session = new_session(desk, now=now)
    assert play(session, [start(tracks=list(tracks), customParameters={"mw_mode": mode})], now=now) == []
    return session, desk.calls[0]


def start(sid=SID, **body):
    body = {"callSid": "CA1", "accountSid": "AC1", "tracks": ["inbound", "outbound"], **body}
    return json.dumps({"event": "start", "sequenceNumber": "1", "streamSid": sid, "start": body})


def media(timestamp_ms=0, payload=b"\x00" * 160, track="inbound", sid=SID):
    body = {"track": track, "chunk": "1", "timestamp": str(timestamp_ms), "payload": base64.b64encode(payload).decode()}
    return json.dumps({"event": "media", "sequenceNumber": "2", "streamSid": sid, "media": body})


STOP = json.dumps({"event": "stop", "sequenceNumber": "3", "streamSid": SID, "stop": {"callSid": "CA1"}})


def sent_payload(name, track):
    """timestamp → payload, straight from a corpus."""
    sent = [json.loads(line) for line in lines(name)]
    return {
        int(m["media"]["timestamp"]): base64.b64decode(m["media"]["payload"])
        for m in sent
        if m["event"] == "media" and m["media"]["track"] == track
    }


# -- corpora ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encode", [str, str.encode], ids=["text", "bytes"])
@pytest.mark.parametrize("name", ["golden.jsonl", "reordered.jsonl"])
def test_both_tracks_arrive_whole_and_in_place(name, encode):
    desk = Desk()
    session = new_session(desk)
    assert play(session, map(encode, lines(name)), now=100.0) == []
    [call] = desk.calls
    for track in ("inbound", "outbound"):
        sent = sent_payload(name, track)
        assert call.legs[track].timeline() == b"".join(sent[timestamp] for timestamp in sorted(sent))
        assert call.legs[track].anchored_s == 100.0
    assert call.ends == ["hangup"]
    assert (session.counters.started, session.counters.media, session.counters.stopped) == (1, 24, 1)
    assert session.counters.malformed == session.counters.unknown == session.counters.unexpected == 0


def test_start_says_who_calls_whom():
    desk = Desk()
    play(new_session(desk), lines("golden.jsonl"))
    arguments = desk.calls[0].arguments
    assert arguments["source"] == "twilio"
    assert arguments["external_id"] == "CA41d7ca1be5ed0b3c8cbcc9e7c2c3f7d2"
    assert arguments["account"] == "AC6a1dbd4bd7e8f5f3f4b0b1a2c3d4e5f6"
    assert (arguments["from_"], arguments["to"], arguments["direction"]) == ("+14155550100", "+14155550199", "inbound")
    assert arguments["custom"] == {"language": "en", "order": "A-17 & <more>"}
    assert arguments["overrides"] == {"language": "en"}
    assert [(leg.leg, leg.codec.name, leg.transport) for leg in arguments["legs"]] == [
        ("inbound", "PCMU", "stream"),
        ("outbound", "PCMU", "stream"),
    ]


def test_role_and_name_parameters_override_the_routes():
    desk = Desk()
    parameters = {"role.inbound": "customer", "name.outbound": "Ann", "profile": "bot", "mw_direction": "outbound-api"}
    play(new_session(desk), [start(customParameters=parameters)])
    assert desk.calls[0].arguments["direction"] == "outbound"
    assert desk.calls[0].arguments["overrides"] == {
        "role.inbound": "customer",
        "name.outbound": "Ann",
        "profile": "bot",
    }


def test_missing_chunks_leave_a_hole_of_their_length():
    desk = Desk()
    session = new_session(desk)
    play(session, lines("missing.jsonl"))
    [call] = desk.calls
    for track in ("inbound", "outbound"):
        sent = sent_payload("missing.jsonl", track)
        expected = b"".join(sent.get(timestamp, b"\xff" * 160) for timestamp in range(0, 240, 20))
        assert call.legs[track].timeline() == expected
    assert call.ends == []
    session.connection_lost(1.0)
    assert call.ends == ["disconnected"]


def test_connect_gives_digits_and_swallows_marks():
    desk = Desk()
    session = new_session(desk)
    assert play(session, lines("connect.jsonl")) == []
    assert desk.calls[0].digits == [("inbound", "5", 0), ("inbound", "#", 0)]
    assert session.counters.marks == 1
    assert session.player is not None


@pytest.mark.parametrize("case", cases("malformed.jsonl"))
def test_a_malformed_message_is_counted_and_the_call_goes_on(case):
    problems = []
    desk = Desk()
    session = new_session(desk, problems=problems)
    assert play(session, [start(tracks=["inbound"]), media(0), case["text"], media(20)]) == []
    assert session.counters.malformed == 1
    assert [what for what, _ in problems] == ["malformed Twilio message"]
    assert [position for position, _, _ in desk.calls[0].legs["inbound"].chunks] == [0, 160]
    assert desk.calls[0].ends == []


@pytest.mark.parametrize("case", cases("hostile.jsonl"))
def test_hostile_streams(case):
    desk = Desk()
    session = new_session(desk)
    outputs = play(session, case["messages"])
    assert [output.code for output in outputs] == ([case["close"]] if case["close"] else [])
    assert (session.state is SessionState.CLOSED) == bool(case["close"])
    for output in outputs:
        assert output.reason and len(output.reason.encode()) <= 123
    for name, count in case["count"].items():
        assert getattr(session.counters, name) == count, name
    if case["media"] is not None:
        assert sum(len(leg.chunks) for call in desk.calls for leg in call.legs.values()) == case["media"]
    if case["close"]:
        assert sum(session.counters.refused.values()) == 1
        assert desk.calls == []
    session.connection_lost(1.0)
    assert all(len(call.ends) == 1 for call in desk.calls)


@pytest.mark.parametrize(
    "text",
    [b'{"event":"mark","streamSid":"\xff"}', "\ud800", '{"event":"mark","x":' + "[" * 50_000 + "]" * 50_000 + "}"],
    ids=["not UTF-8", "lone surrogate", "deep nesting"],
)
def test_what_a_json_parser_chokes_on_is_malformed(text):
    session, call = started()
    assert play(session, [text, media(0)]) == []
    assert session.counters.malformed == 1
    assert len(call.legs["inbound"].chunks) == 1


# -- the state machine ------------------------------------------------------------------------------------------------


def test_the_table_is_complete():
    kinds = get_args(messages.FromTwilio)
    open_states = set(SessionState) - {SessionState.CLOSED}
    assert set(TwilioSession.table) == {(state, kind) for state in open_states for kind in kinds}


def test_without_a_start_the_stream_is_closed_in_time():
    session = new_session(now=10.0)
    assert session.deadline == 15.0
    play(session, ['{"event":"connected"}', '{"event":"news"}'], now=14.0)
    assert expire(session, 14.9) == []
    [close] = expire(session, 15.0)
    assert close.code == 1008
    assert session.counters.refused == {"start_timeout": 1}
    assert session.deadline is None
    assert expire(session, 16.0) == [close]


def test_a_silent_peer_ends_the_call_and_a_talking_one_does_not():
    session, call = started(now=0.0)
    for second in range(0, 200, 20):
        play(session, [media(second * 1000)], now=float(second))
        assert expire(session, second + 1.0) == []
    assert call.ends == []
    assert session.deadline == 180 + SILENT_S
    [close] = expire(session, 180 + SILENT_S)
    assert close.code == 1001
    assert call.ends == ["media_timeout"]
    session.connection_lost(300.0)
    assert call.ends == ["media_timeout"]


@pytest.mark.parametrize(
    "message",
    [
        {"event": "dtmf", "streamSid": SID, "dtmf": {"track": "inbound_track", "digit": "5"}},
        {"event": "mark", "streamSid": SID, "mark": {"name": "end"}},
    ],
)
def test_whatever_the_peer_sends_shows_that_it_is_there(message):
    session, _ = started(mode="connect", tracks=("inbound",))
    play(session, [json.dumps({"sequenceNumber": "2", **message})], now=50.0)
    assert session.deadline == 50.0 + SILENT_S


def test_after_stop_the_peer_closes_first():
    session, call = started()
    assert play(session, [STOP], now=3.0) == []
    assert session.deadline == 3.0 + LINGER_S
    assert expire(session, 3.0 + LINGER_S) == [CloseConnection(1000)]
    assert call.ends == ["hangup"]


def test_a_socket_that_drops_after_stop_is_no_disconnection():
    session, call = started()
    play(session, [STOP])
    session.connection_lost(1.0)
    session.connection_lost(2.0)
    assert call.ends == ["hangup"]
    assert session.counters.disconnected == 0


def test_a_call_ended_by_the_worker_takes_nothing_more():
    session, call = started()
    play(session, [media(0)])
    call.hangup()
    closed = [CloseConnection(1000, "call ended by the worker")]
    assert session.closes == closed
    assert play(session, [media(20), STOP]) == closed
    session.connection_lost(1.0)
    assert len(call.legs["inbound"].chunks) == 1
    assert call.ends == ["api"]


def test_the_legs_of_an_ended_call_are_left_alone():
    session, call = started()
    call.end("shutdown")
    digit = json.dumps({"event": "dtmf", "streamSid": SID, "dtmf": {"digit": "1"}})
    assert play(session, [media(0), digit]) == []
    assert call.legs["inbound"].chunks == []
    assert call.digits == []


def test_a_flood_of_digits_is_cut_and_ordinary_dialling_is_not():
    session, call = started()
    digit = json.dumps({"event": "dtmf", "streamSid": SID, "dtmf": {"digit": "1", "track": "inbound_track"}})
    for _ in range(1000):
        session.receive(digit, 1.0)
    assert len(call.digits) == 40 and session.counters.implausible == 960
    for index in range(100):
        session.receive(digit, 4.0 + index / 10)
    assert len(call.digits) == 140


@pytest.mark.parametrize(("status", "code"), [(503, 1013), (486, 1013), (403, 1008)])
def test_a_full_worker_refuses_the_stream(status, code):
    session = new_session(Desk(CallRefused(status, "all calls are taken")))
    assert play(session, [start(), media(0)]) == [CloseConnection(code, "all calls are taken")]
    assert session.counters.refused == {"capacity": 1}
    assert session.counters.media == 0


# -- token ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trusted", "token", "taken"),
    [(True, None, True), (True, "right", True), (True, "wrong", False), (False, None, False), (False, "right", True)],
)
def test_a_presented_token_must_be_right_and_a_missing_one_needs_a_trusted_upgrade(trusted, token, taken):
    desk = Desk()
    session = new_session(desk, trusted=trusted, tokens={("right", "CA1")})
    outputs = play(session, [start(customParameters={"mw_token": token} if token else {})])
    assert [output.code for output in outputs] == ([] if taken else [1008])
    assert len(desk.calls) == taken


def test_the_token_is_not_shown_to_users():
    desk = Desk()
    play(new_session(desk, tokens={("right", "CA1")}), [start(customParameters={"mw_token": "right", "a": "b"})])
    assert desk.calls[0].arguments["custom"] == {"a": "b"}


# -- time and back-pressure -------------------------------------------------------------------------------------------


def test_a_jump_that_the_clock_explains_is_taken():
    session, call = started(now=0.0)
    assert play(session, [media(600_000)], now=601.0) == []
    assert call.legs["inbound"].chunks[0][0] == 600_000 * 8


def test_a_fast_client_may_run_ahead_of_the_clock():
    session, call = started(now=0.0)
    play(session, [media(ms) for ms in range(0, 60_000, 20)], now=0.1)
    assert session.counters.implausible == 0
    assert len(call.legs["inbound"].timeline()) == 480_000


def test_ahead_is_the_furthest_leg():
    session, call = started()
    inbound, outbound = call.legs["inbound"], call.legs["outbound"]
    inbound.consumed = outbound.consumed = 0
    play(session, [media(4980), media(40), media(480, track="outbound")])
    assert not session.is_ahead()
    play(session, [media(5000), media(60)])
    assert session.is_ahead()
    inbound.consumed = 159
    assert session.is_ahead()
    inbound.consumed = 160
    assert not session.is_ahead()
    play(session, [media(5000, track="outbound")])
    assert session.is_ahead()
    outbound.consumed = 8000
    assert not session.is_ahead()


def test_a_call_that_has_ended_is_not_ahead():
    session, call = started()
    call.legs["inbound"].consumed = 0
    play(session, [media(4000), media(6000)])
    assert session.is_ahead()
    call.end("shutdown")
    assert not session.is_ahead()


# -- with the legs of the detector ------------------------------------------------------------------------------------


class DetectedCall(RecordedCall):
    """A recorded call whose legs are rows of a real detector."""

    def __init__(self, arguments, detector):
        super().__init__(arguments)
        self.legs = {
            spec.leg: detector.open(spec.codec, Endpointing(), transport=spec.transport, stall_s=spec.stall_s)
            for spec in arguments["legs"]
        }


def detected(texts, *, detector, step_s=0.01, stalls=None, after_s=STALL_S + 5):
    """The call after these messages and the silence behind them, with a VAD step every 32 ms.

    `stalls`: index of a message → how many seconds it and those behind it are late; they catch up at once.
    """
    calls, late_until = [], 0.0

    def open_call(**arguments):
        calls.append(DetectedCall(arguments, detector))
        return calls[-1]

    session = new_session(SimpleNamespace(open=open_call), now=50.0)
    now = next_step_s = 50.0
    for index, text in enumerate(texts):
        due = 50.0 + index * step_s
        late_until = max(late_until, due + (stalls or {}).get(index, 0))
        now = max(due, late_until)
        while next_step_s < now:
            for _ in detector.step(next_step_s):
                pass
            next_step_s += 0.032
        while session.is_ahead():
            assert any(detector.step(now)) or not session.is_ahead(), "the shell stops reading only while there is work"
        session.receive(text, now)
        now += step_s
        while next_step_s <= now:
            for _ in detector.step(next_step_s):
                pass
            next_step_s += 0.032
    while next_step_s < now + after_s:
        for _ in detector.step(next_step_s):
            pass
        next_step_s += 0.032
    return calls[0]


def close_all(call, detector):
    for leg in call.legs.values():
        detector.close(leg)
    assert detector.legs == 0


@pytest.mark.parametrize("name", ["golden.jsonl", "reordered.jsonl"])
def test_the_ring_holds_what_was_sent_whatever_its_order(name):
    detector = Detector()
    call = detected([text for text in lines(name) if '"stop"' not in text], detector=detector)
    for track, leg in call.legs.items():
        sent = sent_payload(name, track)
        assert leg.read(0, 12 * 160) == b"".join(sent[timestamp] for timestamp in sorted(sent))
        assert leg.lost(0, 12 * 160) == 0
        assert (leg.origin_s, leg.position > 12 * 160) == (50.01, True)
    close_all(call, detector)


def test_a_missing_chunk_is_silence_of_its_length_and_counted():
    detector = Detector()
    call = detected(lines("missing.jsonl"), detector=detector)
    inbound, outbound = call.legs["inbound"], call.legs["outbound"]
    sent = sent_payload("missing.jsonl", "inbound")
    expected = b"".join(sent.get(timestamp, b"\xff" * 160) for timestamp in range(0, 240, 20))
    assert inbound.read(0, 12 * 160) == expected
    assert inbound.lost(0, 12 * 160) == 3 * 160
    sent = sent_payload("missing.jsonl", "outbound")
    assert outbound.read(5 * 160, 12 * 160) == b"".join(sent[timestamp] for timestamp in sorted(sent))
    assert outbound.lost(0, 12 * 160) == 0, "it began later; nothing was lost"
    close_all(call, detector)


def both_tracks(chunks):
    """A stream of 20 ms chunks, in pairs, and the audio of its legs."""
    random = Random(3)
    sent = {track: [bytes(random.choices(range(0x70), k=160)) for _ in range(chunks)] for track in TRACKS}
    texts = [media(20 * number, sent[track][number], track) for number in range(chunks) for track in TRACKS]
    return [start(), *texts], {track: b"".join(parts) for track, parts in sent.items()}


TRACKS = ("inbound", "outbound")


@pytest.mark.parametrize("stalls", [{80: 2.5}, {80: 8.0}, {81: 14.0}, {40: 3.0, 90: 6.0, 91: 12.0}], ids=str)
def test_what_a_stalled_connection_brings_late_is_not_lost(stalls):
    """TCP sends again what the network lost: seconds later, and then all at once."""
    detector = Detector()
    texts, sent = both_tracks(400)
    call = detected(texts, detector=detector, stalls=stalls)
    for track, leg in call.legs.items():
        assert (leg.late, leg.lost(0, leg.position)) == (0, 0)
        assert leg.read(0, 400 * 160) == sent[track]
    close_all(call, detector)


def test_what_comes_after_the_longest_stall_is_told_as_lost():
    detector = Detector()
    texts, sent = both_tracks(300)
    call = detected(texts, detector=detector, stalls={80: 17.0})
    inbound = call.legs["inbound"]
    assert inbound.late > 0 and inbound.overdue() == inbound.late * 160 and inbound.overdue() == 0
    close_all(call, detector)


@pytest.mark.parametrize("silent", TRACKS)
def test_a_track_of_which_nothing_is_sent_while_the_other_goes_on_is_silent(silent):
    """Two seconds later, although a connection that stalls is waited for longer; and it is placed right when it is
    sent again."""
    detector = Detector()
    texts, sent = both_tracks(400)
    gone = {text for text in texts[101:601] if f'"{silent}"' in text}
    kept = [text for text in texts if text not in gone]
    call = detected(kept[:401], detector=detector, step_s=0.02, after_s=0.0)
    leg, other = (call.legs[track] for track in (silent, TRACKS[silent == "inbound"]))
    assert other.position - leg.position <= ABSENT + 3 * 256 < other.position
    close_all(call, detector)
    call = detected(kept, detector=detector, step_s=0.013)
    leg = call.legs[silent]
    assert leg.read(0, 50 * 160) == sent[silent][: 50 * 160]
    assert leg.read(50 * 160, 300 * 160) == b"\xff" * 250 * 160
    assert leg.read(300 * 160, 400 * 160) == sent[silent][300 * 160 :]
    assert leg.lost(50 * 160, 300 * 160 - ABSENT) == 0, "what was passed over was never sent"
    close_all(call, detector)


def test_what_is_wrong_never_shifts_the_timeline():
    wrong = [json.loads(line)["text"] for line in lines("malformed.jsonl")]
    good = [text for text in lines("golden.jsonl") if '"stop"' not in text]
    mixed = good[:2] + [text for index, message in enumerate(good[2:]) for text in (wrong[index], message)]
    detector = Detector()
    call = detected(mixed, detector=detector, step_s=0.005)
    sent = sent_payload("golden.jsonl", "inbound")
    assert call.legs["inbound"].read(0, 12 * 160) == b"".join(sent[timestamp] for timestamp in sorted(sent))
    close_all(call, detector)


# -- sending ----------------------------------------------------------------------------------------------------------


def said(session):
    """What waits for Twilio."""
    outputs = []
    while (output := session.outbox.next()) is not None:
        outputs.append(json.loads(output))
    return outputs


@pytest.mark.parametrize("mode", ["start", "", "both"])
def test_nothing_is_ever_sent_on_a_start_stream(mode):
    session, _ = started(mode=mode, tracks=("inbound",))
    assert session.player is session.call.player is None


def test_two_tracks_are_never_a_connect_stream():
    session, _ = started(mode="connect", tracks=("inbound", "outbound"))
    assert session.call.player is None


def test_a_connect_stream_is_played_to_in_pieces_with_a_mark_behind_them():
    session, _ = started(mode="connect", tracks=("inbound",))
    codes = bytes(number % 256 for number in range(7000))
    assert session.call.player is session.player and session.player.play(codes)
    *pieces, mark = said(session)
    assert {(piece["event"], piece["streamSid"]) for piece in pieces} == {("media", SID)}
    assert b"".join(base64.b64decode(piece["media"]["payload"]) for piece in pieces) == codes
    assert mark == {"event": "mark", "streamSid": SID, "mark": {"name": "play 1"}}
    session.player.clear()
    assert said(session) == [{"event": "clear", "streamSid": SID}]
    call = session.call
    play(session, [STOP])
    session.player.clear()
    session.player.play(b"\xff")
    assert said(session) == [] and call.player is None and session.counters.withheld == 3


def mark(session, number):
    play(session, [json.dumps({"event": "mark", "streamSid": SID, "mark": {"name": f"play {number}"}})])


def told(call):
    """(type, mark, position) of the call's events since the last look, with the call time of each."""
    found = [
        (at_ms, type_of(body).removeprefix("playback."), getattr(body, "mark", None), body.position_ms)
        for at_ms, body in call.published
    ]
    assert all(body.leg == "inbound" for _, body in call.published)
    call.published.clear()
    return found


def test_what_is_played_is_told_from_its_beginning_to_its_end():
    session, call = started(mode="connect", tracks=("inbound",))
    session.player.play(bytes(8000), "hello")
    assert told(call) == [(0, "started", "hello", 0)]
    call.now_ms = 700
    session.player.play(bytes(4000), "and more")
    assert told(call) == [] and session.player.playing, "it is one playback"
    said(session)
    call.now_ms = 1050
    mark(session, 1)
    assert told(call) == [(1050, "marked", "hello", 1000)]
    assert session.player.left_s == 0.5
    call.now_ms = 1550
    mark(session, 2)
    assert told(call) == [(1550, "marked", "and more", 1500), (1550, "ended", None, 1500)]
    assert not session.player.playing and session.player.left_s == 0
    session.player.play(bytes(8))
    mark_name = told(call)[0][2]
    said(session)
    mark(session, 3)
    assert [each[1:] for each in told(call)] == [("marked", mark_name, 1), ("ended", None, 1)]


def test_what_is_cleared_is_told_with_how_far_it_was_played():
    session, call = started(mode="connect", tracks=("inbound",))
    session.player.play(bytes(8000), "a")
    session.player.play(bytes(8000), "b")
    said(session)
    call.now_ms = 1000
    mark(session, 1)
    call.now_ms = 1300
    told(call)
    session.player.clear()
    assert told(call) == [(1300, "cleared", None, 1300), (1300, "ended", None, 1300)]
    said(session)
    mark(session, 2)
    assert told(call) == [], "Twilio returns the marks of what it has dropped"
    session.player.clear()
    assert told(call) == [], "nothing was there to be cleared"
    said(session)
    session.player.play(bytes(800), "c")
    call.now_ms = 9000
    session.player.clear()
    assert told(call)[1:] == [(9000, "cleared", None, 100), (9000, "ended", None, 100)], "no more than there was"


def test_marks_that_are_not_ours_are_nobodys_events():
    session, call = started(mode="connect", tracks=("inbound",))
    session.player.play(bytes(8000), "a")
    said(session)
    told(call)
    play(session, [json.dumps({"event": "mark", "streamSid": SID, "mark": {"name": name}}) for name in ("a", "", "x")])
    mark(session, 1)
    mark(session, 1)
    assert [each[1] for each in told(call)] == ["marked", "ended"]


@given(st.lists(st.tuples(st.sampled_from("pmcw"), st.integers(1, 3000)), max_size=40))
def test_every_playback_has_one_beginning_and_one_end(story):
    session, call = started(mode="connect", tracks=("inbound",))
    names = []
    for what, size in story:
        if what == "p" and session.player.play(bytes(size), str(size)):
            names.append(session.player._sounds)
        elif what == "m" and names:
            said(session)
            mark(session, names.pop(0))
        elif what == "c":
            session.player.clear()
            names.clear()
        elif what == "w":
            call.now_ms += size
        said(session)
    kinds = "".join({"started": "s", "marked": "m", "cleared": "c", "ended": "e"}[kind] for _, kind, _, _ in told(call))
    assert re.fullmatch(r"(sm*c?e)*(sm*)?", kinds)
    assert kinds.endswith(("e", "")) or session.player.playing


def test_no_more_is_taken_than_can_be_played_in_minutes():
    session, _ = started(mode="connect", tracks=("inbound",))
    minute = bytes(60 * 8000)
    names = []
    while session.player.play(minute):
        names += [each["mark"]["name"] for each in said(session) if each["event"] == "mark"]
    assert len(names) == 6
    for _ in range(300):
        session.player.play(b"\xff")
    assert len(said(session)) == 0, "nor many short ones"
    for name in names[:2]:
        play(session, [json.dumps({"event": "mark", "streamSid": SID, "mark": {"name": name}})])
    assert session.player.play(minute) and not session.outbox.overrun


# -- several streams of one call --------------------------------------------------------------------------------------


def shared_desk():
    """A desk, and what opens a stream there: (streamSid, tracks, now, parameters)."""
    desk = Desk()
    calls = TwilioCalls(desk)

    def opened(sid, tracks, now=0.0, **body):
        session = TwilioSession(Settings(), calls, now, check_token=lambda *_: True)
        session.closes = []
        session.outbox.listen(lambda: None, session.closes.append)
        play(session, [start(sid=sid, tracks=list(tracks), **body)], now=now)
        return session

    return desk, calls, opened


def stop(sid):
    return STOP.replace(SID, sid)


@pytest.mark.parametrize("first", ["inbound", "outbound"])
def test_a_stream_for_each_track_is_a_leg_of_one_call(first):
    desk, calls, opened = shared_desk()
    second = "outbound" if first == "inbound" else "inbound"
    one = opened("MZ1", [first], 10.0)
    two = opened("MZ2", [second], 12.0, customParameters={f"name.{second}": "Bea", f"role.{second}": "unknown"})
    [call] = desk.calls
    assert one.call is two.call is call and [spec.leg for spec in call.specs] == [first, second]
    assert (call.specs[1].name, call.specs[1].role) == ("Bea", "unknown")
    assert (two.counters.joined, call.legs[first].anchored_s, call.legs[second].anchored_s) == (1, 10.0, 12.0)
    play(one, [media(0, b"\1" * 160, first, "MZ1"), media(20, b"\2" * 160, first, "MZ1")], now=12.1)
    play(two, [media(0, b"\3" * 160, second, "MZ2")], now=12.1)
    assert call.legs[first].timeline() == b"\1" * 160 + b"\2" * 160 and call.legs[second].timeline() == b"\3" * 160
    play(one, [stop("MZ1")], now=13.0)
    assert call.ends == [] and call.flushed == [first], "the other stream goes on"
    two.connection_lost(14.0)
    assert call.ends == ["disconnected"] and len(calls) == 0
    opened("MZ3", ["inbound"], 20.0)
    assert len(desk.calls) == 2, "a call that has ended takes no stream"


def test_other_calls_and_accounts_share_nothing():
    desk, _, opened = shared_desk()
    for sid, body in (("MZ1", {}), ("MZ2", {"callSid": "CA2"}), ("MZ3", {"accountSid": "AC2"})):
        opened(sid, ["inbound"], **body)
    assert len(desk.calls) == 3 and not any(call.ends for call in desk.calls)


def test_a_newer_stream_of_a_track_replaces_the_older_one_with_a_reason():
    desk, calls, opened = shared_desk()
    old = opened("MZ1", ["inbound"], 0.0)
    play(old, [media(0, b"\1" * 160, sid="MZ1")], now=0.02)
    new = opened("MZ2", ["inbound"], 2.0)
    [close] = old.closes
    assert close.code == 1008 and "another stream of this call" in close.reason and old.counters.replaced == 1
    play(new, [media(0, b"\2" * 160, sid="MZ2")], now=2.02)
    [call] = desk.calls
    assert [position for position, _, _ in call.legs["inbound"].chunks] == [0, 16000], "its clock has begun later"
    old.receive(stop("MZ1"), 2.1)
    old.connection_lost(2.2)
    assert call.ends == [] and len(calls) == 1
    play(new, [stop("MZ2")], now=3.0)
    assert call.ends == ["hangup"]


def test_only_the_track_that_the_newer_stream_carries_is_replaced():
    desk, _, opened = shared_desk()
    old = opened("MZ1", ["inbound", "outbound"])
    opened("MZ2", ["inbound"], 1.0)
    assert old.closes == []
    play(old, [media(1000, b"\1" * 160, "outbound", "MZ1"), media(1000, b"\1" * 160, "inbound", "MZ1")], now=1.1)
    [call] = desk.calls
    assert len(call.legs["outbound"].chunks) == 1 and not call.legs["inbound"].chunks
    assert old.counters.wrong_track == 1
    old.connection_lost(2.0)
    assert call.flushed == ["outbound"] and call.ends == []


def test_the_newer_connect_stream_is_the_one_that_is_played_to():
    _, _, opened = shared_desk()
    connect = {"customParameters": {"mw_mode": "connect"}}
    old = opened("MZ1", ["inbound"], **connect)
    new = opened("MZ2", ["inbound"], 1.0, **connect)
    assert new.call.player is new.player is not old.player
    old.connection_lost(1.5)
    assert new.call.player is new.player, "what is left of the older one takes nothing away"


def test_a_hangup_closes_every_stream_once():
    desk, calls, opened = shared_desk()
    sessions = [opened("MZ1", ["inbound"]), opened("MZ2", ["outbound"])]
    desk.calls[0].hangup()
    assert [[close.code for close in session.closes] for session in sessions] == [[1000], [1000]]
    for session in sessions:
        session.connection_lost(1.0)
    assert desk.calls[0].ends == ["api"] and len(calls) == 0


STREAMS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["open", "media", "stop", "lost", "hangup"]),
        st.sampled_from([("inbound",), ("outbound",), ("inbound", "outbound")]),
    ),
    max_size=30,
)


@given(STREAMS)
def test_whatever_streams_come_and_go_each_call_ends_once_and_each_track_has_one_stream(story):
    desk, calls, opened = shared_desk()
    sessions, now = {}, 0.0
    for number, what, tracks in story:
        now += 0.5
        sid = f"MZ{number}"
        if what == "open":
            if number in sessions:
                sessions.pop(number).connection_lost(now)
            sessions[number] = opened(sid, tracks, now)
        elif number in sessions:
            session = sessions[number]
            if what == "media":
                session.receive(media(0, track=tracks[0], sid=sid), now)
            elif what == "stop":
                session.receive(stop(sid), now)
            elif what == "lost":
                sessions.pop(number).connection_lost(now)
            elif not session.call.ending:
                session.call.hangup()
        streaming = [each for each in sessions.values() if each.state is SessionState.STREAMING]
        held = [(id(each.call), track) for each in streaming for track in each._tracks]
        assert len(held) == len(set(held))
        assert len(calls) == len({id(each.call) for each in streaming}) <= 1
    for session in sessions.values():
        session.connection_lost(now)
    assert all(len(call.ends) == 1 for call in desk.calls) and len(calls) == 0


# -- anything at all --------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
events = st.sampled_from(sorted(messages.EVENTS) + ["error", ""])
numbers = st.integers(-10, 2**70).map(str) | st.integers() | json_values
parameters = st.sampled_from(["mw_mode", "mw_token", "mw_from", "a"])
sids = st.sampled_from([SID, SID, SID, "MZother", ""])
near_misses = st.fixed_dictionaries(
    {"event": events | json_values},
    optional={
        "streamSid": sids | json_values,
        "start": st.fixed_dictionaries(
            {"callSid": st.just("CA1") | json_values},
            optional={
                "tracks": st.lists(st.sampled_from(["inbound", "outbound", "x"]), max_size=3) | json_values,
                "customParameters": st.dictionaries(parameters, st.text(max_size=8) | json_values, max_size=3),
            },
        )
        | json_values,
        "media": st.fixed_dictionaries(
            {
                "track": st.sampled_from(["inbound", "outbound", "x"]) | json_values,
                "timestamp": numbers,
                "payload": st.binary(max_size=400).map(lambda b: base64.b64encode(b).decode()) | json_values,
            }
        )
        | json_values,
        "dtmf": st.fixed_dictionaries({"digit": st.text(max_size=2), "track": st.text(max_size=8)}) | json_values,
        "mark": json_values,
        "stop": json_values,
    },
)
wire = near_misses.map(json.dumps) | st.just(start()) | st.just(media()) | st.text(max_size=40) | st.binary(max_size=40)


@given(st.lists(wire, max_size=12), st.floats(0, 0.5), st.booleans())
def test_nothing_a_peer_sends_raises_and_every_call_ends_once(texts, step_s, expires):
    desk = Desk()
    session = new_session(desk)
    play(session, texts, step_s=step_s)
    now = len(texts) * step_s
    if expires and session.deadline is not None:
        expire(session, max(now, session.deadline))
    session.connection_lost(now + 100)
    assert session.outbox.next() is None
    assert len(session.closes) <= 1
    assert len(desk.calls) <= 1
    assert all(len(call.ends) == 1 for call in desk.calls)
    assert session.state is SessionState.CLOSED
    counters = session.counters
    assert counters.messages >= counters.malformed + counters.unknown + counters.media
    assert counters.media == sum(len(leg.chunks) for call in desk.calls for leg in call.legs.values())


@given(st.permutations(range(14)), st.sets(st.integers(0, 13), max_size=6))
def test_any_order_gives_the_same_timeline(order, lost):
    session, call = started(tracks=("inbound",))
    play(session, [media(20 * index, bytes([index]) * 160) for index in order if index not in lost])
    length = max((index + 1 for index in range(14) if index not in lost), default=0)
    expected = b"".join((b"\xff" if index in lost else bytes([index])) * 160 for index in range(length))
    assert call.legs["inbound"].timeline() == expected


@given(st.text(), st.binary())
def test_what_is_sent_is_what_twilio_reads(name, payload):
    mark = json.loads(messages.written("mark", "MZ1", mark={"name": name}))
    assert mark == {"event": "mark", "streamSid": "MZ1", "mark": {"name": name}}
    media = json.loads(messages.written("media", "MZ1", media={"payload": payload}))
    assert media["event"] == "media" and base64.b64decode(media["media"]["payload"]) == payload
    assert json.loads(messages.written("clear", "MZ1")) == {"event": "clear", "streamSid": "MZ1"}


@pytest.mark.parametrize("text", [media(sid="MZ0"), STOP.replace(SID, "MZ0")], ids=["media", "stop"])
def test_a_message_of_another_stream_is_a_problem_and_nothing_else(text):
    problems, desk = [], Desk()
    session = new_session(desk, problems=problems)
    assert play(session, [start(), text, media(0)]) == []
    assert session.counters.wrong_stream == 1 and session.counters.media == 1
    assert [what for what, _ in problems] == ["Twilio message of another stream"]
    assert problems[0][1] == json.loads(text)["event"] and desk.calls[0].ends == []


def test_what_is_no_use_is_a_problem_that_says_what_it_was():
    problems, desk = [], Desk()
    session = new_session(desk, problems=problems)
    play(session, [start(tracks=["inbound"]), start(), media(track="outbound"), media(10_000_000)])
    assert [what for what, _ in problems] == [
        "unexpected Twilio message",
        "Twilio media of a track that was not announced",
        "Twilio media with an implausible timestamp",
    ]
    assert [detail for _, detail in problems] == ["start", "outbound", "10000000"]
    assert (session.counters.unexpected, session.counters.wrong_track, session.counters.implausible) == (1, 1, 1)


def test_an_event_that_is_not_known_is_named_in_64_letters() -> None:
    with pytest.raises(UnknownMessage) as unknown:
        messages.parse('{"event": "' + "x" * 100 + '"}')
    assert str(unknown.value) == "x" * 64
