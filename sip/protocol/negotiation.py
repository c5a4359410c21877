"""The offers and answers of one call (RFC 3264, RFC 6337): the agreed streams, and the pending descriptions. No I/O.

A description of ours is created when PJSIP requests it, and takes effect when a response has been sent with it. The
next offer may come in between, so several descriptions can be pending. Each has its own state, and one table defines
the transitions of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sip.protocol.offer_answer import NegotiatedStream
from sip.protocol.sdp import SessionDescription

Streams = tuple[NegotiatedStream, ...]


class DescriptionState(Enum):
    ANSWER_MADE = "answer made"
    ANSWER_LEAVING = "answer leaving"
    """A response with it has been sent, which has not been compared with it yet."""
    OFFER_MADE = "offer made"
    OFFER_LEAVING = "offer leaving"
    OFFER_OPEN = "offer open"
    """The offer has been sent in a 2xx, whose ACK contains the answer."""
    CLOSED = "closed"


class DescriptionEvent(Enum):
    RESPONSE = "a response takes it along"
    REFUSED = "the request was refused, or another description was made instead"
    SENT = "the response had this very description"
    NOT_SENT = "the response had none, or another one"
    ANSWERED = "the answer to it is there"


_S, _E = DescriptionState, DescriptionEvent
_NEXT = {
    (_S.ANSWER_MADE, _E.RESPONSE): _S.ANSWER_LEAVING,
    (_S.ANSWER_MADE, _E.REFUSED): _S.CLOSED,
    (_S.ANSWER_LEAVING, _E.SENT): _S.CLOSED,
    (_S.ANSWER_LEAVING, _E.NOT_SENT): _S.CLOSED,
    (_S.OFFER_MADE, _E.RESPONSE): _S.OFFER_LEAVING,
    (_S.OFFER_MADE, _E.REFUSED): _S.CLOSED,
    (_S.OFFER_LEAVING, _E.SENT): _S.OFFER_OPEN,
    (_S.OFFER_LEAVING, _E.NOT_SENT): _S.CLOSED,
    (_S.OFFER_OPEN, _E.ANSWERED): _S.CLOSED,
}
"""(state, event) → next state. A missing pair is a bug of ours, and raises KeyError."""
_MADE = frozenset((_S.ANSWER_MADE, _S.OFFER_MADE))
_AWAITING = frozenset((_S.OFFER_LEAVING, _S.OFFER_OPEN))


@dataclass(slots=True, eq=False)
class OwnDescription:
    """A description of ours, and its state."""

    session: SessionDescription
    streams: Streams
    """The streams that an answer agrees on; empty in an offer."""
    state: DescriptionState


class Negotiation:
    """The offers and answers of one call."""

    def __init__(self) -> None:
        self.agreed: Streams = ()
        self.last: SessionDescription | None = None
        """Our description in force: an answer that has been sent, or an offer that was answered."""
        self._open: list[OwnDescription] = []
        """The descriptions that are not closed, the oldest first."""

    @property
    def offered(self) -> SessionDescription | None:
        """Our offer that has been sent in a 2xx, whose ACK contains the answer; None without one."""
        return next((each.session for each in reversed(self._open) if each.state in _AWAITING), None)

    @property
    def ahead(self) -> Streams:
        """The streams of pending answers, whose sockets and keys must be kept."""
        return tuple(stream for each in self._open for stream in each.streams)

    def make(self, session: SessionDescription, streams: Streams = ()) -> None:
        """An answer that agrees on these streams, or without any an offer; instead of what was made before."""
        self.refuse()
        self._open.append(OwnDescription(session, streams, _S.ANSWER_MADE if streams else _S.OFFER_MADE))

    def respond(self) -> OwnDescription | None:
        """The description made for the response that is being sent; None if there is none."""
        made = next((each for each in self._open if each.state in _MADE), None)
        if made is not None:
            self.move(made, _E.RESPONSE)
        return made

    def refuse(self) -> None:
        """Drop the descriptions made for a request that was refused."""
        for each in [each for each in self._open if each.state in _MADE]:
            self.move(each, _E.REFUSED)

    def close_offers(self) -> SessionDescription | None:
        """Close our offer, which was answered or will not be, and return it; None if there is none."""
        offers = [each for each in self._open if each.state is _S.OFFER_OPEN]
        for each in offers:
            self.move(each, _E.ANSWERED)
        return offers[-1].session if offers else None

    def move(self, description: OwnDescription, event: DescriptionEvent) -> DescriptionState:
        if description.state is _S.ANSWER_LEAVING and event is _E.SENT:
            self.last = description.session
        description.state = _NEXT[description.state, event]
        if description.state is _S.CLOSED:
            self._open.remove(description)
        return description.state
