"""The base of media sessions by the smallest dialect: its states, its deadlines, and every way a call ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec
from lab.calls.stream_desks import Desk, StreamCall
from mediaworker.calls.call_leg import LegSpec
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.audio_intake import AudioForm
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.errors import MalformedMessage, UnknownMessage
from mediaworker.ingress.outbox import GOING_AWAY, LINGER_S, NORMAL, POLICY, TRY_LATER, CloseConnection
from mediaworker.ingress.session import TRANSITIONS, Session, SessionChange, SessionState

START_S = 5.0
WAITING, STREAMING, FINISHING, CLOSED = SessionState


class Start(str): ...


class Digit(str): ...


class End(str): ...


class Smallest(Session[IngressCounters]):
    """`start` opens a call, a digit is a digit, `end` is the end, and bytes are audio."""

    naming = "{} of the smallest"

    def __init__(self, desk: Desk, now: float, **hooks: Any) -> None:
        super().__init__(now, START_S, **hooks)
        self._desk = desk

    def read(self, message: str | bytes) -> object:
        if isinstance(message, bytes):
            return message
        if not message:
            raise MalformedMessage("nothing")
        if message not in ("start", "end") and len(message) > 1:
            raise UnknownMessage(message)
        return {"start": Start, "end": End}.get(message, Digit)(message)

    def _start(self, start: Start) -> None:
        spec = LegSpec(leg="main", codec=Codec.L16, transport="stream")
        call = self.try_open(lambda: self._desk.open(source="smallest", legs=[spec], external_id="1"))
        if call is not None:
            call.on_hangup = self.hang_up
            self.begin(call, ("main",), AudioForm("pcm_s16le", 16000))

    def _digit(self, digit: Digit) -> None:
        self._receive_digit("main", str(digit))

    def _finish(self, end: End) -> None:
        self._finish_audio()
        self._end("hangup")
        self._change(SessionChange.FINISH)
        self._set_deadline(1.0)

    def receive_audio(self, data: bytes) -> None:
        self._active_s = self._now
        super().receive_audio(data)

    table = {
        (WAITING, Start): _start,
        (STREAMING, bytes): receive_audio,
        (STREAMING, Digit): _digit,
        (STREAMING, End): _finish,
    }


def session(desk: Desk | None = None, **hooks: Any) -> Smallest:
    return Smallest(desk if desk is not None else Desk(), 0.0, **hooks)


def begun(**hooks: Any) -> tuple[Smallest, StreamCall]:
    desk = Desk()
    made = session(desk, **hooks)
    made.receive("start", 1.0)
    assert made.state is STREAMING and made.call_id == desk.calls[0].id
    return made, desk.calls[0]


def outputs(of: Smallest) -> list[Any]:
    found = []
    while (output := of.outbox.next()) is not None:
        found.append((output.code, output.reason) if isinstance(output, CloseConnection) else output)
    return found


def test_every_state_can_be_left_by_a_close_and_none_but_the_first_by_a_call() -> None:
    assert {state for state, change in TRANSITIONS if change is SessionChange.CLOSE} == set(SessionState)
    assert [state for state, change in TRANSITIONS if change is SessionChange.OPEN] == [WAITING]
    assert all(after is CLOSED for (state, _), after in TRANSITIONS.items() if state is CLOSED), "it stays closed"
    with pytest.raises(AssertionError, match="FINISH in WAITING"):
        session()._change(SessionChange.FINISH)


def test_a_peer_that_does_not_begin_is_refused() -> None:
    problems: list[tuple[str, str]] = []
    made = session(on_problem=lambda what, detail: problems.append((what, detail)))
    made.expire(4.9)
    assert made.deadline == START_S and made.state is WAITING
    made.expire(5.0)
    assert outputs(made) == [(POLICY, "no start message within 5 s")] and made.counters.refused == {"start_timeout": 1}
    assert problems == [("stream of the smallest refused", "no start message within 5 s")]
    assert made.deadline == 5.0 + LINGER_S
    aborts: list[CloseConnection] = []
    made.outbox.listen(lambda: None, aborts.append)
    made.expire(5.0 + LINGER_S)
    assert len(aborts) == 1, "it does not read the close"


@pytest.mark.parametrize(("status", "code"), [(403, POLICY), (429, TRY_LATER), (503, TRY_LATER)])
def test_a_refused_call_closes_by_its_status(status: int, code: int) -> None:
    made = session(Desk(CallRefused(status, "not now")))
    made.receive("start", 1.0)
    assert outputs(made) == [(code, "not now")] and made.closed and made.counters.refused == {"capacity": 1}


def test_what_is_wrong_is_counted_and_the_call_goes_on() -> None:
    problems: list[tuple[str, str]] = []
    made, call = begun(on_problem=lambda what, detail: problems.append((what, detail)))
    for message in ("", "what", "start", "x", "5"):
        made.receive(message, 2.0)
    counters = made.counters
    assert (counters.malformed, counters.unknown, counters.unexpected) == (2, 1, 1)
    assert problems == [
        ("malformed message of the smallest", "nothing"),
        ("unknown message of the smallest", "what"),
        ("unexpected message of the smallest", "Start"),
        ("malformed digit of the smallest", "1 characters"),
    ]
    assert [digit for _, digit, _ in call.digits] == ["5"] and made.state is STREAMING


def test_a_silent_peer_is_let_go_and_one_that_is_held_back_is_not() -> None:
    made, call = begun()
    made.receive(bytes(640), 30.0)
    assert made.deadline == 90.0
    call.leg.catch_up()
    made.expire(90.0)
    assert call.ends == ["media_timeout"] and outputs(made) == [(GOING_AWAY, "no message for 60 s")]
    held, call = begun()
    held.receive(bytes(2 * 16000 * 4), 1.0)
    held.expire(61.0)
    assert held.is_ahead() and held.deadline == 121.0 and not call.ends
    forever, call = begun()
    forever.silent_s = 0.0
    forever.expire(1e9)
    assert forever.deadline is None and not call.ends


def test_the_end_of_the_audio_leads_to_finishing_in_which_nothing_is_taken() -> None:
    made, call = begun()
    made.receive("end", 2.0)
    assert made.state is FINISHING and made.deadline == 3.0 and call.ends == ["hangup"]
    made.receive("what", 2.5)
    assert made.counters.unknown == 0, "nobody reads it"
    made.expire(3.0)
    assert outputs(made) == [(NORMAL, "")] and made.closed


def test_the_worker_hangs_up_once() -> None:
    made, call = begun()
    made.receive(bytes(640), 1.0)
    call.hangup()
    assert outputs(made) == [(NORMAL, "call ended by the worker")] and len(call.leg.audio) == 640
    made.hang_up()
    assert outputs(made) == [] and call.ends == ["api"]


def test_a_lost_connection_ends_the_call_once_and_says_so_once() -> None:
    lost: list[int] = []
    made, call = begun(on_lost=lambda: lost.append(1))
    made.connection_lost(2.0)
    made.connection_lost(3.0, broken=True)
    assert call.ends == ["disconnected"] and lost == [1] and made.deadline is None and outputs(made) == []
    early = session()
    early.connection_lost(1.0)
    assert early.counters.refused == {"no_start": 1}


MESSAGES = st.one_of(st.sampled_from(["start", "end", "5", "x", "", "what"]), st.binary(max_size=5000))
STORY = st.lists(st.tuples(st.sampled_from("mmmmehl"), MESSAGES, st.floats(0, 40)), max_size=25)


@given(STORY, st.booleans())
def test_nothing_raises_and_every_call_ends_once(story: list[Any], greeted: bool) -> None:
    desk, now = Desk(), 0.0
    made = session(desk)
    if greeted:
        made.receive("start", 0.0)
    for what, message, wait in story:
        now += wait
        if what == "m":
            made.receive(message, now)
        elif what == "e":
            made.expire(now)
        elif what == "l":
            made.connection_lost(now)
        elif desk.calls and not desk.calls[0].ending:
            desk.calls[0].hangup()
        assert made.closed or made.deadline is not None
        for call in desk.calls:
            call.leg.catch_up()
    made.connection_lost(now)
    assert made.closed and len(desk.calls) <= 1 and all(len(call.ends) == 1 for call in desk.calls)
