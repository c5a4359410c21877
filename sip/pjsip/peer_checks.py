"""The checks of silent calls' peers by OPTIONS, which end the calls of peers that are gone."""

from __future__ import annotations

import re
from dataclasses import dataclass

import structlog

from config.network.addresses import split_address
from sip.pjsip.call import SipCall
from sip.pjsip.counters import SipCounters
from sip.protocol.liveness import UNKNOWN_CALL, UNREACHED, PeerWatch, Step, is_behind_nat
from sip.protocol.message import SipMessage, address_uri
from sip.protocol.uri import host_of

log = structlog.get_logger("sip")

SPREAD, AT_LEAST = 8, 25
"""The most peers asked per sweep, since all may fall silent at once: one in SPREAD calls, but at least AT_LEAST."""
_IN_DIALOG = frozenset(("INVITE", "UPDATE", "PRACK", "BYE", "REFER", "MESSAGE"))
"""The methods whose CSeq PJSIP counts; an ACK has that of its INVITE, and others never reach PJSIP."""
_UDP = re.compile(r"SIP\s*/\s*2\.0\s*/\s*UDP\b", re.IGNORECASE)


@dataclass(slots=True)
class _Peer:
    watch: PeerWatch
    source: tuple[str, int]
    """The source of the INVITE, or the other end of the connection by which the newest request came."""
    connected: bool
    """Whether the connection to `source` still exists, by which requests are sent."""
    reachable: bool
    """Whether requests would reach the peer without such a connection, judging by its Contact."""
    cseq: int = 0
    """The CSeq of the newest request after the INVITE that PJSIP has accepted in the dialog."""


class PeerChecks:
    """The peers of all calls between `open` and `close`."""

    def __init__(self, silence_s: float, counters: SipCounters) -> None:
        """`silence_s`: `sip.peer_check_s`; 0 turns the checks off."""
        self._silence_s, self._counters = silence_s, counters
        self._peers: dict[SipCall, _Peer] = {}

    def open(self, call: SipCall, invite: SipMessage, source: str, now: float) -> None:
        """Begin to watch a call. `source` is the address and port of the INVITE."""
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
        """Note a request within the call that came by the connection to `source`.

        If it is not an old one, PJSIP sends by that connection from now on (`follow` in tools/pjsip/mediaworker.c).
        """
        peer = self._peers.get(call)
        if peer is None or method == "CANCEL" or cseq < peer.cseq:
            return
        peer.source, peer.connected = source, True
        if method in _IN_DIALOG:
            peer.cseq = cseq

    def on_connection_lost(self, address: str, port: int) -> None:
        """Doubt the peers whose connection to this address has ended: they may be gone."""
        for peer in self._peers.values():
            if peer.connected and peer.source == (address, port):
                peer.connected = False
                peer.watch.doubt()

    def on_answer(self, call: SipCall, status: int, now: float) -> None:
        """Handle the status of the final response to OPTIONS; 0 if it could not be sent."""
        if (peer := self._peers.get(call)) is None:
            return
        if status == UNKNOWN_CALL:  # then PJSIP ends it
            self._lost(call, "it does not know the call")
        elif status and status not in UNREACHED:
            peer.watch.on_answer(now)
        else:
            peer.watch.on_unreached()

    def sweep(self, now: float) -> None:
        """Send the OPTIONS requests that are due, and end the calls of peers that have not answered."""
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
