"""The pjsua2 counterpart of a call: it passes callbacks to the call, and sends the call's responses and hang-ups."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pjsua2 as pj
import structlog

from sip.admission.admission import RETRY_AFTER_S
from sip.pjsip.call import SipCall
from sip.pjsip.callbacks import guarded
from sip.protocol.errors import SipError
from sip.protocol.liveness import UNKNOWN_CALL
from sip.protocol.message import SipMessage
from sip.protocol.sdp import SessionDescription

log = structlog.get_logger("sip")

_CAUSE = re.compile(r"cause\s*=\s*([0-9]{3})")
"""The cause in the Reason header (RFC 3326) of a BYE that PJSIP sends on its own."""

Later = Callable[..., object]


class Dialog(pj.Call):  # type: ignore[misc]
    """The pjsua2 side of a call. Without a `call` it only exists to refuse an INVITE.

    Reports of callbacks are handled after PJSIP has returned, because a handler may hang up, which PJSIP would do only
    in part from within its own callback.
    """

    def __init__(self, account: Any, call_id: int, on_over: Callable[[Dialog], None], later: Later) -> None:
        """`on_over` is called, in the callback, when PJSIP is done with the call; `later` is the loop's call_soon."""
        super().__init__(account, call_id)
        self._later = later
        self.call: SipCall | None = None
        self.audio_lines = 1
        """PJSIP must keep as many audio lines open as are offered: which of them is used is not its decision."""
        self.over = False
        """Whether PJSIP has ended the dialog; it is set at once, while the call is notified a little later."""
        self._on_over = on_over

    def ring(self) -> None:
        """Send 180 without a session description, since nothing is agreed before the 200."""
        self._respond(pj.CallOpParam(), 180)

    def accept(self) -> None:
        prm = pj.CallOpParam(True)
        prm.opt.audioCount = self.audio_lines
        prm.opt.videoCount = prm.opt.textCount = 0
        self._respond(prm, 200)

    def _respond(self, prm: Any, status: int) -> None:
        """Send a response. Raises SipError."""
        prm.statusCode = status
        try:
            self.answer(prm)
        except pj.Error as error:
            raise SipError(error.reason) from None

    def send_options(self) -> None:
        """OPTIONS (RFC 3261 section 11.2). `call.on_options_answer` follows."""
        prm = pj.CallSendRequestParam()
        prm.method = "OPTIONS"
        try:
            self.sendRequest(prm)
        except pj.Error as error:
            log.debug("OPTIONS", reason=error.reason)
            if self.call is not None:
                self._later(self.call.on_options_answer, 0)

    def finish(self, code: int = 0) -> None:
        """Hang up or refuse, with Retry-After for 503; this is harmless if the peer has ended the call already."""
        if self.over:
            return
        prm = pj.CallOpParam()
        prm.statusCode = code
        if code == 503:
            header = pj.SipHeader()
            header.hName, header.hValue = "Retry-After", str(RETRY_AFTER_S)
            prm.txOption.headers.append(header)
        try:
            self.hangup(prm)
        except pj.Error as error:
            log.debug("hangup", reason=error.reason)

    @guarded
    def onCallSdpCreated(self, prm: Any) -> None:
        if self.call is None or self.call.ended:
            return
        template = SessionDescription.parse(prm.sdp.wholeSdp)
        try:
            prm.sdp.wholeSdp = str(self.call.describe(prm.remSdp.wholeSdp, template))
        except SipError as error:  # PJSIP may have understood less of an offer than there was in it
            log.info("call refused", external_id=self.call.call_id, reason=str(error))
            self._later(self.finish, error.status)

    @guarded
    def onCallRxOffer(self, prm: Any) -> None:
        prm.statusCode = 500
        if self.call is None:
            return
        try:
            prm.opt.audioCount = self.call.check(prm.offer.wholeSdp)
        except SipError as error:
            prm.statusCode = error.status
        else:
            prm.statusCode = 200

    @guarded
    def onCallTsxState(self, prm: Any) -> None:
        event = prm.e.body.tsxState
        if self.call is None:
            return
        if event.tsx.role == pj.PJSIP_ROLE_UAC:
            self._on_own_request(self.call, event)
            return
        method = event.tsx.method
        if self.call.recording is not None and method in ("INVITE", "UPDATE") and event.type == pj.PJSIP_EVENT_RX_MSG:
            # The metadata of the first INVITE was read before there was a dialog.
            self._later(self.call.on_metadata, SipMessage.parse(event.src.rdata.wholeMsg))
        elif method in ("INVITE", "UPDATE") and event.type == pj.PJSIP_EVENT_TX_MSG:
            if 100 < event.tsx.statusCode < 300:
                message = SipMessage.parse(event.src.tdata.wholeMsg)
                self.call.on_response(message)
                if event.tsx.statusCode >= 200:
                    self._later(self.call.on_sent, self.call.on_success(), message.body)
            elif event.tsx.statusCode >= 300:
                self.call.on_refused()

    def _on_own_request(self, call: SipCall, event: Any) -> None:
        """Handle our OPTIONS, and PJSIP's own requests: session refreshes (RFC 4028), and a BYE after a failure."""
        if event.tsx.method == "BYE" and event.type == pj.PJSIP_EVENT_TX_MSG and not self.over:
            # Do not wait for the response to the BYE: a vanished peer would not answer for 32 s.
            found = _CAUSE.search(SipMessage.parse(event.src.tdata.wholeMsg).header("reason"))
            self._later(call.on_disconnected, int(found[1]) if found else 408)
        elif event.tsx.method in ("INVITE", "UPDATE") and event.type == pj.PJSIP_EVENT_RX_MSG:
            if event.tsx.statusCode // 100 == 2:
                self._later(call.on_refresh_answer, SipMessage.parse(event.src.rdata.wholeMsg).body)
        elif event.tsx.method == "OPTIONS" and event.type == pj.PJSIP_EVENT_TRANSPORT_ERROR:
            self._later(call.on_options_answer, 0)
        elif event.tsx.method == "OPTIONS" and event.type == pj.PJSIP_EVENT_RX_MSG and event.tsx.statusCode >= 200:
            if event.tsx.statusCode == UNKNOWN_CALL:
                call.on_unknown_call()
            else:
                self._later(call.on_options_answer, event.tsx.statusCode)

    @guarded
    def onCallState(self, prm: Any) -> None:
        info = self.getInfo()
        if info.state == pj.PJSIP_INV_STATE_DISCONNECTED and not self.over:
            self.over = True
            if self.call is not None:
                self._later(self.call.on_disconnected, info.lastStatusCode)
            self._on_over(self)

    @guarded
    def onCallTransferRequest(self, prm: Any) -> None:
        # REFER is refused, because no peer may make the worker place a call.
        prm.statusCode = 603

    @guarded
    def onCallReplaceRequest(self, prm: Any) -> None:
        # Replaces (RFC 3891) is refused, because no third party may replace a call.
        prm.statusCode = 603
