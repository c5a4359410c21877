"""Requests within calls: which call they belong to, and what they are answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sip.admission.request_filter import DROP, PASS, RequestHead
from sip.pjsip.in_dialog import DialogRequests
from sip.protocol.errors import PeerError


@dataclass(eq=False)
class Call:
    """What is looked at of a call."""

    local_tag: str = "Ours"
    call_id: str = "call-1"
    remote_tag: str = "Theirs"
    reliable: tuple[str, ...] | list[str] = ()


class Dialogs:
    def __init__(self) -> None:
        self.digits: list[tuple[Any, str, int]] = []
        self.requests = DialogRequests(lambda call, *digit: self.digits.append((call, *digit)))
        self.call = Call()
        self.requests.open(self.call)  # type: ignore[arg-type]

    def check(
        self, method: str, cseq: int = 1, *, tag: str = "ours", call_id: str = "call-1", sender: str = "theirs",
        more: str = "", body: str = "",
    ) -> int:  # fmt: skip
        text = f"{method} sip:x SIP/2.0\r\nFrom: <sip:a>;tag={sender}\r\n{more}\r\n{body}"
        return self.requests.check(RequestHead(method, call_id, "z9hG4bK1", tag, "192.0.2.1"), cseq, lambda: text)


@pytest.mark.parametrize("method", ["INVITE", "ACK", "CANCEL", "BYE", "UPDATE", "REFER", "MESSAGE"])
def test_pjsip_gets_what_it_serves(method: str) -> None:
    dialogs = Dialogs()
    assert dialogs.check(method) == dialogs.check(method, tag="nobody") == PASS
    assert dialogs.check(method, call_id="call-2") == (DROP if method == "ACK" else 481)


@pytest.mark.parametrize(
    ("method", "status"), [("OPTIONS", 200), ("SUBSCRIBE", 489), ("NOTIFY", 489), ("PUBLISH", 501), ("INFO", 200)]
)
def test_what_pjsip_does_not_serve_is_answered_here(method: str, status: int) -> None:
    dialogs = Dialogs()
    assert dialogs.check(method) == dialogs.check(method, 2, tag="OURS", sender="THEIRS") == status
    assert dialogs.check(method, tag="nobody") == 481
    assert dialogs.check(method, sender="another") == 481
    assert dialogs.check(method, more="no header line\r\n") == 400
    dialogs.requests.close(dialogs.call)  # type: ignore[arg-type]
    assert dialogs.check(method) == 481
    dialogs.requests.close(dialogs.call)  # type: ignore[arg-type]


def test_a_prack_is_of_the_reliable_answer() -> None:
    dialogs = Dialogs()
    assert dialogs.check("PRACK", more="RAck: 1 7 INVITE\r\n") == 481
    dialogs.call.reliable = ["1", "7"]
    assert dialogs.check("PRACK", more="RAck: 1 7 INVITE\r\n") == PASS
    assert dialogs.check("PRACK", more="RAck: 2 7 INVITE\r\n") == 481


RELAY = "Content-Type: application/dtmf-relay\r\n"


@pytest.mark.parametrize(
    ("more", "body", "status", "digit"),
    [
        (RELAY, "Signal=5\r\nDuration=160", 200, ("5", 160)),
        ("Content-Type: application/dtmf\r\n", "#", 200, ("#", 0)),
        (RELAY, "Signal=10", 200, ("*", 0)),
        (RELAY, "Signal=16", 200, None),
        ("Content-Type: application/hook-flash\r\n", "flash", 200, None),
        (RELAY, "Signal=17", 415, None),
        ("Info-Package: x\r\n", "", 469, None),
        ("Content-Type: text/plain\r\n", "hello", 415, None),
        ("", " \r\n", 200, None),
    ],
)
def test_info(more: str, body: str, status: int, digit: tuple[str, int] | None) -> None:
    dialogs = Dialogs()
    assert dialogs.check("INFO", more=more, body=body) == status
    assert dialogs.digits == ([(dialogs.call, *digit)] if digit else [])


def test_a_digit_that_is_repeated_counts_once_and_an_old_one_is_out_of_order() -> None:
    dialogs = Dialogs()
    for cseq in (5, 5, 6, 5):
        assert dialogs.check("INFO", cseq, more=RELAY, body="Signal=1") == 200
    assert len(dialogs.digits) == 2
    assert dialogs.check("INFO", 4, more=RELAY, body="Signal=1") == 500 and len(dialogs.digits) == 2
    for cseq in range(7, 45):
        dialogs.check("INFO", cseq, more=RELAY, body="Signal=1")
    assert dialogs.check("INFO", 13, more=RELAY, body="Signal=1") == 200, "one of the last 32 is remembered"
    assert len(dialogs.digits) == 2 + 38
    assert dialogs.check("INFO", 12, more=RELAY, body="Signal=1") == 500, "one before them is not"


def test_the_call_of_a_request_is_found_by_all_three() -> None:
    dialogs = Dialogs()

    def find(call_id: str = "call-1", tag: str = "oURS", sender: str = "tHEIRS") -> object:
        text = f"BYE sip:x SIP/2.0\r\nFrom: <sip:a>;tag={sender}\r\n\r\n"
        return dialogs.requests.find(RequestHead("BYE", call_id, "b", tag, "192.0.2.1"), text)

    assert find() is dialogs.call
    assert find(call_id="call-2") is find(tag="nobody") is find(sender="another") is None
    with pytest.raises(PeerError):
        dialogs.requests.find(RequestHead("BYE", "call-1", "b", "ours", "192.0.2.1"), "BYE\nbad line\n\n")
