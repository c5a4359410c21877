"""Requests within calls that PJSIP does not handle: the call to which they belong, and the response. No I/O.

A dialog is known by its Call-ID and both tags (RFC 3261 section 12). PJSIP compares only the tags, so every request
with a tag in its To header is checked here before PJSIP gets it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from sip.admission.request_filter import DROP, PASS, RequestHead
from sip.protocol.errors import PeerError
from sip.protocol.message import SipMessage, dtmf_info, tag_of

if TYPE_CHECKING:
    from sip.pjsip.call import SipCall

_SERVED = frozenset(("INVITE", "ACK", "CANCEL", "BYE", "UPDATE", "REFER", "MESSAGE"))
"""The methods that PJSIP handles; it would answer any other within a dialog with 500."""
_ANSWERS = {"OPTIONS": 200, "SUBSCRIBE": 489, "NOTIFY": 489}
"""Method → status: a keep-alive, and unsupported events. Any other method gets 501 (RFC 3261 section 21.5.2)."""
_MAX_ANSWERED = 32
"""The number of INFO requests of a call that are remembered, so that the digit of a retransmission counts once."""


class DialogRequests:
    """Checks requests within the dialogs of the calls between `open` and `close`."""

    def __init__(self, on_digit: Callable[[SipCall, str, int], object]) -> None:
        """`on_digit(call, digit, duration_ms)` is called for each digit in an INFO."""
        self._on_digit = on_digit
        self._calls: dict[str, SipCall] = {}
        self._answered: dict[SipCall, OrderedDict[int, int]] = {}
        """Call → CSeq → status, for the INFO requests answered last."""

    def open(self, call: SipCall) -> None:
        """Add a call whose `local_tag` is known."""
        self._calls[call.local_tag.lower()] = call

    def close(self, call: SipCall) -> None:
        self._calls.pop(call.local_tag.lower(), None)
        self._answered.pop(call, None)

    def check(self, request: RequestHead, cseq: int, text: Callable[[], str]) -> int:
        """The status of the response, `PASS` to leave the request to PJSIP, or `DROP`.

        `text()` returns the whole request.
        """
        call = self._calls.get(request.to_tag.lower())
        if call is not None and call.call_id != request.call_id:
            return DROP if request.method == "ACK" else 481
        if request.method in _SERVED:
            return PASS  # PJSIP compares both tags
        if call is None:
            return 481
        try:
            message = SipMessage.parse(text())
        except PeerError:
            return 400
        if tag_of(message.header("from")).lower() != call.remote_tag.lower():
            return 481
        if request.method == "INFO":
            return self._on_info(call, message, cseq)
        if request.method == "PRACK":
            # PJSIP would answer 200 to a PRACK that acknowledges nothing (RFC 3262 section 3).
            return PASS if call.reliable == message.header("rack").split()[:2] else 481
        return _ANSWERS.get(request.method, 501)

    def find(self, request: RequestHead, text: str) -> SipCall | None:
        """The call to which a request belongs by its Call-ID and both tags. `text` is the whole request.

        Raises PeerError if the text cannot be parsed.
        """
        call = self._calls.get(request.to_tag.lower())
        if call is None or call.call_id != request.call_id:
            return None
        remote_tag = tag_of(SipMessage.parse(text).header("from"))
        return call if remote_tag.lower() == call.remote_tag.lower() else None

    def _on_info(self, call: SipCall, message: SipMessage, cseq: int) -> int:
        answered = self._answered.setdefault(call, OrderedDict())
        if cseq in answered:
            return answered[cseq]
        if answered and cseq < max(answered):
            return 500  # out of order (RFC 3261 section 12.2.2)
        found = dtmf_info(message.header("content-type"), message.body)
        if found is not None:
            status = 200
            if found[0]:  # a flash is acknowledged and ignored
                self._on_digit(call, *found)
        elif message.header("info-package"):
            status = 469
        else:
            status = 415 if message.body.strip() else 200  # without a body it is a keep-alive
        answered[cseq] = status
        if len(answered) > _MAX_ANSWERED:
            answered.popitem(last=False)
        return status
