"""When a peer is asked whether it is still there, and whose address says that it is behind a NAT."""

from __future__ import annotations

import pytest

from sip.protocol.liveness import ANSWER_S, DOUBT_EVERY_S, DOUBT_S, REFUSED_S, PeerWatch, Step, is_behind_nat


def test_when_a_peer_is_asked_and_given_up() -> None:
    watch = PeerWatch(0.0, 30.0)
    assert watch.step(29.9, 0.0) is Step.WAIT
    assert watch.step(35.0, 10.0) is Step.WAIT, "it was heard 25 s ago"
    assert watch.step(40.0, 10.0) is Step.ASK
    watch.on_question(40.0)
    assert watch.step(40.0 + ANSWER_S - 0.1, 10.0) is Step.WAIT
    assert watch.step(40.0 + ANSWER_S, 10.0) is Step.GIVE_UP
    watch.on_answer(42.0)
    assert watch.step(71.9, 10.0) is Step.WAIT
    assert watch.step(72.0, 10.0) is Step.ASK
    watch.on_question(72.0)
    watch.on_unreached()
    assert watch.step(72.0 + REFUSED_S, 10.0) is Step.GIVE_UP
    assert watch.step(72.0 + REFUSED_S, 73.0) is Step.WAIT, "it sends RTP, so it lives"
    assert watch.step(104.9, 73.0) is Step.WAIT


def test_a_doubt_brings_a_question_at_once_and_not_too_often() -> None:
    watch = PeerWatch(0.0, 30.0)
    watch.doubt()
    assert watch.step(5.0, 5.0 - DOUBT_S / 2) is Step.WAIT
    assert watch.step(5.0, 5.0 - DOUBT_S) is Step.ASK
    watch.on_question(5.0)
    watch.on_answer(5.1)
    assert watch.step(10.0, 4.0) is Step.WAIT, "the doubt is over"
    watch.doubt()
    assert watch.step(5.0 + DOUBT_EVERY_S - 0.1, 4.0) is Step.WAIT
    assert watch.step(5.0 + DOUBT_EVERY_S, 4.0) is Step.ASK


@pytest.mark.parametrize(
    ("contact", "source", "behind"),
    [
        ("192.168.1.20", "203.0.113.5", False),  # documentation addresses count as private
        ("192.168.1.20", "8.8.8.8", True), ("10.0.0.1", "8.8.8.8", True), ("100.64.0.9", "8.8.8.8", False),
        ("192.168.1.20", "192.168.1.1", False), ("8.8.4.4", "8.8.8.8", False), ("8.8.8.8", "8.8.8.8", False),
        ("pbx.example", "8.8.8.8", False), ("", "8.8.8.8", False), ("fd00::1", "2600::1", True),
    ],
)  # fmt: skip
def test_who_is_behind_a_nat(contact: str, source: str, behind: bool) -> None:
    assert is_behind_nat(contact, source) is behind
