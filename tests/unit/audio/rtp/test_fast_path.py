"""Plain packets of many legs taken together do exactly what they do one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio import Codec, Detector, Leg, RtpPacket
from audio.fast_path import Datagrams
from audio.ring import RING
from config import Endpointing

CODECS = (Codec.PCMU, Codec.PCMA, Codec.G722)
KINDS = ["plain"] * 12 + ["lost", "twice", "event", "noise", "marker", "jump", "odd", "bad"]


@dataclass(frozen=True)
class Sent:
    leg: int
    datagram: bytes
    now: float


def pair() -> tuple[Detector, list[Leg]]:
    detector = Detector()
    return detector, [
        detector.open(codec, Endpointing(), transport="rtp", telephone_event=101) for codec in (*CODECS, *CODECS)
    ]


def one_by_one(sent: list[Sent]) -> tuple[Detector, list[Leg]]:
    detector, legs = pair()
    due = 0.0
    for each in sent:
        while each.now >= due:
            list(detector.step(due))
            due += 0.032
        legs[each.leg].receive_rtp(each.datagram, each.now)
    list(detector.step(due))
    return detector, legs


def together(sent: list[Sent]) -> tuple[Detector, list[Leg], int]:
    """Everything between two ticks at once, the first of each leg before the second of any."""
    detector, legs = pair()
    taken = 0
    due, number = 0.0, 0
    datagrams = Datagrams(64)
    while number < len(sent):
        queues: dict[int, list[Sent]] = {}
        while number < len(sent) and sent[number].now < due:
            queues.setdefault(sent[number].leg, []).append(sent[number])
            number += 1
        while any(queues.values()):
            first = [queue.pop(0) for queue in queues.values() if queue]
            for index, each in enumerate(first):
                datagrams.store(index, each.datagram, each.now)
            which = np.arange(len(first))
            plain = detector.receive(datagrams, which, np.array([legs[each.leg].index for each in first]))
            taken += int(plain.sum())
            for index in np.flatnonzero(~plain).tolist():
                legs[first[index].leg].receive_rtp(datagrams.datagram(index), first[index].now)
        list(detector.step(due))
        due += 0.032
    return detector, legs, taken


def story(leg: Leg) -> tuple[object, ...]:
    clock = leg._clock
    return (
        leg.read(max(0, leg.position - RING // 2), leg.position), leg.position, leg.end, leg.packets, leg.lost_packets,
        leg.late, leg.duplicates, leg.malformed, leg.wrong_payload, leg.jitter_ms, clock.next_sequence % 65536,
        clock.next_timestamp % (1 << 32), clock.next_position, clock.transit, clock.min_transit, leg.jumps,
        leg.ssrc_changes, leg.discarded, leg._timeline.gaps, leg._timeline.silences, leg._received, leg._base_s,
    )  # fmt: skip


@st.composite
def traffic(draw: st.DrawFn) -> list[Sent]:
    sent: list[Sent] = []
    for leg in range(2 * len(CODECS)):
        codec = CODECS[leg % len(CODECS)]
        sequence, timestamp = draw(st.integers(0, 0xFFFF)), draw(st.integers(0, 0xFFFFFFFF))
        start = draw(st.floats(0, 0.05))
        number = 0
        for _ in range(draw(st.integers(0, 40))):
            kind = draw(st.sampled_from(KINDS))
            size = 160 if kind != "odd" else draw(st.integers(1, 200))
            number += 1
            now = start + 0.02 * number + draw(st.sampled_from([0.0, 0.0, 0.001, 0.03, 0.09]))
            packet = RtpPacket(
                payload_type=codec.payload_type, sequence=sequence, timestamp=timestamp, ssrc=leg,
                payload=bytes([number % 120 + 1]) * size, marker=kind == "marker",
            )  # fmt: skip
            match kind:
                case "event":
                    packet = replace(packet, payload_type=101, payload=b"\x05\x8a\x01\x40")
                case "noise":
                    packet = replace(packet, payload_type=13, payload=b"\x20")
                case "jump":
                    timestamp += 80000
            sequence, timestamp = sequence + 1 & 0xFFFF, timestamp + size & 0xFFFFFFFF
            data = bytes(packet)
            if kind == "bad":
                data = data[: draw(st.integers(0, 13))]
            if kind != "lost":
                sent += [Sent(leg, data, now)] * (2 if kind == "twice" else 1)
    return sorted(sent, key=lambda each: each.now)


@given(traffic())
def test_together_as_one_by_one(sent: list[Sent]) -> None:
    # Time goes on for a while after the last packet.
    sent.append(Sent(0, b"", (sent[-1].now if sent else 0.0) + 0.5))
    detector, legs = one_by_one(sent)
    other, others, _ = together(sent)
    for leg, same in zip(legs, others, strict=True):
        assert story(leg) == story(same)
    assert detector.counters == other.counters


@pytest.mark.parametrize("size", [160, 33])
def test_nearly_all_packets_are_plain(size: int) -> None:
    """Through a lap of the ring, and past the wrap of the sequence number."""
    count = RING // size + 400
    rng = np.random.default_rng(size)
    step_s = size / 8000
    sent = []
    for number in range(count):
        for leg in range(2):
            payload = rng.integers(0, 256, size, np.uint8).tobytes()
            packet = RtpPacket(CODECS[leg].payload_type, number + 65000 & 0xFFFF, number * size, leg, payload)
            sent.append(Sent(leg, bytes(packet), step_s * number + 0.0001 * leg))
    sent.append(Sent(0, b"", sent[-1].now + 0.5))
    _, legs = one_by_one(sent)
    _, others, taken = together(sent)
    assert [story(leg) for leg in legs] == [story(leg) for leg in others]
    assert legs[0].lost_packets == legs[0].late == 0
    assert taken > 0.99 * 2 * count


def test_a_closed_leg_and_a_stream_have_no_plain_packets() -> None:
    detector = Detector()
    rtp = detector.open(Codec.PCMU, Endpointing(), transport="rtp")
    stream = detector.open(Codec.PCMU, Endpointing(), transport="stream")
    datagrams = Datagrams(2)
    for number in range(3):
        for leg in (rtp, stream):
            leg.receive_rtp(bytes(RtpPacket(0, number, 160 * number, 1, bytes(160))), 0.02 * number)
    datagrams.store(0, bytes(RtpPacket(0, 3, 480, 1, bytes(160))), 0.06)
    rows = np.array([rtp.index])
    assert detector.receive(datagrams, np.array([0]), rows).all()
    assert rtp.packets == 4
    datagrams.store(0, bytes(RtpPacket(0, 4, 640, 1, bytes(160))), 0.08)
    assert not detector.receive(datagrams, np.array([0]), np.array([stream.index])).any()
    detector.close(rtp)
    assert rtp.index == -1
    assert not detector.receive(datagrams, np.array([0]), rows).any()
    detector.close(stream)


@given(st.lists(st.sampled_from(["next"] * 8 + ["skip", "again", "shift", "odd", "none", "step"]), max_size=60))
def test_a_plain_chunk_does_what_any_chunk_does(kinds: list[str]) -> None:
    stories = []
    for plainly in (True, False):
        detector = Detector()
        legs = [detector.open(codec, Endpointing(), transport="stream") for codec in (*CODECS, Codec.L16)]
        position, now = 0, 0.0
        for number, kind in enumerate(kinds):
            size = 33 if kind == "odd" else 160
            position += {"skip": 160, "again": -160, "shift": 8}.get(kind, 0)
            for leg in legs:
                payload = bytes([number % 100 + 1]) * size * (4 if leg.codec is Codec.L16 else 1)
                at = None if kind == "none" else max(0, position)
                if plainly:
                    leg.receive_chunk(at, payload, now)
                else:
                    leg._receive_chunk(at, size, payload, now)
            position, now = position + size, now + size / 8000
            if kind == "step":
                list(detector.step(now + 0.3))
        list(detector.step(now + 5))
        stories.append([
            (leg.read(0, leg.position), leg.end, leg.packets, leg.late, leg.duplicates, leg._timeline.gaps,
             leg._timeline.silences, leg._received, leg._base_s, leg._chunks._deviation)
            for leg in legs
        ])  # fmt: skip
    assert stories[0] == stories[1]
