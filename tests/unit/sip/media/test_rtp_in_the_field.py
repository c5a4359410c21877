"""RTP in the field: whatever the network and the far end do, the timeline is exact to the sample.

Streams are carried over a simulated link with faults, and given at the same moments to a leg and to a plain reference
of what a leg has to do (`lab/media/timeline_reference.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import dropwhile
from operator import attrgetter
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec, Detector, Digit, Leg
from audio.legs.timeline import MAX_GAPS, MAX_SILENCES
from config import Endpointing
from lab.media.timeline_reference import Sent
from lab.sip.packets import accept
from lab.sip.rtp_field import EVENT, PARTS, PTIME_S, SIZE, TICK_S, Sender, compare
from mediaworker.ingress.sip.calls import SipIngress
from mediaworker.ingress.sip.joining import Seat
from mediaworker.replay.link import Faults, Link
from sip.media.latching import SourceLatch


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector()


@pytest.fixture
def opened(detector: Detector) -> Iterator[Callable[..., Leg]]:
    legs: list[Leg] = []

    def open_leg(codec: Codec = Codec.PCMU, transport: Any = "rtp") -> Leg:
        legs.append(detector.open(codec, Endpointing(), transport=transport, telephone_event=EVENT))
        return legs[-1]

    yield open_leg
    for leg in legs:
        detector.close(leg)


FAULTS = st.builds(
    Faults,
    loss=st.sampled_from([0, 0, 0.01, 0.05, 0.3]),
    burst=st.sampled_from([1, 1, 3, 12]),
    jitter_ms=st.sampled_from([0, 0, 10, 59, 120, 200]),
    reorder=st.sampled_from([0, 0.1]),
    duplicate=st.sampled_from([0, 0.1]),
    drift_ppm=st.sampled_from([0, 200, -200, 5000, -5000]),
    seed=st.integers(0, 2**32),
)


@given(FAULTS, st.lists(st.tuples(st.sampled_from(PARTS), st.integers(1, 60)), max_size=5), st.integers(0, 2**32))
def test_whatever_happens_the_timeline_is_the_references(
    detector: Detector, faults: Faults, parts: list[tuple[str, int]], seed: int
) -> None:
    sender = Sender(seed)
    sender.talk(20)
    for part, packets in parts:
        getattr(sender, part)(packets)
        sender.talk(20 + packets)
    leg = detector.open(Codec.PCMU, Endpointing(), transport="rtp", telephone_event=EVENT)
    try:
        compare(leg, detector, list(Link[Sent](faults).carry(sender.sent)))
    finally:
        detector.close(leg)


@pytest.mark.parametrize("loss", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("burst", [1, 8])
@pytest.mark.parametrize("jitter_ms", [0, 60, 200])
def test_loss_jitter_and_reordering_together(
    detector: Detector, opened: Callable[..., Leg], loss: float, burst: float, jitter_ms: float
) -> None:
    """What was lost on the way is reported exactly, and all that came in time is there."""
    sender = Sender(11)
    sender.talk(600)
    faults = Faults(
        loss=loss, burst=burst, jitter_ms=jitter_ms, reorder=0.05, duplicate=0.05, seed=round(100 * loss + burst)
    )
    arrivals = list(Link[Sent](faults).carry(sender.sent))
    leg = opened()
    compare(leg, detector, arrivals)
    numbers = {arrival.what.number for arrival in arrivals}
    first = arrivals[0].what.number
    came = sum(number >= first for number in numbers)  # what the very first has overtaken belongs nowhere
    assert (leg.packets, leg.lost_packets) == (came, max(numbers) + 1 - first - came)
    if jitter_ms < 60:
        assert leg.late <= len(arrivals) - len(numbers) and leg.jumps == 0


@pytest.mark.parametrize("copied", [False, True], ids=["own SSRC", "copied SSRC"])
@pytest.mark.parametrize("faults", [Faults(), Faults(loss=0.1, burst=3, jitter_ms=25, reorder=0.05, seed=4)])
def test_what_is_injected_changes_nothing(
    detector: Detector, opened: Callable[..., Leg], faults: Faults, copied: bool
) -> None:
    """A stranger on the very path, past the source latch, sends 50 packets for each of the stream's."""

    def stranger(beside: Sent, random: Random) -> Sent:
        ssrc = beside.ssrc if copied else random.choice([random.getrandbits(32), 1234])
        kind = random.choice([0, 0, 0, 13, EVENT, 8])
        return Sent(ssrc, random.getrandbits(16), random.getrandbits(32), b"\x11" * random.choice([0, 4, 160]), kind)

    sender = Sender(5)
    sender.talk(100)
    sender.pause(30)
    sender.talk(100)
    heard = []
    for inject in (0, 50):
        leg, tick = opened(), TICK_S
        arrivals = Link[Sent](replace(faults, inject=inject), stranger=stranger).carry(sender.sent)
        for at_s, what, _ in dropwhile(attrgetter("foreign"), arrivals):  # a call's first packet is believed
            while tick <= at_s:
                for _ in detector.step(tick):
                    pass
                tick += TICK_S
            if what.payload_type != EVENT or not copied:  # a forged digit is a digit: nothing tells it from a true one
                leg.receive_rtp(bytes(what), at_s)
        for _ in detector.step(sender.now + 1):
            pass
        length = 230 * SIZE
        heard.append((leg.read(0, length), leg.lost(0, length), leg.packets, leg.lost_packets, leg.late, leg.jumps))
    assert heard[0] == heard[1]
    assert leg.discarded > 3000


def test_a_stream_is_believed_beside_a_flood_that_was_first(detector: Detector, opened: Callable[..., Leg]) -> None:
    sender, random, leg = Sender(5), Random(1), opened()
    sender.talk(100)
    for at_s, what in sender.sent:
        for index in range(50):
            ssrc = what.ssrc if index % 2 else random.getrandbits(32)
            forged = Sent(ssrc, random.getrandbits(16), random.getrandbits(32), b"\x11" * 160)
            leg.receive_rtp(bytes(forged), at_s)
        leg.receive_rtp(bytes(what), at_s)
    detector.finish(leg, "hangup")
    heard = leg.read(0, leg.position)
    assert heard.count(b"".join(what.payload for _, what in sender.sent)) == 1
    assert heard.count(0x11) < 320 and leg.packets == 101


def test_a_stream_that_is_alive_is_not_taken_over(detector: Detector, opened: Callable[..., Leg]) -> None:
    """A stranger who sends a proper stream of its own, as fast as it likes; one whose stream follows is believed."""
    sender, other = Sender(5), Sender(6, number=9, time=9)
    sender.talk(100)
    other.ssrc = 99
    other.talk(3000)
    leg, number = opened(), 0
    for at_s, what in sender.sent:
        leg.receive_rtp(bytes(what), at_s)
        for _ in range(20):
            leg.receive_rtp(bytes(other.sent[number][1]), at_s + 0.018)
            number += 1
        for _ in detector.step(at_s):
            pass
    detector.finish(leg, "hangup")
    assert leg.read(0, 100 * SIZE) == b"".join(what.payload for _, what in sender.sent)
    assert (leg.packets, leg.ssrc_changes, leg.discarded) == (100, 0, 2000)


@pytest.mark.parametrize("named", [True, False], ids=["address in the SDP", "behind NAT"])
def test_the_latch_keeps_a_flood_out(detector: Detector, opened: Callable[..., Leg], named: bool) -> None:
    """Strangers with streams of their own, before the call's first packet, beside it, and in its hold."""
    caller, signalled = ("198.51.100.7", 4000), ("198.51.100.7", 4000) if named else ("10.0.0.7", 4000)
    latch, leg, sender = SourceLatch(), opened(), Sender(8)
    sender.talk(100)
    sender.now += 60
    sender.time += 3000 * SIZE
    sender.talk(100)
    forged = Sender(9)
    forged.ssrc = 7  # they know it
    forged.talk(12_000)
    events = [(at_s + 0.1, caller, bytes(what)) for at_s, what in sender.sent]
    # Each stranger's packets come with gaps in their numbers: 50 together for each of the caller's.
    flood = [(n * 0.0053, ("203.0.113.9", 5000 + n % 50), bytes(each)) for n, (_, each) in enumerate(forged.sent)]
    latch.expect(signalled, 0.0)
    heard: list[bytes] = []
    for at_s, source, datagram in sorted(events + flood, key=lambda event: event[0]):
        for accepted in accept(latch, datagram, source, at_s):
            heard.append(accepted)
            leg.receive_rtp(accepted, at_s)
    assert heard == [datagram for _, _, datagram in events]
    assert latch.refused + sum(len(each.datagrams) for each in latch._candidates.values()) == len(flood)


@pytest.mark.parametrize("named", [True, False])
def test_the_caller_takes_its_place_back(named: bool) -> None:
    """A stranger's proper stream is learned while the caller is silent, and not for longer."""
    caller, stranger = ("198.51.100.7", 4000), ("203.0.113.9", 5000)
    latch, own, foreign = SourceLatch(), Sender(1), Sender(2)
    own.talk(60)
    foreign.ssrc = 66
    foreign.talk(2000)
    latch.expect(caller if named else ("10.0.0.7", 4000), 0.0)
    if not named:  # behind NAT it must have been heard once
        for _, what in own.sent[:10]:
            accept(latch, bytes(what), caller, 0.0)
        assert latch.source == caller
    for index in range(300):
        accept(latch, bytes(foreign.sent[index][1]), stranger, 10 + index * PTIME_S)
    assert latch.source == stranger
    heard: list[bytes] = []
    for index in range(10, 60):
        at_s = 16 + index * PTIME_S
        heard += accept(latch, bytes(own.sent[index][1]), caller, at_s)
        assert not accept(latch, bytes(foreign.sent[300 + index][1]), stranger, at_s) or index < 13
    assert heard == [bytes(what) for _, what in own.sent[10:]]


def test_minutes_of_hold_are_silence_of_that_length(detector: Detector, opened: Callable[..., Leg]) -> None:
    sender, leg = Sender(2), opened()
    sender.talk(50)
    sender.time += 180 * 8000
    sender.now += 180
    sender.talk(50)
    for at_s, what in sender.sent:
        while leg.position < (at_s - 1) * 8000:
            for _ in detector.step(at_s):
                pass
        leg.receive_rtp(bytes(what), at_s)
    detector.finish(leg, "hangup")
    begin = 50 * SIZE + 180 * 8000
    assert leg.read(begin, begin + 50 * SIZE) == b"".join(what.payload for _, what in sender.sent[50:])
    assert leg.read(begin - 20 * 8000, begin) == b"\xff" * 20 * 8000
    assert leg.lost(begin - 20 * 8000, begin) == 0
    assert (leg.jumps, leg.late, leg.lost_packets) == (0, 0, 0)


@pytest.mark.parametrize("announced", [True, False], ids=["re-INVITE", "no word"])
def test_a_payload_switch_under_loss(detector: Detector, opened: Callable[..., Leg], announced: bool) -> None:
    """PCMU to PCMA. With a new description every packet is heard; without one it is silence, counted and no loss."""
    sender, leg = Sender(13), opened()
    sender.talk(100)
    codes = [bytes(sender.random.randrange(0x7E) for _ in range(SIZE)) for _ in range(100)]
    for each in codes:
        sender.put(each, 8)
    arrivals = list(Link[Sent](Faults(loss=0.1, jitter_ms=30, seed=1)).carry(sender.sent))
    tick, changed = TICK_S, not announced
    first = sender.sent[0][1].number
    for at_s, what, _ in arrivals:
        while tick <= at_s:
            for _ in detector.step(tick):
                pass
            tick += TICK_S
        if not changed and at_s >= 100 * PTIME_S + 0.06:
            for _ in detector.step(at_s):
                pass
            detector.change(leg, Codec.PCMA, EVENT)
            changed = True
        leg.receive_rtp(bytes(what), at_s)
    detector.finish(leg, "hangup")
    came = {arrival.what.number - first for arrival in arrivals}
    if not announced:
        assert leg.wrong_payload == sum(number >= 100 for number in came)
        assert leg.lost_packets == max(came) + 1 - len(came)
        assert leg.read(100 * SIZE, leg.position) == b"\xff" * (leg.position - 100 * SIZE)
        return
    heard = leg.read(100 * SIZE, leg.position)
    later = sorted(number - 100 for number in came if number >= 110)
    shift = heard.find(codes[later[0]]) - later[0] * SIZE  # the stream goes on at its arrival
    assert -480 < shift < 480
    for number in range(later[0], 100):
        piece = heard[shift + number * SIZE : shift + (number + 1) * SIZE]
        assert piece == (codes[number] if number in later else b"\xd5" * SIZE), number


def test_a_stream_in_shreds_costs_bounded_memory_and_time(detector: Detector, opened: Callable[..., Leg]) -> None:
    """Every other packet of one sample: as many gaps as there are packets."""
    leg, step = opened(), 0
    for number in range(24_000):
        now = number * 2 / 8000
        leg.receive_rtp(bytes(Sent(7, number * 2, number * 2, b"\x11")), now)
        if now > step * 2:  # the tick is late, too
            step += 1
            for _ in detector.step(now):
                pass
    timeline = leg._timeline
    assert len(timeline.gaps) <= MAX_GAPS and 1000 < len(timeline.silences) <= MAX_SILENCES + MAX_GAPS
    assert leg.lost(0, leg.position) >= leg.position // 2
    leg.receive_rtp(bytes(Sent(7, 48_000, 48_000, b"\x22" * 160)), 6.0)
    assert leg.end == 48_160  # what comes after goes where it belongs


def test_the_first_chunks_may_overtake_each_other(detector: Detector, opened: Callable[..., Leg]) -> None:
    """A stream whose first chunk comes third: nothing is lost, and nothing before it counts as lost."""
    audio = [bytes([number + 1]) * SIZE for number in range(10)]
    for first in (0, 40, 1000):
        leg = opened(transport="stream")
        leg.anchor(0.0)
        for slot, number in enumerate([2, 0, 1, 3, 4, 5, 6, 7, 8, 9]):
            leg.receive_chunk(first + number * SIZE, audio[number], slot * PTIME_S)
            for _ in detector.step(slot * PTIME_S):
                pass
        detector.finish(leg, "flush")
        assert leg.read(first, first + 10 * SIZE) == b"".join(audio)
        assert (leg.late, leg.duplicates, leg.lost(0, leg.position)) == (0, 0, 0)


def test_a_first_chunk_that_is_late_does_not_tear_the_window(detector: Detector, opened: Callable[..., Leg]) -> None:
    leg = opened(transport="stream")
    leg.receive_chunk(80, b"\x01" * SIZE, 0.0)
    for _ in detector.step(0.5):
        pass
    leg.receive_chunk(80 + SIZE, b"\x02" * SIZE, 0.5)  # half a second, but no loss: TCP was slow
    detector.finish(leg, "flush")
    assert leg.read(80, 80 + 2 * SIZE) == b"\x01" * SIZE + b"\x02" * SIZE
    assert leg.lost(0, leg.position) == 0


def test_nobody_dials_faster_than_twenty_digits_a_second(detector: Detector, opened: Callable[..., Leg]) -> None:
    leg, digits = opened(), 0
    for number in range(1000):
        event = bytes([number % 10, 0x80, 0, 160])
        leg.receive_rtp(bytes(Sent(7, number, 800 + number, event, EVENT)), number * 0.004)
        for detections in detector.step(number * 0.004):
            digits += sum(isinstance(detection, Digit) for detection in detections)
    assert digits == 40 + 4 * 20 - 1
    assert leg.refused_digits == 1000 - digits
    event = bytes([5, 0x80, 0, 160])
    leg.receive_rtp(bytes(Sent(7, 1000, 90_000, event, EVENT)), 20.0)
    assert [d.digit for found in detector.step(20.0) for d in found if isinstance(d, Digit)] == ["5"]


def test_nobody_dials_faster_by_sip_info_either() -> None:
    class Dialled:
        members, elapsed, digits = {"main": None}, 0, 0

        def elapsed_ms(self) -> int:
            self.elapsed += 4
            return self.elapsed

        def dtmf(self, leg: str, digit: str, duration_ms: int) -> None:
            self.digits += leg == "main"

        def end(self, reason: str) -> None:
            pass

    call, sip, ingress = Dialled(), object(), SipIngress(cast(Any, None), refusal=lambda: None)
    ingress._calls[cast(Any, sip)] = Seat(cast(Any, sip), cast(Any, call))
    for _ in range(1000):
        ingress.on_dtmf(cast(Any, sip), "5", 100)
    assert call.digits == 40 + 4 * 20 - 1
    ingress.on_end(cast(Any, sip), "hangup")
    assert not len(ingress)
