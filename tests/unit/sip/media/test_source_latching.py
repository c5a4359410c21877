"""Which source an RTP port listens to, and when it learns another."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sip.packets import PEER, accept, rtp
from sip.media.latching import MAX_AHEAD, MAX_CANDIDATES, PROBATION_S, SEQUENTIAL, SILENCE_S, SourceLatch

NAT = ("198.51.100.1", 61000)

INTRUDER = ("203.0.113.5", 5555)


def locked(source: tuple[str, int] = PEER) -> SourceLatch:
    latch = SourceLatch()
    latch.expect(PEER, 0.0)
    for sequence in range(SEQUENTIAL):
        accept(latch, rtp(sequence), source, 0.0)
    assert latch.source == source
    return latch


def test_the_address_in_the_sdp_is_heard_at_once() -> None:
    latch = SourceLatch()
    latch.expect(PEER, 0.0)
    assert latch.target == PEER
    assert accept(latch, rtp(1), PEER, 0.0) == (rtp(1),)
    assert latch.source == PEER


def test_another_source_is_learned_after_probation_and_nothing_is_lost() -> None:
    latch = SourceLatch()
    latch.expect(PEER, 0.0)
    heard = [accept(latch, rtp(n), NAT, 0.02 * n) for n in range(65534, 65534 + SEQUENTIAL + 1)]
    assert heard[: SEQUENTIAL - 1] == [()] * (SEQUENTIAL - 1)
    assert heard[SEQUENTIAL - 1] == tuple(rtp(n) for n in range(65534, 65534 + SEQUENTIAL))
    assert len(heard[SEQUENTIAL]) == 1
    assert latch.source == latch.target == NAT
    assert latch.refused == 0


def test_the_address_in_the_sdp_wins_over_a_candidate() -> None:
    latch = SourceLatch()
    latch.expect(PEER, 0.0)
    for sequence in range(SEQUENTIAL - 1):
        assert accept(latch, rtp(sequence), INTRUDER, 0.0) == ()
    assert accept(latch, rtp(9), PEER, 0.1) == (rtp(9),)
    assert accept(latch, rtp(SEQUENTIAL), INTRUDER, 0.1) == ()
    assert latch.source == PEER
    assert latch.refused == SEQUENTIAL


@pytest.mark.parametrize(
    "datagrams",
    [
        [rtp(n, ssrc=n) for n in range(20)],
        [rtp(2 * n) for n in range(20)],
        [b"", b"\x80", b"\x00\x01" + bytes(18), b"\x16\xfe\xfd" + bytes(20)] * 5,
    ],
    ids=["changing ssrc", "gaps", "not rtp"],
)
def test_what_is_not_one_sequential_stream_is_not_learned(datagrams: list[bytes]) -> None:
    latch = SourceLatch()
    latch.expect(None, 0.0)
    assert [accept(latch, datagram, NAT, 0.0) for datagram in datagrams] == [()] * 20
    assert latch.source is None
    assert latch.refused >= 20 - SEQUENTIAL


def test_a_locked_stream_cannot_be_taken_over() -> None:
    latch = locked()
    for n in range(200):
        assert accept(latch, rtp(n, ssrc=7), INTRUDER, 0.01 * n) == ()
        assert accept(latch, rtp(n), PEER, 0.01 * n) == (rtp(n),)
    assert latch.source == PEER
    assert latch.refused == 200


def test_the_locked_source_may_change_its_ssrc() -> None:
    latch = locked()
    assert accept(latch, rtp(7, ssrc=99), PEER, 1.0) == (rtp(7, ssrc=99),)


def test_after_long_silence_the_source_is_learned_anew() -> None:
    latch = locked()
    for n in range(SEQUENTIAL):
        assert accept(latch, rtp(n, ssrc=2), NAT, SILENCE_S / 2) == ()
    heard = [accept(latch, rtp(n, ssrc=2), NAT, SILENCE_S + 0.02 * n) for n in range(SEQUENTIAL)]
    assert len(heard[-1]) == SEQUENTIAL
    assert latch.source == NAT


def test_after_a_reinvite_the_old_source_is_heard_until_the_new_one_comes() -> None:
    latch = locked()
    moved = ("192.0.2.10", 4002)
    latch.expect(moved, 1.0)
    for n in range(10):
        assert accept(latch, rtp(n), PEER, 1.0 + 0.02 * n) == (rtp(n),)
    assert accept(latch, rtp(1, ssrc=2), moved, 1.5) == (rtp(1, ssrc=2),)
    assert latch.source == moved
    assert accept(latch, rtp(10), PEER, 1.5) == ()


def test_after_a_reinvite_without_a_new_source_the_old_one_is_locked_again() -> None:
    latch = locked(NAT)
    latch.expect(PEER, 1.0)
    assert latch.target == NAT
    accept(latch, rtp(1), NAT, 1.0 + PROBATION_S)
    assert latch.source == NAT


OTHER = ("198.51.100.77", 61000)
ON = range(SEQUENTIAL, 2 * SEQUENTIAL)
"""The numbers that follow those of `locked`."""


def moves(latch: SourceLatch, numbers: Iterable[int], address: tuple[str, int], at_s: float, ssrc: int = 1) -> int:
    """How many packets are delivered of those that come from there, 20 ms apart."""
    return sum(len(accept(latch, rtp(n, ssrc), address, at_s + 0.02 * index)) for index, n in enumerate(numbers))


@pytest.mark.parametrize("source", [PEER, NAT])
@pytest.mark.parametrize("lost", [0, 1, MAX_AHEAD - SEQUENTIAL])
def test_a_stream_that_goes_on_from_elsewhere_has_moved(source: tuple[str, int], lost: int) -> None:
    """A NAT has another port for it, or a proxy of media has died: no word is lost, and nothing has to be silent."""
    latch = locked(source)
    assert moves(latch, (n + lost for n in ON), OTHER, 0.02) == SEQUENTIAL
    assert latch.source == latch.target == OTHER and latch.refused == 0
    assert moves(latch, range(200, 210), source, 0.2) == 10 and latch.source == source, "it may take its place back"


def test_it_may_move_again_and_its_numbers_may_begin_anew() -> None:
    latch = SourceLatch()
    latch.expect(PEER, 0.0)
    numbers, at_s = iter(range(65530, 65700)), 0.0
    for source in (PEER, NAT, OTHER, INTRUDER, ("192.0.2.44", 2)):
        assert moves(latch, [next(numbers) for _ in range(10)], source, at_s) == 10
        assert latch.source == source
        at_s += 0.2
    assert latch.refused == 0


@pytest.mark.parametrize(
    ("numbers", "ssrc"),
    [
        (ON, 2), ([0, 1, 2, 3], 1), ([3, 4, 5, 6], 1), (range(SEQUENTIAL + MAX_AHEAD, 110), 1),
        (range(40_000, 40_010), 1), ([4, 6, 8, 10], 1),
    ],
    ids=["another", "repeated", "begun before", "too far ahead", "anywhere", "gaps"],
)  # fmt: skip
def test_a_stream_that_does_not_go_on_is_a_strangers(numbers: Iterable[int], ssrc: int) -> None:
    latch = locked()
    assert moves(latch, numbers, OTHER, 0.02, ssrc) == 0 and latch.source == PEER


def test_who_is_heard_has_not_moved() -> None:
    """Even if the other knows SSRC and numbers: one packet of the stream's source in between is enough."""
    latch = locked()
    for n in range(SEQUENTIAL, 200):
        assert accept(latch, rtp(n + 1), INTRUDER, 0.02 * n) == ()
        if n % 3 == 0:
            accept(latch, rtp(n), PEER, 0.02 * n + 0.01)
        assert latch.source == PEER


def test_who_has_moved_may_be_called_back_by_the_one_before() -> None:
    """Whoever followed the numbers of a stream that had stopped for a moment is no longer heard when it goes on."""
    latch = locked(NAT)
    assert moves(latch, ON, OTHER, 0.02) == SEQUENTIAL
    assert moves(latch, range(12, 16), INTRUDER, 0.2) == SEQUENTIAL and OTHER in latch.welcome
    for n in range(SEQUENTIAL):
        accept(latch, rtp(16 + n), INTRUDER, 0.4)
        accept(latch, rtp(8 + n), OTHER, 0.4)
    assert latch.source == OTHER


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(2, 0xFFFFFFFF)), max_size=60))
def test_nobody_takes_over_without_the_streams_name(guesses: list[tuple[int, int]]) -> None:
    latch = locked()
    for index, (sequence, ssrc) in enumerate(guesses):
        for n in range(SEQUENTIAL + 1):
            assert accept(latch, rtp(sequence + n, ssrc), INTRUDER, 0.01 + index / 100) == ()
    assert latch.source == PEER


arrivals = st.tuples(st.binary(max_size=40), st.sampled_from([PEER, NAT, INTRUDER]), st.floats(0, 3))


@given(st.lists(arrivals, max_size=80))
def test_no_datagram_is_delivered_twice_or_invented(steps: list[tuple[bytes, tuple[str, int], float]]) -> None:
    latch = SourceLatch()
    latch.expect(PEER, 0.0)
    now, sent, heard = 0.0, [], []
    for datagram, address, gap_s in steps:
        now += gap_s
        sent.append(datagram)
        heard += accept(latch, datagram, address, now)
        assert latch.refused + len(heard) <= len(sent)
    for datagram in heard:
        sent.remove(datagram)


def test_a_flood_of_strangers_does_not_keep_the_caller_out() -> None:
    latch = SourceLatch()
    latch.expect(None, 0.0)
    for sequence in range(SEQUENTIAL - 1):
        assert accept(latch, rtp(sequence), NAT, 0.0) == ()
    for port in range(MAX_CANDIDATES + 5):
        assert accept(latch, rtp(0, ssrc=port), ("203.0.113.5", port), 0.0) == ()
    assert latch.refused == 6, "each beyond the limit took the place of one that had come no further"
    assert len(accept(latch, rtp(SEQUENTIAL - 1), NAT, 0.0)) == SEQUENTIAL
    assert latch.source == NAT and latch.refused == MAX_CANDIDATES + 5


def test_the_shortest_packet_is_a_header() -> None:
    latch = SourceLatch()
    latch.expect(None, 0.0)
    for sequence in range(SEQUENTIAL):
        accept(latch, rtp(sequence)[:11], NAT, 0.0)
    assert latch.source is None and latch.refused == SEQUENTIAL
    for sequence in range(SEQUENTIAL):
        accept(latch, rtp(sequence)[:12], NAT, 0.0)
    assert latch.source == NAT


def test_the_address_in_the_sdp_takes_its_place_back() -> None:
    latch = locked(NAT)
    assert latch.welcome == {NAT, PEER} and latch.expected == PEER
    for sequence in range(SEQUENTIAL - 1):
        assert accept(latch, rtp(sequence, ssrc=2), PEER, 0.1) == ()
        assert accept(latch, rtp(SEQUENTIAL + sequence), NAT, 0.1) != ()
    assert len(accept(latch, rtp(SEQUENTIAL - 1, ssrc=2), PEER, 0.1)) == SEQUENTIAL
    assert latch.source == PEER and latch.welcome == {PEER}
    assert accept(latch, rtp(50), NAT, 0.2) == () and latch.refused == 1


def test_the_first_source_takes_its_place_back_from_one_that_came_in_a_silence() -> None:
    latch = locked(NAT)
    for sequence in range(SEQUENTIAL):
        accept(latch, rtp(sequence, ssrc=9), INTRUDER, SILENCE_S)
    assert latch.source == INTRUDER and latch.welcome == {INTRUDER, NAT, PEER}
    for sequence in range(SEQUENTIAL):
        accept(latch, rtp(sequence), NAT, SILENCE_S + 0.1)
    assert latch.source == NAT


def test_a_new_offer_begins_probation_and_forgets_candidates() -> None:
    latch = SourceLatch()
    assert latch.target is None and latch.welcome == frozenset()
    latch.expect(PEER, 0.0)
    for sequence in range(SEQUENTIAL - 1):
        accept(latch, rtp(sequence), NAT, 0.0)
    latch.expect(PEER, 1.0)
    assert latch.refused == SEQUENTIAL - 1
    assert accept(latch, rtp(SEQUENTIAL - 1), NAT, 1.0) == (), "counted from the beginning"
    assert accept(latch, rtp(1), PEER, 1.5) != () and latch.last_packet_s == 1.5


def test_the_locked_source_is_heard_as_long_as_it_speaks() -> None:
    latch = locked()
    for tick in range(1, 10):
        now = tick * SILENCE_S / 2
        assert accept(latch, rtp(tick), PEER, now) == (rtp(tick),) and latch.last_packet_s == now
        for sequence in range(SEQUENTIAL):
            assert accept(latch, rtp(sequence), INTRUDER, now) == ()
    assert latch.source == PEER
