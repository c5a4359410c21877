"""A stream of RTP as the field sends it, and the comparison of what became of it with the reference."""

from __future__ import annotations

from random import Random

from audio import Detector, Leg
from lab.media.timeline_reference import Reference, Sent
from mediaworker.replay.link import LinkArrival

SIZE, PTIME_S, TICK_S, EVENT = 160, 0.020, 0.032, 101


class Sender:
    """Writes down a stream. Its numbers never wrap; those on the wire begin where they are about to."""

    def __init__(self, seed: int = 0, *, number: int = 65_500, time: int = 2**32 - 20_000) -> None:
        self.random = Random(seed)
        self.ssrc, self.number, self.time, self.now = 7, number, time, 0.0
        self.sent: list[tuple[float, Sent]] = []

    def put(self, payload: bytes, payload_type: int = 0, *, ticks: int = SIZE) -> None:
        self.sent.append((self.now, Sent(self.ssrc, self.number, self.time, payload, payload_type)))
        self.number += 1
        self.time += ticks
        self.now += PTIME_S

    def talk(self, packets: int) -> None:
        for _ in range(packets):
            self.put(bytes(self.random.randrange(0x7E) for _ in range(SIZE)))

    def pause(self, packets: int) -> None:
        """Silence suppression: one comfort noise packet, then nothing, while the timestamp goes on."""
        self.put(b"\x40", 13)
        self.time += packets * SIZE
        self.now += packets * PTIME_S

    def hold(self, packets: int) -> None:
        """Nothing is sent, and the clock stands still."""
        self.now += packets * PTIME_S

    def transfer(self, packets: int) -> None:
        """Another source goes on."""
        self.now += packets % 20 * PTIME_S
        self.ssrc, self.number, self.time = self.random.getrandbits(32), 30_000, self.random.getrandbits(31)

    def jump(self, packets: int) -> None:
        self.now += packets % 3 * PTIME_S
        self.time += self.random.choice([-8_000_000, -5 * SIZE, 123_456, 2**30, 9 * 8000])

    def restart(self, packets: int) -> None:
        """The sequence begins elsewhere: a gateway has been restarted."""
        self.number += 20_000

    def press(self, packets: int) -> None:
        """A key: all its packets bear the timestamp of its beginning."""
        packets = 5 + packets % 9
        for index in range(packets + 3):
            duration = min(index + 1, packets) * SIZE
            payload = bytes([5, 0x80 * (index >= packets)]) + duration.to_bytes(2, "big")
            self.put(payload, EVENT, ticks=0)
        self.time += (packets + 3) * SIZE

    def switch(self, packets: int) -> None:
        """PCMA without a word in the signalling."""
        for _ in range(packets % 30):
            self.put(bytes([0x55]) * SIZE, 8)


PARTS = ["talk", "pause", "hold", "transfer", "jump", "restart", "press", "switch"]


def compare(leg: Leg, detector: Detector, arrivals: list[LinkArrival[Sent]], *, tail_s: float = 0.5) -> Reference:
    """Give the arrivals to a leg and to the reference, and compare everything that can be seen of both."""
    until = arrivals[-1].at_s + tail_s
    reference = Reference(round(until * 8000) + 60_000, lambda: detector.endpointer.idle(leg.index))
    tick = TICK_S
    for arrival in [*arrivals, None]:
        at_s = until if arrival is None else arrival.at_s
        while tick <= at_s:
            for _ in detector.step(tick):
                pass
            reference.tick(tick)
            assert leg.position == reference.consumed
            tick += TICK_S
        if arrival is not None:
            reference.arrive(arrival.what, at_s)
            leg.receive_rtp(bytes(arrival.what), at_s)
    end = leg.position
    begin = max(0, end - 31 * 8000)
    heard = leg.read(begin, end)
    wrong = next((p for p in range(begin, end) if heard[p - begin] != reference.code[p]), None)
    assert wrong is None, f"position {wrong}: {heard[wrong - begin : wrong - begin + 4]!r}"
    assert leg.lost(begin, end) == reference.lost(begin, end)
    for name in ("packets", "lost_packets", "late", "duplicates", "discarded", "jumps", "ssrc_changes"):
        assert getattr(leg, name) == getattr(reference, name), name
    return reference
