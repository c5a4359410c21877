"""Asks the peers of silent calls whether they are still there, and ends the calls of those that are not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import structlog

from config.addresses import split_address
from sip.pjsip.call import SipCall
from sip.pjsip.counters import SipCounters
from sip.protocol.liveness import UNKNOWN_CALL, UNREACHED, PeerWatch, Step, is_behind_nat
from sip.protocol.message import SipMessage, address_uri
from sip.protocol.uri import host_of

log = structlog.get_logger("sip")

SPREAD, AT_LEAST = 8, 25
"""All calls may have fallen silent at once: one in eight of them are asked in one sweep, or 25 when that is more."""
_IN_DIALOG = frozenset(("INVITE", "UPDATE", "PRACK", "BYE", "REFER", "MESSAGE"))
"""Methods that PJSIP counts the CSeq of; an ACK has that of its INVITE, and others are answered before it sees them."""
_UDP = re.compile(r"SIP\s*/\s*2\.0\s*/\s*UDP\b", re.IGNORECASE)


@dataclass(slots=True)
class _Peer:
    watch: PeerWatch
    source: tuple[str, int]
    """Where the INVITE came from, or the other end of the connection by which the newest request came."""
    connected: bool
    """The connection to `source` is still there, and requests go back by it."""
    reachable: bool
    """Without such a connection requests reach it too, as far as its Contact tells."""
    cseq: int = 0
    """The CSeq of the newest request that PJSIP has taken into the dialog, after the INVITE."""


class PeerChecks:
    """The peers of all calls between `open` and `close`."""

    def __init__(self, silence_s: float, counters: SipCounters) -> None:
        """`silence_s`: `sip.peer_check_s`; 0: nobody is asked."""
        self._silence_s, self._counters = silence_s, counters
        self._peers: dict[SipCall, _Peer] = {}

    def open(self, call: SipCall, invite: SipMessage, source: str, now: float) -> None:
        """`source`: address and port that the INVITE came from."""
        if not self._silence_s:
            return
        address, port = split_address(source)
        connected = not _UDP.match(invite.header("via"))
        contact = host_of(address_uri(invite.header("contact")))
        reachable = bool(invite.header("record-route")) or not is_behind_nat(contact, address)
        self._peers[call] = _Peer(PeerWatch(now, self._silence_s), (address, port), connected, reachable)

    def close(self, call: SipCall) -> None:
        self._peers.pop(call, None)

    def on_request(self, call: SipCall, method: str, cseq: int, source: tuple[str, int]) -> None:
        """A request within the call came by the connection that goes there.

        If it is not an old one, PJSIP sends by that connection from now on (`follow` in tools/pjsip/mediaworker.c).
        """
        peer = self._peers.get(call)
        if peer is None or method == "CANCEL" or cseq < peer.cseq:
            return
        peer.source, peer.connected = source, True
        if method in _IN_DIALOG:
            peer.cseq = cseq

    def on_connection_lost(self, address: str, port: int) -> None:
        """A connection that went there has ended: those who called by it may be gone."""
        for peer in self._peers.values():
            if peer.connected and peer.source == (address, port):
                peer.connected = False
                peer.watch.doubt()

    def on_answer(self, call: SipCall, status: int, now: float) -> None:
        """`status`: of the final answer to OPTIONS; 0: it could not be sent."""
        if (peer := self._peers.get(call)) is None:
            return
        if status == UNKNOWN_CALL:  # then PJSIP ends it
            self._lost(call, "it does not know the call")
        elif status and status not in UNREACHED:
            peer.watch.on_answer(now)
        else:
            peer.watch.on_unreached()

    def sweep(self, now: float) -> None:
        """Ask whom it is time to ask, and end the calls of those that have not answered."""
        room = max(AT_LEAST, -(-len(self._peers) // SPREAD))
        for call, peer in tuple(self._peers.items()):
            received_s = [stream.socket.last_packet_s for stream in call.streams]
            if not received_s or not (peer.connected or peer.reachable):
                continue
            if any([stream.socket.refused() for stream in call.streams]):
                peer.watch.doubt()
            step = peer.watch.step(now, max(call.agreed_s, *received_s))
            if step is Step.GIVE_UP:
                self._lost(call, "it does not answer")
                call.hangup(reason="timeout")
            elif step is Step.ASK and room:
                room -= 1
                self._counters.peers_asked += 1
                peer.watch.on_question(now)
                call.send_options()

    def _lost(self, call: SipCall, reason: str) -> None:
        del self._peers[call]
        self._counters.peers_lost += 1
        log.info("the peer of a silent call is gone", reason=reason, peer=call.peer, external_id=call.call_id)
