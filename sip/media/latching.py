"""Latching: the decision which source address a stream's RTP comes from. No I/O; the time is an argument.

Behind NAT, packets do not come from the address in the SDP, so their source must be learned. But an attacker who finds
the port must not be able to inject audio into a call ("RTP bleed", CVE-2017-14099; RFC 7362 describes latching). One
rule holds: **a source is learned only during probation, then locked.**

- Probation begins with every offer/answer, and again after `SILENCE_S` without a packet from the locked source.
- A packet from the address in the SDP ends probation at once.
- Any other source must first send `SEQUENTIAL` packets of one SSRC with consecutive sequence numbers. They are kept
  and delivered when it succeeds, so nothing is lost.
- The address in the SDP, and the source that was locked first since the offer/answer, can replace a learned source (a
  stranger during a hold, or the sender of an earlier call on this port). They need as many packets for that.
- A stream may move without signalling: a NAT gives it another port, or a media proxy dies. `SEQUENTIAL` packets from
  another source that continue the locked source's stream, with its SSRC and its next sequence numbers, lock the new
  source, unless the old one sends one of them meanwhile. The old source may return, as above.
- After a re-INVITE the previously locked source is still accepted, and is locked again if no other source succeeds
  within `PROBATION_S`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SEQUENTIAL = 4
SILENCE_S = 2.0
PROBATION_S = 5.0
MAX_AHEAD = 100
"""The most packets that may be missing when a stream moves: two seconds, after which any source can be learned."""
MAX_CANDIDATES = 64
"""The most candidates. A further one replaces the one with the fewest packets: a flood must not keep the caller out."""

Address = tuple[str, int]
Arrived = tuple[bytes, float]
"""A datagram, and its arrival time."""


@dataclass(slots=True)
class _Candidate:
    ssrc: int
    sequence: int
    datagrams: list[Arrived] = field(default_factory=list)


class SourceLatch:
    """Decides for each datagram whether it belongs to the stream."""

    __slots__ = (
        "_candidates", "_first", "_previous", "_since_s", "expected", "last_packet_s", "refused", "sequence", "source",
        "ssrc",
    )  # fmt: skip

    def __init__(self) -> None:
        self.source: Address | None = None
        """The locked source; None in probation."""
        self.refused = 0
        """Datagrams of other sources, those of a candidate that did not make it included."""
        self.expected: Address | None = None
        """The address in the SDP."""
        self._first: Address | None = None
        self._previous: Address | None = None
        self._candidates: dict[Address, _Candidate] = {}
        self._since_s = 0.0
        self.last_packet_s = 0.0
        """When the locked source last sent; code that delivers its datagrams without `accept` must update it."""
        self.ssrc: int | None = None
        """The SSRC of the locked source's latest datagram passed to `accept`."""
        self.sequence = 0
        """The latest sequence number with that SSRC, which is updated in the same way."""

    @property
    def welcome(self) -> frozenset[Address]:
        """Who may be heard while the source is locked: it, and those that may take its place back."""
        return frozenset(each for each in (self.source, self.expected, self._first) if each is not None)

    @property
    def target(self) -> Address | None:
        """Where to send: the learned source (symmetric RTP, RFC 4961), else the address in the SDP."""
        return self.source or self._previous or self.expected

    def expect(self, remote: Address | None, now: float) -> None:
        """An offer/answer is done and the peer's SDP names `remote`: probation begins."""
        self.expected = remote
        self._first = None
        self._learn(now)

    def _learn(self, now: float) -> None:
        self._previous = self.source or self._previous
        self.source = self.ssrc = None
        self._since_s = now
        for address in tuple(self._candidates):
            self._discard(address)

    def accept(self, datagram: bytes, address: Address, now: float) -> tuple[Arrived, ...]:
        """The datagrams to deliver now: this one, none, or those held back during probation and this one."""
        if address == self.source:
            self.last_packet_s = now
            self._note(datagram)
            return ((datagram, now),)
        if self.source is not None:
            # The latch opens for another source only after a silence. Without that, packets from anywhere could replace
            # a stream while its sender is alive.
            if now - self.last_packet_s < SILENCE_S:
                if address in (self.expected, self._first):
                    return self._try(datagram, address, now)
                if self._goes_on(datagram):
                    candidate = self._candidates.get(address)
                    if candidate is not None and candidate.datagrams[0][1] <= self.last_packet_s:
                        self._discard(address)  # the locked source has sent since
                    return self._try(datagram, address, now)
                self.refused += 1
                return ()
            self._learn(now)
        if address == self.expected:
            return self._lock(address, ((datagram, now),), now)
        if address == self._previous:
            # After a re-INVITE, such as a transfer, packets of the old source are still in flight. If they locked it at
            # once, the new source would be kept out until its probation succeeded.
            if now - self._since_s >= PROBATION_S:
                return self._lock(address, ((datagram, now),), now)
            return ((datagram, now),)
        return self._try(datagram, address, now)

    def _goes_on(self, datagram: bytes) -> bool:
        """Whether this may be a next packet of the locked source's stream."""
        stream = _stream(datagram)
        return stream is not None and stream[0] == self.ssrc and 0 < (stream[1] - self.sequence) & 0xFFFF <= MAX_AHEAD

    def _note(self, datagram: bytes) -> None:
        """Remember SSRC and sequence number of a datagram from the locked source."""
        if (stream := _stream(datagram)) is not None:
            self.ssrc, self.sequence = stream

    def _try(self, datagram: bytes, address: Address, now: float) -> tuple[Arrived, ...]:
        if (stream := _stream(datagram)) is None:
            self.refused += 1
            return ()
        ssrc, sequence = stream
        candidate = self._candidates.get(address)
        if candidate is None or candidate.ssrc != ssrc or sequence != (candidate.sequence + 1) & 0xFFFF:
            self._discard(address)
            if len(self._candidates) >= MAX_CANDIDATES:
                self._discard(min(self._candidates, key=lambda other: len(self._candidates[other].datagrams)))
            candidate = self._candidates[address] = _Candidate(ssrc, sequence)
        candidate.sequence = sequence
        candidate.datagrams.append((datagram, now))
        if len(candidate.datagrams) < SEQUENTIAL:
            return ()
        del self._candidates[address]
        return self._lock(address, tuple(candidate.datagrams), now)

    def _discard(self, address: Address) -> None:
        if candidate := self._candidates.pop(address, None):
            self.refused += len(candidate.datagrams)

    def _lock(self, address: Address, datagrams: tuple[Arrived, ...], now: float) -> tuple[Arrived, ...]:
        if self.source is not None and address not in (self.expected, self._first):
            self._first = self.source  # it has moved, if it does not come back
        self.source, self.last_packet_s = address, now
        self._note(datagrams[-1][0])
        if self._first is None or address == self.expected:
            self._first = address
        self._previous = None
        for other in tuple(self._candidates):
            self._discard(other)
        return datagrams


def _stream(datagram: bytes) -> tuple[int, int] | None:
    """(SSRC, sequence number) of an RTP packet (RFC 3550 section 5.1); None if it is none."""
    if len(datagram) < 12 or datagram[0] >> 6 != 2:
        return None
    return int.from_bytes(datagram[8:12], "big"), int.from_bytes(datagram[2:4], "big")
