"""Calls that Asterisk sends over AudioSocket: what must be heard, and a hold."""

from __future__ import annotations

from typing import Any

from lab.asterisk.pbx import Asterisk
from lab.events.story import check_story
from lab.patience import until
from lab.sip.softphone import Softphone


def check_heard(events: list[dict[str, Any]], texts: list[str]) -> None:
    finals = check_story(events)
    assert [final["text"] for final in finals] == texts
    assert {(final["role"], final["lost_ms"]) for final in finals} == {("customer", 0)}
    assert events[0]["source"] == "audiosocket"
    assert [(leg["leg"], leg["codec"]) for leg in events[0]["legs"]] == [("main", "L16")]


def hold(asterisk: Asterisk, alice: Softphone) -> None:
    answers = len(asterisk.messages("SIP/2.0 200 OK", "a=recvonly"))
    alice.do("hold")
    until(lambda: len(asterisk.messages("SIP/2.0 200 OK", "a=recvonly")) > answers, 10, "it holds")
