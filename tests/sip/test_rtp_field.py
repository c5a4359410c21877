"""RTP as it is in the field: whatever the network and the far end do, the timeline is exact to the sample.

Streams are written down as their sender means them, carried over a simulated link with faults, and given at the same
moments to a leg and to a plain reference of what a leg has to do (`lab/media/timeline_reference.py`).
"""

from __future__ import annotations

import contextlib
import socket
import sys
from random import Random

import numpy as np
import pytest

from audio import Codec, Detector
from audio.codecs import g711
from audio.rtp.clock import PacketArrival as AudioArrival
from audio.rtp.clock import RtpClock
from config import Endpointing
from lab.media.speech import speech
from lab.media.timeline_reference import Sent
from lab.network.ports import ports
from lab.sip.packets import accept
from lab.sip.rtp_field import EVENT, PARTS, PTIME_S, SIZE, TICK_S, Sender, compare
from mediaworker.replay.link import Faults, Link
from sip.media.latching import SourceLatch
from sip.media.ports import RtpPorts
from sip.protocol.errors import PortsExhausted


def test_a_reused_port_brings_nothing_of_the_call_before() -> None:
    """Real sockets. The peer of a call that is over sends on and on; the next call on its port does not hear it."""
    (port,) = ports(1)
    port -= port % 2
    pool = RtpPorts(port, port, host="127.0.0.1", quarantine_s=10.0)
    udp = socket.AF_INET, socket.SOCK_DGRAM
    with socket.socket(*udp) as old, socket.socket(*udp) as new:
        old.bind(("127.0.0.1", 0))
        new.bind(("127.0.0.1", 0))
        stale, fresh = Sender(3), Sender(4)
        stale.talk(80)
        fresh.ssrc = 8
        fresh.talk(20)
        sends = iter(stale.sent)

        def send_stale(count: int) -> None:
            for _ in range(count):
                with contextlib.suppress(ConnectionRefusedError):  # the port is closed, and says so
                    old.sendto(bytes(next(sends)[1]), ("127.0.0.1", port))

        bound = pool.open(0.0)
        send_stale(20)  # some of it is still in the socket when the call ends
        pool.close(bound, 5.0)
        send_stale(20)
        with pytest.raises(PortsExhausted):
            pool.open(14.9)
        send_stale(20)
        bound = pool.open(15.1)
        latch = SourceLatch()
        latch.expect(new.getsockname(), 15.1)
        send_stale(3)
        for _, what in fresh.sent:
            new.sendto(bytes(what), ("127.0.0.1", port))
            send_stale(int(what.number % 2))
        heard: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram, address = bound.recvfrom(2048)
                heard += accept(latch, datagram, address, 15.2)
        assert heard == [bytes(what) for _, what in fresh.sent]
        assert latch.refused == 13
        pool.close(bound, 20.0)


@pytest.mark.parametrize("ppm", [200, -200])
def test_half_an_hour_of_drift(ppm: float) -> None:
    """0.36 s of drift: moved in the pauses alone, never far off the clock, and nothing piles up."""
    clock, random = RtpClock(), Random(3)
    consumed, speaking_until, moved_in_speech, moves, worst, previous = 0, 0.0, 0, 0, 0.0, 0
    for number in range(1800 * 50):
        now = number * PTIME_S / (1 + ppm / 1e6) + random.random() * 0.010
        if number % 500 == 0:  # ten seconds: up to nine of speech, and a pause
            speaking_until = now + random.uniform(2, 9)
        consumed = max(consumed, int((now - 0.06) * 8000) // 256 * 256)
        still = now > speaking_until
        packet = AudioArrival(number & 0xFFFF, number * SIZE & 0xFFFFFFFF, 7, b"\xff" * SIZE, now)
        (placed,) = clock.receive(packet, consumed, lambda still=still: still)
        if number and placed.position != previous + SIZE:
            moves += 1
            moved_in_speech += not still
        previous = placed.position
        worst = max(worst, abs(placed.position / 8000 - now))
        assert len(clock._missing) + len(clock._runs) == 0
    assert (clock.lost, clock.jumps, clock.discarded, moved_in_speech) == (0, 0, 0, 0)
    assert 5 < moves < 50
    assert worst < 0.060


def random_calls(detector: Detector, count: int) -> None:
    """What hypothesis does, for as long as one likes."""
    for seed in range(count):
        random, sender = Random(seed), Sender(seed)
        faults = Faults(
            loss=random.choice([0, 0, 0.01, 0.05, 0.3]), burst=random.choice([1, 1, 3, 12]),
            jitter_ms=random.choice([0, 0, 10, 59, 120, 200]), reorder=random.choice([0, 0.1]),
            duplicate=random.choice([0, 0.1]), drift_ppm=random.choice([0, 200, -200, 5000, -5000]), seed=seed,
        )  # fmt: skip
        sender.talk(20)
        for _ in range(random.randrange(6)):
            packets = random.randint(1, 60)
            getattr(sender, random.choice(PARTS))(packets)
            sender.talk(20 + packets)
        leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp", telephone_event=EVENT)
        compare(leg, detector, list(Link[Sent](faults).carry(sender.sent)))
        detector.close(leg)


def drift(detector: Detector, hours: float) -> str:
    """Recorded speech and its pauses from two senders, 200 ppm fast and slow, through the whole detector."""
    codes = g711.ulaw_encode(np.concatenate([speech("demo-congrats"), np.zeros(16_000, np.int16)]))
    pieces = [codes[start : start + SIZE] for start in range(0, len(codes) - SIZE + 1, SIZE)]
    loud = [int(np.abs(g711.ulaw_decode(piece).astype(int)).max()) for piece in pieces]
    legs = {ppm: detector.open(Codec.PCMU, Endpointing(), transport="rtp") for ppm in (200, -200)}
    sent, moves, worst, loudest, tick = dict.fromkeys(legs, 0), dict.fromkeys(legs, 0), 0.0, 0, TICK_S
    while tick < hours * 3600:
        for ppm, leg in legs.items():
            while (at_s := sent[ppm] * PTIME_S / (1 + ppm / 1e6)) <= tick:
                number = sent[ppm]
                payload, before = pieces[number % len(pieces)], leg.end
                leg.receive_rtp(bytes(Sent(7, number, number * SIZE, payload)), at_s)
                if number and leg.end != before + SIZE:
                    moves[ppm] += 1
                    loudest = max(loudest, loud[number % len(pieces)])
                worst = max(worst, abs(leg.end / 8000 - PTIME_S - at_s))
                sent[ppm] += 1
        for _ in detector.step(tick):
            pass
        tick += TICK_S
    for leg in legs.values():
        assert (leg.late, leg.jumps, leg.lost_packets, leg.discarded) == (0, 0, 0, 0)
        assert len(leg._timeline.silences) < 100 and not leg._timeline.gaps
    return f"{hours:g} h: moves {moves}, at most {1000 * worst:.0f} ms off, loudest sample where moved {loudest}"


if __name__ == "__main__":
    random_calls(Detector(), int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    if len(sys.argv) > 2:
        sys.stdout.write(drift(Detector(), float(sys.argv[2])) + "\n")
