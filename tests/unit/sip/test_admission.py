"""What becomes of a SIP request before PJSIP knows of it: statuses, headers, counters, and what is asked of whom."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from config.load import parse
from config.network.access_list import AccessList
from lab.sip.headers import answer
from sip.admission.admission import RETRY_AFTER_S, Admission, FilterVerdict
from sip.admission.request_filter import DROP, PASS, RequestHead
from sip.protocol.errors import NotAcceptable, PeerError

USERS = ({"user": "sbc", "password": "secret"},)
FRIEND, STRANGER = "192.0.2.10", "203.0.113.5"


class Door:
    """An `Admission` and what it has asked."""

    def __init__(
        self, *, in_dialog: int = 481, unasked: Callable[[str], bool] | None = None, **settings: object
    ) -> None:
        self.refusal, self.is_ready, self.now = 0, True, 0.0
        self.refused: list[int] = []
        self.asked: list[str] = []
        self.body_error: PeerError | None = None
        self._in_dialog = in_dialog
        self.on_rejected = self.refused.append
        sip = parse({"sip": {"max_invites_per_s": 5.0, "max_tcp": 64, **settings}}).sip
        self.admission = Admission(AccessList([FRIEND]), sip, self, lambda: self.now, unasked=unasked)

    def ready(self) -> bool:
        return self.is_ready

    def capacity(self) -> int:
        return self.refusal

    def on_connection(self, *request: object) -> None:
        raise AssertionError("nobody calls it here")

    def check_in_dialog(self, request: RequestHead, cseq: int, text: object) -> int:
        self.asked.append(f"{request.method} {cseq}")
        return self._in_dialog

    def check_body(self, request: RequestHead, packet: bytes) -> None:
        self.asked.append(packet.decode().partition("\r\n\r\n")[2])
        if self.body_error is not None:
            raise self.body_error

    def check(
        self,
        method: str = "INVITE",
        source: str = FRIEND,
        *,
        tag: str = "",
        packet: str = "x",
        number: int = 0,
        uri: str = "sip:a@b",
        headers: str = "",
    ) -> FilterVerdict:
        """`packet`: the body."""
        head = RequestHead(method, f"call-{number}", f"z9hG4bK{method}{number}", tag, source)
        return self.admission.check(head, 7, f"{method} {uri} SIP/2.0\r\n{headers}\r\n{packet}".encode)


def test_a_friend_gets_in_when_the_body_can_be_used() -> None:
    door = Door()
    assert door.check(packet="sdp").status == PASS and door.asked == ["sdp"] and door.refused == []
    door.body_error = NotAcceptable("no codec", 305)
    verdict = door.check(number=1)
    assert verdict.status == 488 and verdict.headers == door.body_error.headers and door.refused == [488]
    assert door.check("ACK", tag="t").status == 481, "in a dialog"
    assert door.check("UPDATE", tag="t", number=2).status == 481 and door.asked[-1] == "UPDATE 7"


@pytest.mark.parametrize("uri", ["urn:service:sos", "URN:service:sos.fire", "mailto:a@b", "http://pbx/", "x-y:z", ":"])
def test_a_uri_of_another_scheme_is_refused_counted_and_logged(uri: str) -> None:
    door = Door()
    with capture_logs() as lines:
        assert door.check(uri=uri).status == 416 and door.refused == [416] and not door.asked
        (line,) = lines
        assert (line["event"], line["status"]) == ("SIP request refused", 416)
        assert f"the request URI is {uri.partition(':')[0].lower()}:" in line["reason"]
        assert door.check("OPTIONS", uri=uri, number=1).status == 416 and door.refused == [416]
        assert door.check("INVITE", uri=uri, number=2, tag="t").status == 416 and door.refused == [416]
        assert door.check("ACK", uri=uri, number=3).status == DROP
        assert door.check(uri=uri, source=STRANGER, number=4).status == 403, "a stranger is told nothing of it"
    for number, known in enumerate(("SIP:a@b", "sips:b", "tel:+331234;phone-context=x"), 5):
        assert door.check(uri=known, number=number).status == PASS


def test_nobody_answers_an_ack_with_a_bad_body() -> None:
    door = Door(in_dialog=PASS)
    door.body_error = PeerError("bad")
    assert door.check("ACK", tag="t").status == PASS
    assert door.check("INVITE", tag="t", number=1).status == 400 and door.refused == [], "no call was refused"


def test_a_stranger_is_refused_counted_and_then_not_answered() -> None:
    door = Door()
    assert door.check(source=STRANGER).status == 403 and door.refused == [403]
    assert door.check("OPTIONS", STRANGER, number=1).status == 403
    assert door.refused == [403] and door.admission.counters.refused == 1
    statuses = [door.check(source=STRANGER, number=number).status for number in range(2, 40)]
    assert statuses[-1] == DROP and door.admission.counters.unanswered == statuses.count(DROP)


def test_a_refusal_is_logged_once_a_minute_for_each_source_and_status() -> None:
    door = Door()
    with capture_logs() as lines:
        for number in range(3):
            door.check("OPTIONS", STRANGER, number=number)
        assert [line["event"] for line in lines] == ["SIP request refused"]
        door.check(source="203.0.113.6")
        door.refusal = 503
        door.check(number=3)
        door.refusal = 486
        door.check(number=4)
        assert door.check("OPTIONS", number=5).status == 503, "an answer to a question, and no refusal"
        door.now = 61.0
        door.check(source=STRANGER, number=6)
    said = [(line["peer"], line["method"], line["status"], line["reason"], line["held_back"]) for line in lines]
    unknown, full = "not on the access list (sip.allow)", "full, or too fast"
    assert said == [
        (STRANGER, "OPTIONS", 403, unknown, 0), ("203.0.113.6", "INVITE", 403, unknown, 0),
        (FRIEND, "INVITE", 503, full, 0), (FRIEND, "INVITE", 486, full, 0), (STRANGER, "INVITE", 403, unknown, 2),
    ]  # fmt: skip
    assert door.refused == [403, 503, 486, 403] and door.admission.counters.refused == 3
    with capture_logs() as lines:
        for number, source in enumerate(("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")):
            door.check("OPTIONS", source, number=number)
    assert [line["peer"] for line in lines] == ["2001:db8::1", "2001:db8:0:1::1"], "a network of IPv6 is one source"


def test_a_body_that_cannot_be_used_is_logged_with_its_fault() -> None:
    door = Door()
    door.body_error = NotAcceptable("no codec", 305)
    with capture_logs() as lines:
        door.check()
    assert [(line["peer"], line["status"], line["reason"]) for line in lines] == [(FRIEND, 488, str(door.body_error))]


def test_a_full_worker_says_when_to_come_again() -> None:
    door = Door()
    door.refusal = 503
    verdict = door.check()
    assert (verdict.status, verdict.headers) == (503, (("Retry-After", str(RETRY_AFTER_S)),)) and door.refused == [503]
    door.refusal = 486
    assert door.check(number=1) == FilterVerdict(486)


@pytest.mark.parametrize(
    ("refusal", "ready", "status"), [(0, True, PASS), (486, True, 503), (503, True, 503), (0, False, 503)]
)
def test_options_say_whether_a_call_would_be_taken(refusal: int, ready: bool, status: int) -> None:
    door = Door()
    door.refusal, door.is_ready = refusal, ready
    assert door.check("OPTIONS").status == status
    door.refusal = 0
    assert door.check(number=1).status == PASS, "readiness concerns OPTIONS alone"


@pytest.mark.parametrize(
    ("method", "tag", "status"),
    [("REGISTER", "", 501), ("REGISTER", "t", 501), ("PUBLISH", "", 501), ("SUBSCRIBE", "", 489), ("NOTIFY", "", 481)],
)
def test_what_is_not_served(method: str, tag: str, status: int) -> None:
    door = Door()
    assert door.check(method, tag=tag).status == status and door.asked == []


def test_credentials_open_the_door_to_a_stranger() -> None:
    door = Door(users=USERS)
    uri = "sip:1000@worker"
    verdict = door.check(source=STRANGER, uri=uri)
    assert verdict.status == 401 and door.admission.counters.challenged == 1 and door.refused == []
    assert [name for name, _ in verdict.headers] == ["WWW-Authenticate"] * 2

    def with_credentials(password: str, number: int) -> FilterVerdict:
        credentials = answer(verdict.headers[0][1], "sbc", password, uri=uri, nc=number)
        return door.check(source=STRANGER, uri=uri, headers=f"Authorization: {credentials}\r\n", number=number)

    assert with_credentials("secret", 1).status == PASS
    assert door.admission.user_of("call-1", STRANGER) == "sbc" and door.admission.user_of("call-1", FRIEND) is None
    with capture_logs() as lines:
        assert with_credentials("wrong", 2).status == 403 and door.refused == [403]
    assert [(line["event"], line["reason"]) for line in lines] == [("SIP authentication failed", "password")]
    counters = door.admission.counters
    assert counters.credentials_bad == 1 and dict(counters.auth_failures) == {"password": 1}
    door.now += 301
    stale = with_credentials("secret", 3)
    assert stale.status == 401 and all("stale=true" in value for _, value in stale.headers)
    again = door.check(source=STRANGER, uri=uri, number=4)
    assert again.status == 401 and not any("stale" in value for _, value in again.headers)
    assert door.check(source=STRANGER, uri=uri, headers="no header line\r\n", number=5).status == 401
    assert door.check(number=6).status == PASS, "a friend is not asked"


def test_everybody_may_be_asked() -> None:
    door = Door(users=USERS, unasked=lambda source: False)
    assert door.check(uri="sip:a").status == 401


def test_an_error_of_ours_refuses_and_few_are_answered() -> None:
    door = Door()
    statuses = [door.admission.on_error() for _ in range(200)]
    assert statuses[0] == 500 and statuses[-1] == DROP and door.admission.counters.errors == 200
    assert statuses == sorted(statuses, key=lambda status: status != 500)


def test_connections_are_counted_and_close_without_a_message() -> None:
    door = Door(max_tcp=4)
    admission = door.admission
    assert [admission.on_connected(handle, FRIEND) for handle in range(5)] == [True] * 4 + [False]
    assert len(admission.connections) == 5 and admission.counters.tcp_refused == 1, "counted until it is gone"
    assert admission.connections.remove(4) and not admission.connections.remove(4) and len(admission.connections) == 4
    admission.connections.on_message(0)
    door.now = 60.0
    assert sorted(admission.expired()) == [1, 2, 3] and admission.counters.tcp_expired == 3
    admission.connections.lower(2)
    admission.connections.lower(10)
    assert admission.connections.remove(1) and admission.connections.remove(2)
    assert not admission.on_connected(9, FRIEND) and admission.connections.remove(9), "a limit is only lowered"
    assert admission.connections.remove(0)
    assert admission.on_connected(10, FRIEND) and not admission.on_connected(11, FRIEND)
