"""An RTP stream's clock alone: where each packet is placed, and whom it believes."""

from __future__ import annotations

from audio.rtp.clock import MAX_DROPOUT, PacketArrival, PlacedPayload, RtpClock

SIZE, PTIME_S = 160, 0.020


def arrival(number: int, now: float | None = None, *, first: int = 0, time: int = 0, ssrc: int = 7) -> PacketArrival:
    """The packet of this number, of a stream whose numbers begin at `first` and whose timestamps at `time`."""
    when = number * PTIME_S if now is None else now
    return PacketArrival(first + number & 0xFFFF, time + number * SIZE & 0xFFFFFFFF, ssrc, bytes([number]) * SIZE, when)


def heard(clock: RtpClock, *arrivals: PacketArrival) -> list[PlacedPayload]:
    return [placed for each in arrivals for placed in clock.receive(each, 0, lambda: False)]


def places(placed: list[PlacedPayload]) -> list[tuple[int, int, bool]]:
    """(position in packets, which packet, whether something is missing before)."""
    return [(each.position // SIZE, bytes(each.payload)[0], each.lost) for each in placed]


def test_a_packet_that_was_overtaken_has_its_place_once() -> None:
    clock = RtpClock()
    late = arrival(1, 0.050)
    found = heard(clock, arrival(0), arrival(2), late, late, arrival(3))
    assert places(found) == [(0, 0, False), (2, 2, True), (1, 1, True), (3, 3, False)]
    assert (clock.packets, clock.lost, clock.duplicates) == (4, 0, 1)


def test_a_jump_of_the_numbers_is_believed_once_two_packets_fit() -> None:
    """The first of them is kept, and what lies between is loss only where the numbers can say so."""
    for ahead, lost in ((MAX_DROPOUT + 7, 0), (-200, 0), (50, 50)):
        clock = RtpClock()
        heard(clock, *(arrival(number) for number in range(10)))
        jumped = {"first": ahead, "time": 10**6}
        assert heard(clock, arrival(10, 0.3, **jumped)) == []
        assert places(heard(clock, arrival(11, 0.32, **jumped))) == [(15, 10, False), (16, 11, False)]
        assert (clock.jumps, clock.ssrc_changes, clock.lost, clock.discarded) == (1, 0, lost, 0)


def test_another_stream_takes_over_and_may_pause() -> None:
    clock = RtpClock()
    heard(clock, *(arrival(number) for number in range(10)))
    other = {"first": 500, "time": 77, "ssrc": 8}
    assert heard(clock, arrival(10, 0.30, **other)) == []
    assert len(heard(clock, arrival(11, 0.32, **other))) == 2
    assert (clock.ssrc, clock.ssrc_changes, clock.jumps, clock.discarded) == (8, 1, 0, 0)
    # Its timestamp goes on by 0.2 s without a packet in between: it was silent, and is no stranger for that.
    paused = arrival(12, 0.54, **other)._replace(timestamp=77 + 22 * SIZE)
    assert places(heard(clock, paused)) == [(27, 12, False)]


def test_one_who_guesses_beside_a_living_stream_is_not_heard() -> None:
    clock = RtpClock()
    for number in range(20):
        assert len(heard(clock, arrival(number))) == 1
        assert heard(clock, arrival(number, number * PTIME_S + 0.001, first=9000, time=5, ssrc=9)) == []
    assert (clock.packets, clock.discarded, clock.ssrc_changes) == (20, 20, 0)


def test_numbers_wrap() -> None:
    clock = RtpClock()
    found = heard(clock, *(arrival(number, first=65_533, time=2**32 - 2 * SIZE) for number in range(6)))
    assert places(found) == [(number, number, False) for number in range(6)]
