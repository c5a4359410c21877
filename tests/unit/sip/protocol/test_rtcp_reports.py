"""RTCP: what our reports say, and what is believed of the peer's."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sip.packets import block
from sip.protocol.rtcp import BYE, DESCRIPTION, RECEIVER, SENDER, Reception, Reporter, Sent, _packets

NOTHING = Sent(0, 0, 0)


def reporter() -> Reporter:
    return Reporter(0x11223344, "us", 0.0, lambda low, high: (low + high) / 2)


def test_the_first_bytes_of_a_report() -> None:
    ours = reporter()
    assert ours.report(0.0, None, NOTHING) == bytes.fromhex("80c90001 11223344 81ca0003 11223344 01027573 00000000")
    report = ours.report(0.5, Reception(7, 65535, 0, 80), Sent(50, 8000, 2**32 + 5), bye=True)
    assert report[:28] == bytes.fromhex("81c8000c 11223344 83aa7e80 80000000 00000005 00000032 00001f40")
    assert [kind for kind, _, _ in _packets(report)] == [SENDER, DESCRIPTION, BYE]
    assert ours.report(1.0, None, Sent(50, 8000, 5))[1] == RECEIVER, "nothing sent since"


def test_loss_is_of_the_time_since_the_last_report_and_sequence_numbers_go_round() -> None:
    ours = reporter()
    assert block(ours.report(0.0, Reception(7, 65500, 3, 0), NOTHING))[:4] == (7, 0.0, 3, 65500)
    assert block(ours.report(5.0, Reception(7, 4, 13, 9), NOTHING))[:5] == (7, 0.25, 13, 65540, 9)
    assert block(ours.report(10.0, Reception(7, 4, 13, 9), NOTHING))[:4] == (7, 0.0, 13, 65540), "nothing came"
    assert block(ours.report(15.0, Reception(7, 44, 12, 9), NOTHING))[:4] == (7, 0.0, 12, 65580), "late, not lost"
    assert block(ours.report(20.0, Reception(8, 100, 12, 9), NOTHING))[:4] == (8, 0.0, 12, 100), "another source"


def test_what_the_sender_said_last_is_sent_back_with_its_age() -> None:
    ours, theirs = reporter(), Reporter(7, "them", 0.0)
    assert ours.receive(theirs.report(1000.25, None, Sent(1, 160, 0)), 1000.5)
    answer = ours.report(1003.0, Reception(7, 1, 0, 0), Sent(1, 160, 0))
    _, _, _, _, _, middle, delay = block(answer, 28)
    assert (middle & 0xFFFF, delay) == (0x4000, int(2.5 * 65536))
    assert theirs.receive(answer, 1003.35)
    assert theirs.round_trip_s == pytest.approx(0.6, abs=0.001), "there 0.25 s and back 0.35 s"
    assert block(ours.report(1004.0, Reception(8, 1, 0, 0), Sent(1, 160, 0)))[5:] == (0, 0), "that was another source"


def test_a_peer_that_sends_nothing_tells_the_round_trip_as_well() -> None:
    ours, theirs = reporter(), Reporter(7, "them", 0.0)
    assert theirs.receive(ours.report(1000.0, None, Sent(1, 160, 0)), 1000.25)
    answer = theirs.report(1001.25, Reception(0x11223344, 1, 0, 0), NOTHING)
    assert answer[1] == RECEIVER and ours.receive(answer, 1001.5)
    assert ours.round_trip_s == pytest.approx(0.5, abs=0.001)
    # A mixer reports on the 31 sources that it receives, and on us last.
    stranger = theirs.report(1002.0, Reception(8, 1, 0, 0), NOTHING)[8:32]
    mixed = struct.pack("!BBH", 0x80 | 31, RECEIVER, 1 + 6 * 31) + answer[4:8] + 30 * stranger + answer[8:32]
    assert ours.receive(mixed, 1001.75)
    assert ours.round_trip_s == pytest.approx(0.75, abs=0.001)


def test_reports_come_every_few_seconds() -> None:
    ours = reporter()
    assert [second for second in range(20) if ours.due(second)] == [3, 8, 13, 18]


@given(st.binary(max_size=200))
def test_any_bytes_are_rtcp_or_not(data: bytes) -> None:
    assert isinstance(reporter().receive(data, 0.0), bool)


PACKETS = st.lists(st.tuples(st.integers(192, 223), st.integers(0, 31), st.binary(max_size=120)), max_size=5)


@given(PACKETS, st.integers(0, 3))
def test_any_packets_are_rtcp_or_not(packets: list[tuple[int, int, bytes]], cut: int) -> None:
    parts = [
        struct.pack("!BBH", 0x80 | count, kind, len(body) // 4) + body[: len(body) // 4 * 4]
        for kind, count, body in packets
    ]
    data = b"".join(parts)
    ours = reporter()
    ours.receive(data[: len(data) - cut], 0.0)
    ours.report(5.0, Reception(1, 1, 0, 0), NOTHING)


def test_a_round_trip_counts_the_fractions_of_a_second_and_never_backwards() -> None:
    ours = reporter()
    base = 1000.0 - 0.0
    middle = round((base + 2_208_988_800) * 65536) & 0xFFFFFFFF
    ours._reported_on((0x11223344, 0, 0, 0, middle, 65536 // 4), base + 1.0)
    assert ours.round_trip_s == pytest.approx(0.75, abs=0.001)
    ours._reported_on((0x11223344, 0, 0, 0, middle, 65536 * 2), base + 1.0)
    assert ours.round_trip_s == 0.0, "the peer's delay is longer than the way there and back"
    ours._reported_on((7, 0, 0, 0, middle, 0), base + 3.0)
    ours._reported_on((0x11223344, 0, 0, 0, 0, 0), base + 3.0)
    assert ours.round_trip_s == 0.0, "about another source, or before it has heard from us"


def test_a_report_says_so_when_everything_is_lost() -> None:
    ours = reporter()
    ours.report(0.0, Reception(7, 10, 0, 0), NOTHING)
    assert block(ours.report(5.0, Reception(7, 20, 10_000_000, 0), NOTHING))[:3] == (7, 255 / 256, 0x7FFFFF)


def test_a_packet_out_of_order_takes_nothing_back() -> None:
    ours = reporter()
    ours.report(0.0, Reception(7, 100, 0, 0), NOTHING)
    assert block(ours.report(5.0, Reception(7, 90, 0, 0), NOTHING))[3] == 100
    assert block(ours.report(9.0, Reception(7, 100 + 0x7FFF, 0, 0), NOTHING))[3] == 100 + 0x7FFF
