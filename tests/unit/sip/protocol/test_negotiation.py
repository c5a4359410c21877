"""Which of our descriptions are on their way, and what each of them has agreed."""

from __future__ import annotations

import pytest

from audio.codecs.codec import Codec
from sip.protocol.negotiation import DescriptionEvent, DescriptionState, Negotiation
from sip.protocol.offer_answer import NegotiatedStream
from sip.protocol.sdp import Direction, SessionDescription

SESSION = SessionDescription.parse("v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n")


def streams(port: int) -> tuple[NegotiatedStream, ...]:
    return (NegotiatedStream(0, "", Codec.PCMU, 0, 101, Direction.SENDRECV, ("192.0.2.9", port), False),)


def test_an_answer_is_ahead_until_it_has_gone_out() -> None:
    negotiation = Negotiation()
    negotiation.make(SESSION, streams(1))
    assert negotiation.ahead == streams(1) and negotiation.offered is None
    own = negotiation.respond()
    assert own is not None and negotiation.respond() is None and negotiation.ahead == streams(1)
    assert negotiation.move(own, DescriptionEvent.SENT) is DescriptionState.CLOSED
    assert negotiation.ahead == ()


def test_the_next_offer_may_come_before_the_answer_to_the_last_has_been_compared() -> None:
    negotiation = Negotiation()
    negotiation.make(SESSION, streams(1))
    first = negotiation.respond()
    negotiation.make(SESSION, streams(2))
    assert first is not None and negotiation.ahead == streams(1) + streams(2)
    negotiation.move(first, DescriptionEvent.SENT)
    assert negotiation.ahead == streams(2)
    negotiation.refuse()
    assert negotiation.ahead == () and negotiation.respond() is None


def test_a_description_that_is_made_anew_replaces_the_one_before() -> None:
    negotiation = Negotiation()
    negotiation.make(SESSION, streams(1))
    negotiation.make(SESSION, streams(2))
    assert negotiation.ahead == streams(2)


def test_an_offer_of_ours_is_open_until_its_answer_is_there() -> None:
    negotiation = Negotiation()
    assert not negotiation.close_offers()
    negotiation.make(SESSION)
    assert negotiation.offered is None
    own = negotiation.respond()
    assert own is not None and negotiation.offered and not negotiation.close_offers()
    assert negotiation.move(own, DescriptionEvent.SENT) is DescriptionState.OFFER_OPEN
    assert negotiation.offered and negotiation.close_offers()
    assert negotiation.offered is None and not negotiation.close_offers()


def test_what_did_not_go_out_as_it_was_made_is_forgotten() -> None:
    negotiation = Negotiation()
    negotiation.make(SESSION)
    own = negotiation.respond()
    assert own is not None
    negotiation.move(own, DescriptionEvent.NOT_SENT)
    assert negotiation.offered is None
    with pytest.raises(KeyError):
        negotiation.move(own, DescriptionEvent.ANSWERED)
