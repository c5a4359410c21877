"""Legs: whatever order, loss and nonsense the packets come in, the timeline reads back exactly what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from audio import Codec, Detection, Detector, Digit, Leg, RtpPacket, TelephoneEvent
from audio.codecs import g711
from audio.codecs.g722 import G722Decoder
from audio.ring import AHEAD
from config import Endpointing
from lab.house import ROOT
from lab.media.speech import SPEECH, speech

DATA = ROOT / "tests/data" / "rtp"
SIZE = 160
PTIME_S = 0.020
EVENT = 101


@pytest.fixture(scope="module")
def detector() -> Iterator[Detector]:
    """Shared, so that rows are reused: what one test leaves behind would show in the next."""
    detector = Detector()
    yield detector
    assert detector.legs == 0


@pytest.fixture(autouse=True)
def closed(detector: Detector) -> Iterator[None]:
    """A test that failed leaves its legs open; the next one does not suffer from it."""
    yield
    for leg in tuple(detector._legs.values()):
        detector.close(leg)


def opened(detector: Detector, codec: Codec = Codec.PCMU, transport: Any = "rtp") -> Leg:
    return detector.open(codec, Endpointing(), transport=transport, telephone_event=EVENT)


def step(detector: Detector, now: float) -> list[Detection]:
    return [detection for detections in detector.step(now) for detection in detections]


def payloads(count: int, seed: int = 0, size: int = SIZE) -> list[bytes]:
    """Distinct packets, never the silence code: what is silent was not received."""
    codes = np.random.default_rng(seed).integers(0, 0x7E, (count, size), np.uint8)
    codes[codes == Codec.PCMA.silence] = 1
    return [row.tobytes() for row in codes]


def packet(number: int, payload: bytes, *, sequence: int = 100, timestamp: int = 5000, **fields: Any) -> bytes:
    fields.setdefault("payload_type", 0)
    fields.setdefault("ssrc", 7)
    sequence, timestamp = sequence + number & 0xFFFF, timestamp + number * SIZE & 0xFFFFFFFF
    return bytes(RtpPacket(sequence=sequence, timestamp=timestamp, payload=payload, **fields))


def play(detector: Detector, leg: Leg, arrivals: list[tuple[float, bytes]], until: float) -> list[Detection]:
    """Deliver datagrams at their times, with a tick of the detector every 32 ms."""
    found: list[Detection] = []
    arrivals = sorted(arrivals, key=lambda arrival: arrival[0])
    tick = 0.032
    for now, datagram in arrivals:
        while tick <= now:
            found += step(detector, tick)
            tick += 0.032
        leg.receive_rtp(datagram, now)
    while tick <= until:
        found += step(detector, tick)
        tick += 0.032
    return found


def expected_audio(sent: dict[int, bytes], length: int, silence: int) -> bytes:
    audio = bytearray([silence]) * length
    for position, payload in sent.items():
        audio[position : position + len(payload)] = payload
    return bytes(audio[:length])


# -- reorder, loss, duplication ---------------------------------------------------------------------------------------

FATES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 2]), st.integers(0, 58), st.integers(0, 58)), min_size=1, max_size=120
)


@given(FATES, st.sampled_from([0, 65400, 65535]), st.sampled_from([0, 2**32 - 1600]), st.sampled_from([0, 8]))
@example([(0, 0, 0)] * 100 + [(1, 58, 0), (2, 58, 1)] * 5, 65535, 2**32 - 160, 0)
def test_within_the_reorder_wait_nothing_is_lost(
    detector: Detector, fates: list[tuple[int, int, int]], sequence: int, timestamp: int, payload_type: int
) -> None:
    """fate: (copies less one, or lost), delay in ms, delay of the copy. The first packet comes at once."""
    codec = Codec.PCMU if payload_type == 0 else Codec.PCMA
    leg, audio = opened(detector, codec), payloads(len(fates) + 1)
    arrivals, sent = [(0.0, 0)], {0: audio[0]}
    for number, (fate, delay_ms, again_ms) in enumerate(fates, 1):
        if number % 16 == 0:  # now and then one is on time: were all late, that would be drift, and another test's
            fate, delay_ms = 0, 0
        if fate == 1:
            continue
        sent[number * SIZE] = audio[number]
        arrivals.append((number * PTIME_S + delay_ms / 1000, number))
        if fate == 2:
            arrivals.append((number * PTIME_S + again_ms / 1000, number))
    fields = {"sequence": sequence, "timestamp": timestamp, "payload_type": payload_type}
    datagrams = [(at, packet(n, audio[n], **fields)) for at, n in arrivals]
    length = (len(fates) + 1) * SIZE
    play(detector, leg, datagrams, length / 8000 + 0.2)
    assert leg.position >= length
    assert leg.read(0, length) == expected_audio(sent, length, codec.silence)
    newest = max(sent) // SIZE
    assert leg.lost(0, length) == (newest + 1 - len(sent)) * SIZE
    assert leg.lost_packets == newest + 1 - len(sent)
    assert (leg.packets, leg.late, leg.jumps) == (len(sent), 0, 0)
    assert leg.duplicates == len(arrivals) - len(sent)
    detector.close(leg)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), min_size=1, max_size=80))
def test_beyond_the_reorder_wait_what_is_missing_is_exactly_silence(
    detector: Detector, fates: list[tuple[int, int]]
) -> None:
    """Against a leg written as plainly as possible: a dictionary of samples and a list of deadlines."""
    leg, audio = opened(detector), payloads(len(fates) + 1)
    arrivals = [(0.0, 0)]
    for number, (fate, delay_ms) in enumerate(fates, 1):
        if fate:
            arrivals.append((number * PTIME_S + (delay_ms / 1000 if fate > 7 else 0.0), number))
    arrivals.sort()
    end = len(audio) * SIZE
    play(detector, leg, [(at, packet(n, audio[n])) for at, n in arrivals], end / 8000 + 0.6)
    if leg.jumps:
        detector.close(leg)
        reject()

    samples: dict[int, int] = {}
    consumed, tick, waiting = 0, 0.032, list(arrivals)
    while tick <= end / 8000 + 0.6:
        while waiting and waiting[0][0] < tick:
            number = waiting.pop(0)[1]
            for offset in range(SIZE):
                if number * SIZE + offset >= consumed:
                    samples.setdefault(number * SIZE + offset, audio[number][offset])
        while tick >= 0.06 + (consumed + 256) / 8000 or all(p in samples for p in range(consumed, consumed + 256)):
            consumed += 256
        tick += 0.032
    assert leg.position == consumed
    expected = bytes(samples.get(position, 0xFF) for position in range(end))
    assert leg.read(0, end) == expected
    told = (max(number for _, number in arrivals) + 1) * SIZE
    assert leg.lost(0, end) == told - sum(position < told for position in samples)
    detector.close(leg)


def test_a_window_waits_for_the_reorder_wait_and_no_longer(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(10)
    for number in (0, 2, 3, 4, 5):
        leg.receive_rtp(packet(number, audio[number]), number * PTIME_S)
    step(detector, 0.032 + 0.0599)
    assert leg.position == 0
    step(detector, 0.032 + 0.0601)
    assert leg.position == 256  # the gap reaches into the next window
    leg.receive_rtp(packet(1, audio[1]), 0.1)
    assert (leg.late, leg.lost_packets, leg.duplicates) == (0, 0, 0)
    step(detector, 0.1)
    assert leg.position == 768
    assert leg.read(0, 480) == audio[0] + b"\xff" * 96 + audio[1][96:] + audio[2]
    leg.receive_rtp(packet(7, audio[7]), 0.14)
    step(detector, 1.0)
    leg.receive_rtp(packet(6, audio[6]), 1.0)
    assert (leg.late, leg.lost_packets, leg.duplicates) == (1, 0, 0)
    detector.close(leg)


def test_a_burst_after_a_stall_is_late_and_does_not_move_the_timeline(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(150)
    arrivals = [(0.981 if 20 <= n < 50 else n * PTIME_S, packet(n, audio[n])) for n in range(150)]
    play(detector, leg, arrivals, 3.2)
    assert leg.jumps == 0 and leg.late > 15
    assert leg.read(50 * SIZE, 150 * SIZE) == b"".join(audio[50:])
    assert leg.lost(0, 150 * SIZE) == leg.read(0, 150 * SIZE).count(0xFF)
    detector.close(leg)


# -- the leg's clock --------------------------------------------------------------------------------------------------


def test_sample_0_is_the_first_arrival_or_the_start(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(20)
    assert leg.origin_s is None and step(detector, 50.0) == [] and leg.position == 0
    leg.receive_rtp(packet(0, audio[0]), 51.5)
    assert leg.origin_s == 51.5
    detector.close(leg)
    leg = opened(detector)
    leg.start(10.0)
    step(detector, 11.0)
    assert leg.origin_s == 10.0
    assert leg.position == 7424 and leg.lost(0, 7424) == 0  # 0.94 s, less what does not fill a window
    for number in range(20):
        leg.receive_rtp(packet(number, audio[number]), 11.0 + number * PTIME_S)
    step(detector, 11.5)
    assert leg.read(7424, 8000 + 20 * SIZE) == b"\xff" * 576 + b"".join(audio)
    assert leg.lost(0, 8000 + 20 * SIZE) == 0
    detector.close(leg)


def test_timestamp_and_sequence_wrap(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(600)
    arrivals = [(n * PTIME_S, packet(n, audio[n], sequence=65300, timestamp=2**32 - 300 * SIZE)) for n in range(600)]
    play(detector, leg, arrivals, 12.2)
    assert leg.read(0, 600 * SIZE) == b"".join(audio)
    assert (leg.packets, leg.lost_packets, leg.duplicates, leg.jumps, leg.lost(0, 600 * SIZE)) == (600, 0, 0, 0, 0)
    detector.close(leg)


@pytest.mark.parametrize("gap_s", [0.0, 0.7, 40.0])
def test_another_ssrc_is_believed_after_two_packets_and_goes_on_at_arrival(detector: Detector, gap_s: float) -> None:
    leg, audio = opened(detector), payloads(100)
    arrivals = [(n * PTIME_S, packet(n, audio[n])) for n in range(50)]
    shift = 1.0 + gap_s
    other = [(shift + n * PTIME_S, packet(n, audio[50 + n], ssrc=9, sequence=3, timestamp=77)) for n in range(50)]
    play(detector, leg, arrivals + other, shift + 1.3)
    start = round(shift * 8000)
    assert (leg.ssrc_changes, leg.discarded, leg.lost_packets) == (1, 0, 0)
    assert leg.read(start, start + 50 * SIZE) == b"".join(audio[50:])
    if gap_s < 1:
        assert leg.read(0, start) == b"".join(audio[:50]) + b"\xff" * round(gap_s * 8000)
    assert leg.lost(start, start + 50 * SIZE) == 0
    detector.close(leg)


def test_a_second_source_does_not_bleed_in(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(100)
    own = [(n * PTIME_S, packet(n, audio[n])) for n in range(100)]
    foreign = [(n * PTIME_S + 0.003, packet(n, b"\x11" * SIZE, ssrc=99)) for n in range(100)]
    play(detector, leg, own + foreign, 2.2)
    assert leg.read(0, 100 * SIZE) == b"".join(audio)
    assert (leg.discarded, leg.ssrc_changes, leg.packets) == (100, 0, 100)
    detector.close(leg)


@pytest.mark.parametrize("jump", [8_000_000, 2**31 - 1, -8_000_000, 12_345, -160])
def test_a_timestamp_jump_is_rebased_to_the_arrival(detector: Detector, jump: int) -> None:
    leg, audio = opened(detector), payloads(100)
    arrivals = [(n * PTIME_S, packet(n, audio[n])) for n in range(50)]
    arrivals += [(0.3 + n * PTIME_S, packet(n, audio[n], timestamp=5000 + jump & 0xFFFFFFFF)) for n in range(50, 100)]
    play(detector, leg, arrivals, 2.6)
    assert leg.jumps == 1
    silence = b"\xff" * 2400
    assert leg.read(0, 100 * SIZE + 2400) == b"".join(audio[:50]) + silence + b"".join(audio[50:])
    assert leg.lost(0, 100 * SIZE + 2400) == 0  # nothing was lost on the way: the sequence numbers go on
    detector.close(leg)


def test_a_sequence_jump_is_believed_after_two_packets(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(100)
    arrivals = [(n * PTIME_S, packet(n, audio[n], sequence=100 if n < 50 else 30_000)) for n in range(100)]
    play(detector, leg, arrivals, 2.3)
    assert leg.read(0, 100 * SIZE) == b"".join(audio)
    assert leg.lost_packets == 0 and leg.ssrc_changes == 0
    detector.close(leg)


def test_a_hold_that_stops_the_senders_clock(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(100)
    arrivals = [((n + (500 if n >= 50 else 0)) * PTIME_S, packet(n, audio[n])) for n in range(100)]
    play(detector, leg, arrivals, 12.3)
    assert leg.jumps == 1 and leg.late == 4
    start = 554 * SIZE
    assert leg.read(start, start + 46 * SIZE) == b"".join(audio[54:])
    detector.close(leg)


def test_a_longer_path_is_followed(detector: Detector) -> None:
    """From one packet to the next everything takes 200 ms longer, for good."""
    leg, audio = opened(detector), payloads(100)
    play(detector, leg, [(n * PTIME_S + (0.2 if n >= 50 else 0), packet(n, audio[n])) for n in range(100)], 2.5)
    assert leg.jumps == 1
    start = 54 * SIZE + 1600
    assert leg.read(start, start + 46 * SIZE) == b"".join(audio[54:])
    detector.close(leg)


@pytest.mark.parametrize("rate", [0.998, 1.002])
def test_drift_is_taken_back_in_silence(detector: Detector, rate: float) -> None:
    """A sender 2,000 ppm off, silent for a minute: 120 ms in all, but the timeline stays near the clock."""
    leg, now, worst = opened(detector), 0.0, 0.0
    for number in range(3000):
        now = number * PTIME_S / rate
        if number % 5 == 0:
            step(detector, now)
        leg.receive_rtp(packet(number, bytes([0xFE]) * SIZE), now)
        worst = max(worst, abs(leg.end / 8000 - 0.02 - now))
    assert (leg.late, leg.jumps, leg.lost(0, leg.position)) == (0, 0, 0)
    assert 0.03 < worst < 0.06
    detector.close(leg)


def test_drift_waits_for_the_end_of_speech(detector: Detector) -> None:
    """Speech from a sender 1,000 ppm slow: each packet follows the one before it, whatever the clock says."""
    leg, now = opened(detector), 0.0
    codes = g711.ulaw_encode(np.concatenate([speech("demo-congrats"), speech("demo-instruct")]))
    codes = codes[4000:]
    where = {}
    for number in range(len(codes) // SIZE):
        now = number * PTIME_S * 1.001
        leg.receive_rtp(packet(number, codes[number * SIZE : (number + 1) * SIZE]), now)
        where[number] = leg.end
        step(detector, now)
    moved = [n for n in where if n and where[n] - where[n - 1] != SIZE]
    assert moved
    for number in moved:
        around = g711.ulaw_decode(codes[number * SIZE - 1600 : number * SIZE + SIZE]).astype(int)
        assert np.abs(around).max() < 1000
    assert leg.jumps == 0
    detector.close(leg)


def test_silence_suppression_is_no_loss(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(40)
    # 20 packets, a comfort noise packet, a second of nothing, 20 packets with the sequence going on.
    arrivals = [(n * PTIME_S, packet(n, audio[n])) for n in range(20)]
    arrivals.append((0.4, bytes(RtpPacket(13, 120, 5000 + 20 * SIZE, 7, b"\x40"))))
    for number in range(20, 40):
        fields = RtpPacket(0, 101 + number, 5000 + (number + 50) * SIZE, 7, audio[number], marker=number == 20)
        arrivals.append(((number + 50) * PTIME_S, bytes(fields)))
    play(detector, leg, arrivals, 2.0)
    end = 90 * SIZE
    assert leg.read(0, end) == b"".join(audio[:20]) + b"\xff" * 8000 + b"".join(audio[20:])
    assert (leg.lost(0, end), leg.lost_packets, leg.wrong_payload, leg.jumps) == (0, 0, 0, 0)
    detector.close(leg)


def test_only_sequence_numbers_tell_a_loss_from_a_sender_that_says_nothing(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(30)
    play(detector, leg, [(n * PTIME_S, packet(n, audio[n])) for n in range(20)], 1.0)
    end = leg.position
    assert leg.lost(0, end) == 0
    leg.receive_rtp(bytes(RtpPacket(0, 120, 5000 + 50 * SIZE, 7, audio[20])), 1.0)
    assert leg.lost(0, end) == 0, "the next in sequence: the sender was silent"
    leg.receive_rtp(bytes(RtpPacket(0, 123, 5000 + 53 * SIZE, 7, audio[21])), 1.06)
    play(detector, leg, [], 1.3)
    assert leg.lost(0, leg.position) == 2 * SIZE and leg.lost_packets == 2
    detector.close(leg)


# -- what else comes in -----------------------------------------------------------------------------------------------


def test_headers_with_csrc_extension_and_padding_carry_the_same_audio(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(50)
    extended = {"extension_profile": 0xBEDE, "extension": bytes(8)}
    odd: list[dict[str, Any]] = [{}, {"csrc": (1, 2)}, extended, {"padding_bytes": 4}, {"marker": True}]
    play(detector, leg, [(n * PTIME_S, packet(n, audio[n], **odd[n % 5])) for n in range(50)], 1.2)
    assert leg.read(0, 50 * SIZE) == b"".join(audio)
    assert leg.malformed == 0
    detector.close(leg)


@pytest.mark.parametrize("path", sorted(DATA.glob("malformed-*.bin")), ids=lambda path: path.stem)
def test_malformed_datagrams_are_counted_and_change_nothing(detector: Detector, path: Path) -> None:
    leg, audio, bad = opened(detector), payloads(20), path.read_bytes()
    play(detector, leg, [(n * PTIME_S, d) for n in range(20) for d in (bad, packet(n, audio[n]), bad)], 0.6)
    assert leg.read(0, 20 * SIZE) == b"".join(audio)
    assert leg.malformed + leg.rtcp == 40
    detector.close(leg)


HOSTILE = st.one_of(
    st.binary(max_size=64),
    st.builds(
        RtpPacket,
        payload_type=st.sampled_from([0, 8, 9, 13, EVENT, 96, 127]),
        sequence=st.one_of(st.integers(90, 140), st.integers(0, 0xFFFF)),
        timestamp=st.one_of(st.integers(0, 100).map(lambda n: 5000 + n * 160), st.integers(0, 0xFFFFFFFF)),
        ssrc=st.sampled_from([7, 7, 7, 8, 0]),
        payload=st.one_of(st.binary(max_size=6), st.integers(0, 2000).map(bytes)),
        padding_bytes=st.sampled_from([0, 0, 1, 200]),
    ).map(bytes),
)
CODECS = st.sampled_from([Codec.PCMU, Codec.PCMA, Codec.G722, Codec.OPUS])


@given(CODECS, st.lists(st.tuples(HOSTILE, st.sampled_from([0.0, 0.001, 0.02, 0.3, 1.0])), max_size=16))
def test_nothing_a_peer_sends_over_rtp_raises(
    detector: Detector, codec: Codec, sent: list[tuple[bytes, float]]
) -> None:
    leg, now = opened(detector, codec), 1000.0
    for datagram, wait in sent:
        leg.receive_rtp(datagram, now)
        now += wait
        step(detector, now)
    position = leg.position
    assert leg.ahead <= AHEAD
    assert len(leg.read(max(0, position - 8000), position)) == min(8000, position) * (4 if codec.wide else 1)
    assert 0 <= leg.lost(0, position) <= position
    detector.finish(leg, "hangup")
    detector.close(leg)
    leg.receive_rtp(packet(0, bytes(SIZE)), now)


@given(
    st.sampled_from([Codec.PCMU, Codec.L16, Codec.G722]),
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 40).map(lambda n: n * 160), st.integers(-(2**70), 2**70)),
            st.integers(0, 700),
            st.sampled_from([0.0, 0.02, 2.5]),
        ),
        max_size=16,
    ),
)
def test_nothing_a_peer_sends_over_a_stream_raises(
    detector: Detector, codec: Codec, sent: list[tuple[int | None, int, float]]
) -> None:
    leg, now = opened(detector, codec, "stream"), 5.0
    for position, size, wait in sent:
        leg.receive_chunk(position, bytes(size), now)
        now += wait
        step(detector, now)
    assert leg.ahead <= AHEAD
    detector.finish(leg, "flush")
    detector.close(leg)


def test_audio_that_would_overwrite_what_is_unread_is_refused(detector: Detector) -> None:
    leg, audio = opened(detector, transport="stream"), payloads(600)
    for payload in audio:
        leg.receive_chunk(None, payload, 0.0)
    taken = AHEAD // SIZE
    assert leg.ahead == taken * SIZE and leg.refused == (600 - taken) * SIZE
    step(detector, 0.1)
    assert leg.read(0, leg.position) == b"".join(audio[:taken])[: leg.position]
    assert leg.ahead < 256
    leg.receive_chunk(None, audio[0], 0.1)
    assert leg.end == (taken + 1) * SIZE
    detector.close(leg)


def test_audio_is_taken_as_far_as_it_overwrites_nothing_and_not_one_sample_further(detector: Detector) -> None:
    leg, (audio,) = opened(detector, transport="stream"), payloads(1, size=AHEAD)
    leg.receive_chunk(None, audio, 0.0)
    assert (leg.ahead, leg.refused) == (AHEAD, 0)
    for refused in (1, 2):
        leg.receive_chunk(None, b"\x01", 0.0)
        assert (leg.ahead, leg.refused) == (AHEAD, refused)
    detector.finish(leg, "hangup")
    assert leg.read(0, AHEAD) == audio
    detector.close(leg)


def test_what_was_refused_counts_as_lost_and_the_senders_silence_after_it_does_not(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(500)
    for number, payload in enumerate(audio):
        leg.receive_rtp(packet(number, payload), number * PTIME_S)
    refused = (500 - AHEAD // SIZE) * SIZE
    assert leg.refused == refused
    step(detector, 10.0)
    leg.receive_rtp(packet(500, audio[0]), 10.0)
    leg.receive_rtp(bytes(RtpPacket(0, 601, 5000 + 520 * SIZE, 7, audio[1])), 10.4)
    step(detector, 11.0)
    assert (leg.lost(0, leg.position), leg.lost_packets) == (refused, 0)
    detector.close(leg)


def test_the_ring_goes_round(detector: Detector) -> None:
    """Two minutes with loss: every read within 31 s is right, and what is lost is silence and not the last lap."""
    leg, audio = opened(detector), payloads(997)
    whole = bytearray()
    for number in range(6000):
        now = number * PTIME_S
        if number % 50 == 49:
            whole += b"\xff" * SIZE
        else:
            whole += audio[number % 997]
            leg.receive_rtp(packet(number, audio[number % 997]), now)
        if number % 8 == 0:
            step(detector, now)
        if number % 500 == 0:
            low = max(0, leg.position - 31 * 8000)
            assert leg.read(low, leg.position) == whole[low : leg.position]
    with pytest.raises(ValueError, match="31 s"):
        leg.read(0, 100)
    with pytest.raises(ValueError, match="31 s"):
        leg.read(leg.position, leg.position + 1)
    detector.close(leg)


# -- digits -----------------------------------------------------------------------------------------------------------


def press(event: int, *, sequence: int, timestamp: int, packets: int = 5, ends: int = 3) -> list[bytes]:
    """The packets of one key press: the marker on the first, the end three times over."""
    return [
        bytes(
            RtpPacket(
                EVENT, sequence + n, timestamp, 7, marker=n == 0,
                payload=bytes(TelephoneEvent(event, min(n + 1, packets) * 160, end=n >= packets)),
            )
        )
        for n in range(packets + ends)
    ]  # fmt: skip


def test_a_digit_is_told_once(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(30)
    arrivals = [(n * PTIME_S, packet(n, audio[n])) for n in range(10)]
    keys = press(5, sequence=110, timestamp=5000 + 10 * SIZE)
    arrivals += [(0.2 + n * PTIME_S, key) for n, key in enumerate(keys)]
    # After eight event packets the audio goes on, eight packets later in both sequence and time.
    arrivals += [((n + 8) * PTIME_S, packet(n + 8, audio[n])) for n in range(10, 30)]
    found = [d for d in play(detector, leg, arrivals, 1.2) if isinstance(d, Digit)]
    assert found == [Digit(leg, 10 * SIZE, "5", 100)]
    end = 38 * SIZE
    assert leg.read(0, end) == b"".join(audio[:10]) + b"\xff" * 8 * SIZE + b"".join(audio[10:])
    assert (leg.lost(0, end), leg.lost_packets, leg.wrong_payload) == (0, 0, 0)
    detector.close(leg)


@given(st.lists(st.booleans(), min_size=24, max_size=24), st.integers(0, 2**32 - 1))
def test_digits_survive_loss_duplication_and_reordering(detector: Detector, kept: list[bool], seed: int) -> None:
    """Three presses; whatever of them arrives, each that arrives at all is told exactly once and in order."""
    leg, random = opened(detector), Random(seed)
    leg.receive_rtp(packet(0, bytes(SIZE)), 0.0)
    expected, now = [], 0.0
    for number, event in enumerate((1, 1, 11)):
        keys = press(event, sequence=101 + 8 * number, timestamp=5000 + (number * 40 + 1) * SIZE)
        keys = [key for key, keep in zip(keys, kept[8 * number :], strict=False) if keep]
        keys += keys[:2]
        random.shuffle(keys)
        for index, key in enumerate(keys):
            leg.receive_rtp(key, now + index * 0.01)
        if keys:
            expected.append("0123456789*#"[event])
        now += 0.8
    found = step(detector, now) + detector.finish(leg, "hangup")
    assert [(d.digit, d.leg is leg) for d in found if isinstance(d, Digit)] == [(e, True) for e in expected]
    detector.close(leg)


def test_a_digit_whose_end_is_lost_comes_when_its_packets_stop(detector: Detector) -> None:
    leg = opened(detector)
    for number, key in enumerate(press(10, sequence=5, timestamp=900, ends=0)):
        leg.receive_rtp(key, number * PTIME_S)
    assert step(detector, 0.25) == []
    assert step(detector, 0.31) == [Digit(leg, 0, "*", 100)]
    assert step(detector, 1.0) == []
    for key in press(11, sequence=10, timestamp=9000, ends=0):
        leg.receive_rtp(key, 1.1)
    assert [d.digit for d in detector.finish(leg, "hangup") if isinstance(d, Digit)] == ["#"]
    detector.close(leg)


def test_a_key_that_is_down_when_its_leg_ends_is_not_told_afterwards(detector: Detector) -> None:
    leg = opened(detector)
    for key in press(5, sequence=5, timestamp=900, ends=0):
        leg.receive_rtp(key, 0.1)
    detector.close(leg)
    assert step(detector, 1.0) == []


# -- streams ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-24, 24), st.integers(0, 2)), min_size=2, max_size=100),
    st.integers(0, 3000),
)
def test_chunks_land_in_their_own_place(detector: Detector, fates: list[tuple[int, int, int]], first: int) -> None:
    """Lost (0), overtaken by up to two others, their stated positions off by up to 3 ms: the rest is exact."""
    leg, audio = opened(detector, transport="stream"), payloads(len(fates) + 1)
    order = sorted((number + hop * 1.1, number, off) for number, (fate, off, hop) in enumerate(fates, 1) if fate)
    now, sent = 0.0, {first: audio[0]}
    leg.receive_chunk(first, audio[0], now)
    for slot, number, off in order:
        while now < slot * PTIME_S:
            now += 0.01
            step(detector, now)
        leg.receive_chunk(first + number * SIZE + off, audio[number], now)
        sent[first + number * SIZE] = audio[number]
    step(detector, now + 0.2)
    end, begin = max(sent) + SIZE, first // 256 * 256
    detector.finish(leg, "flush")
    expected = expected_audio(sent, end, 0xFF)
    assert leg.read(begin, end) == expected[begin:]
    assert leg.lost(0, end) == (max(sent) - first) + SIZE - len(sent) * SIZE
    assert (leg.late, leg.duplicates, leg.malformed, leg.packets) == (0, 0, 0, len(sent))
    detector.close(leg)


def test_a_slow_drift_of_stated_positions_is_followed_in_silence(detector: Detector) -> None:
    leg, quiet = opened(detector, transport="stream"), bytes([0xFE]) * SIZE
    for number in range(2000):
        leg.receive_chunk(round(number * SIZE * 1.002), quiet, number * PTIME_S)
        step(detector, number * PTIME_S)
    assert abs(leg.end - 2000 * SIZE * 1.002) < 120
    assert leg.lost(0, leg.position) == 0
    detector.close(leg)


def test_a_stalled_stream_waits_and_then_goes_on_as_silence(detector: Detector) -> None:
    leg, audio = opened(detector, transport="stream"), payloads(16)
    for number in range(8):
        leg.receive_chunk(number * SIZE, audio[number], number * PTIME_S)
    step(detector, 2.1)
    assert leg.position == 1280
    step(detector, 2.14 + 1.0)
    assert leg.position == 1280 + 31 * 256
    leg.receive_chunk(8 * SIZE, audio[8], 3.2)
    assert leg.late == 1
    start = round(3.2 * 8000)
    leg.receive_chunk(start, audio[9], 3.2)
    step(detector, 3.3)
    detector.finish(leg, "hangup")
    assert leg.read(start, start + SIZE) == audio[9]
    detector.close(leg)


def test_a_chunk_that_comes_again_is_a_duplicate_and_one_that_comes_too_late_is_late(detector: Detector) -> None:
    leg, audio = opened(detector, transport="stream"), payloads(6)
    for number in (0, 1, 5):
        leg.receive_chunk(number * SIZE, audio[number], number * PTIME_S)
    for times in (1, 2):
        leg.receive_chunk(0, audio[0], 0.12)
        assert (leg.duplicates, leg.late) == (times, 0)
    step(detector, 1.0)
    assert leg.position == 768, "what was missing up to 800 has been given up"
    for late, number in enumerate((4, 4, 3, 2), 1):
        leg.receive_chunk(number * SIZE, audio[number], 1.0)
        assert (leg.duplicates, leg.late) == (2, late)
    leg.receive_chunk(5 * SIZE, audio[5], 1.0)
    assert (leg.duplicates, leg.late) == (3, 4), "its audio has not been heard yet"
    detector.finish(leg, "hangup")
    assert leg.read(0, 6 * SIZE) == audio[0] + audio[1] + b"\xff" * 3 * SIZE + audio[5]
    detector.close(leg)


def test_a_chunk_that_the_first_one_has_overtaken_by_too_much_is_late_and_not_lost(detector: Detector) -> None:
    leg, audio = opened(detector, transport="stream"), payloads(3, size=80)
    leg.receive_chunk(1024, audio[1], 0.0)
    leg.receive_chunk(1104, audio[2], 0.1)
    step(detector, 0.2)
    assert leg.position == 1024
    leg.receive_chunk(944, audio[0], 0.2)
    assert (leg.late, leg.duplicates, leg.lost(0, 1024)) == (1, 0, 0)
    detector.close(leg)


def test_chunks_without_a_position_follow_each_other_whatever_the_time(detector: Detector) -> None:
    leg, audio = opened(detector, transport="stream"), payloads(20)
    now = 0.0
    for number in range(10):
        leg.receive_chunk(None, audio[number], now)
        now += 1.5  # far slower than real time, but no stall
        step(detector, now)
    assert leg.end == 10 * SIZE
    step(detector, now + 2.0)
    resumed = leg.position
    assert resumed > 10 * SIZE
    leg.receive_chunk(None, audio[10], now + 2.0)
    detector.finish(leg, "flush")
    assert leg.read(0, 10 * SIZE) == b"".join(audio[:10])
    assert leg.read(resumed, resumed + SIZE) == audio[10]
    assert leg.lost(0, leg.position) == 0
    detector.close(leg)


def test_a_leg_that_begins_late_begins_there(detector: Detector) -> None:
    leg, audio = opened(detector, transport="stream"), payloads(1)
    leg.receive_chunk(10**9, audio[0], 7.0)
    assert leg.origin_s == pytest.approx(7.0 - 10**9 / 8000)
    detector.finish(leg, "hangup")
    assert leg.read(10**9, 10**9 + SIZE) == audio[0]
    detector.close(leg)
    leg = opened(detector, transport="stream")
    leg.anchor(3.0)
    assert leg.origin_s == 3.0 and step(detector, 30.0) == []
    leg.start(4.0)
    assert leg.origin_s == 3.0
    step(detector, 7.0)
    assert leg.position == 7936
    detector.close(leg)


# -- 16 kHz -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 58)), min_size=1, max_size=60))
def test_g722_is_decoded_in_order_and_skips_what_is_lost(detector: Detector, fates: list[tuple[int, int]]) -> None:
    codes = (SPEECH / "demo-congrats.g722").read_bytes()
    leg, decoder = opened(detector, Codec.G722), G722Decoder()
    arrivals = [(0.0, packet(0, codes[:SIZE], payload_type=9))]
    expected = [decoder.decode(codes[:SIZE])]
    missing = lost = 0
    for number, (fate, delay_ms) in enumerate(fates, 1):
        piece = codes[number * SIZE : (number + 1) * SIZE]
        if fate:
            at = number * PTIME_S + (delay_ms / 1000 if fate > 3 else 0)
            arrivals.append((at, packet(number, piece, payload_type=9)))
            expected.append(decoder.decode(piece))
            lost, missing = lost + missing, 0
        else:
            expected.append(np.zeros(2 * SIZE, np.int16))
            missing += SIZE  # lost, once a later packet shows it
    length = len(expected) * SIZE
    play(detector, leg, arrivals, length / 8000 + 0.2)
    assert leg.read(0, length) == np.concatenate(expected).tobytes()
    assert leg.lost(0, length) == lost
    detector.close(leg)


def test_l16_streams_keep_their_samples(detector: Detector) -> None:
    leg = opened(detector, Codec.L16, "stream")
    samples = np.random.default_rng(5).integers(-30000, 30000, 16000 * 60).astype("<i2").tobytes()
    size = 4 * 800
    for index in range(0, len(samples), size):
        if index // size % 40 != 7:
            leg.receive_chunk(index // 4, samples[index : index + size], index / 32000 / 2)
        step(detector, index / 64000)
        if index % (size * 100) == 0 and leg.position:
            low = max(0, leg.position - 8000 * 31)
            expected = bytearray(samples[4 * low : 4 * leg.position])
            for piece in range(7 * size, len(samples), 40 * size):
                start, stop = max(piece, 4 * low), min(piece + size, 4 * leg.position)
                if start < stop:
                    expected[start - 4 * low : stop - 4 * low] = bytes(stop - start)
            assert leg.read(low, leg.position) == expected
    leg.receive_chunk(None, b"\x01\x02\x03", 100.0)
    assert leg.malformed == 1
    detector.close(leg)
    with pytest.raises(ValueError, match="stream"):
        opened(detector, Codec.L16)


# -- re-INVITE --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codecs", [(0, 8), (8, 0), (0, 9), (9, 0), (9, 8, 9)])
def test_a_codec_change_begins_an_epoch(detector: Detector, codecs: tuple[int, ...]) -> None:
    kinds = {codec.payload_type: codec for codec in Codec}
    audio = payloads(50 * len(codecs))
    leg, starts = opened(detector, kinds[codecs[0]]), [0]
    for epoch, payload_type in enumerate(codecs):
        if epoch:
            detector.change(leg, kinds[payload_type], EVENT)
            starts.append(leg.position)
            # Packets of the old description are still on their way.
            leg.receive_rtp(packet(0, bytes(SIZE), payload_type=codecs[epoch - 1]), epoch * 1.5)
        for n in range(50):
            now = epoch * 1.5 + n * PTIME_S
            datagram = packet(n, audio[epoch * 50 + n], payload_type=payload_type, ssrc=epoch, sequence=epoch * 999)
            leg.receive_rtp(datagram, now)
            step(detector, now)
        step(detector, epoch * 1.5 + 1.2)
    assert leg.wrong_payload == len(codecs) - 1
    for epoch, payload_type in enumerate(codecs):
        own = b"".join(audio[epoch * 50 : (epoch + 1) * 50])
        if payload_type == 9:
            own = G722Decoder().decode(own).tobytes()
        start = max(starts[epoch], epoch * 12000)
        assert leg.read(start, start + 8000) == own, epoch
    assert leg.codec is kinds[codecs[-1]]
    # A read across a change is in the codec of its end.
    assert len(leg.read(0, leg.position)) == leg.position * (4 if leg.codec.wide else 1)
    detector.close(leg)


def test_a_read_across_a_change_of_law_is_converted(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(20)
    for n in range(10):
        leg.receive_rtp(packet(n, audio[n]), n * PTIME_S)
    detector.change(leg, Codec.PCMA)
    start = leg.position
    for n in range(10):
        leg.receive_rtp(packet(n, audio[10 + n], payload_type=8), 0.3 + n * PTIME_S)
    detector.finish(leg, "flush")
    before = g711.alaw_encode(g711.ulaw_decode(b"".join(audio[:10])))
    assert leg.read(0, 10 * SIZE) == b"".join(audio[:10])
    assert leg.read(0, 4000)[: 10 * SIZE] == before
    assert leg.read(2400, 4000) == b"".join(audio[10:]) and start <= 2400
    detector.close(leg)


def test_the_same_codec_again_changes_nothing_but_the_stream(detector: Detector) -> None:
    leg, audio = opened(detector), payloads(40)
    for n in range(20):
        leg.receive_rtp(packet(n, audio[n]), n * PTIME_S)
    detector.change(leg, Codec.PCMU, 96)
    assert leg.telephone_event == 96
    for n in range(20):
        leg.receive_rtp(packet(n, audio[20 + n], ssrc=1234), 0.4 + n * PTIME_S)
    step(detector, 0.9)
    assert leg.read(0, 40 * SIZE) == b"".join(audio)
    detector.close(leg)


def test_jitter_is_rfc_3550s(detector: Detector) -> None:
    leg, rng = opened(detector), np.random.default_rng(3)
    expected, last = 0.0, 0.0
    for number in range(200):
        now = number * PTIME_S + (float(rng.random()) * 0.01 if number else 0.0)
        transit = now * 8000 - number * SIZE
        if number:
            expected += (abs(transit - last) - expected) / 16
        last = transit
        leg.receive_rtp(packet(number, bytes(SIZE)), now)
    assert leg.jitter_ms == pytest.approx(expected / 8)
    assert 1 < leg.jitter_ms < 10
    detector.close(leg)


def test_a_packet_may_be_of_any_length(detector: Detector) -> None:
    leg, timestamp, now, whole = opened(detector), 900, 0.0, b""
    for number, size in enumerate([80, 160, 240, 1, 480, 160, 2, 160] * 4):
        payload = payloads(1, number, size)[0]
        leg.receive_rtp(bytes(RtpPacket(0, number, timestamp, 7, payload)), now)
        whole += payload
        timestamp += size
        now += size / 8000
    detector.finish(leg, "hangup")
    assert leg.read(0, len(whole)) == whole and leg.jumps == 0
    detector.close(leg)


def test_a_late_packet_that_is_longer_than_its_gap_overwrites_nothing(detector: Detector) -> None:
    leg, audio, (long,) = opened(detector), payloads(3), payloads(1, 1, SIZE + 80)
    for number, payload in ((0, audio[0]), (2, audio[2]), (1, long)):
        leg.receive_rtp(packet(number, payload), 0.045)
    detector.finish(leg, "hangup")
    assert leg.read(0, 3 * SIZE) == audio[0] + long[:SIZE] + audio[2]
    detector.close(leg)


def test_a_telephone_event_that_is_cut_off_is_malformed(detector: Detector) -> None:
    leg = opened(detector)
    leg.receive_rtp(packet(0, bytes(SIZE)), 0.0)
    for number, payload in enumerate((b"", b"\5", b"\5\x8a\0"), 1):
        leg.receive_rtp(packet(number, payload, payload_type=EVENT), 0.02 * number)
    assert (leg.malformed, leg.wrong_payload) == (3, 0)
    assert not [d for d in detector.finish(leg, "hangup") if isinstance(d, Digit)]
    detector.close(leg)


def test_a_report_is_about_the_stream_that_is_believed(detector: Detector) -> None:
    leg = opened(detector)
    assert leg.reception_report is None
    leg.receive_rtp(packet(0, bytes(SIZE), ssrc=0), 0.0)
    assert leg.reception_report == (0, 100, 0, 0), "0 is an SSRC like any other"
    leg.receive_rtp(packet(3, bytes(SIZE), ssrc=0), 0.06)
    assert leg.reception_report == (0, 103, 2, 0)
    detector.close(leg)


@pytest.mark.parametrize("codec", [Codec.PCMU, Codec.PCMA])
def test_a_leg_is_no_louder_when_its_last_moments_are_as_quiet_as_those_before(
    detector: Detector, codec: Codec
) -> None:
    leg = opened(detector, codec)
    encode = g711.alaw_encode if codec is Codec.PCMA else g711.ulaw_encode
    noise = np.random.default_rng(1).integers(-1000, 1000, 8000).astype(np.int16)
    for number in range(40):
        codes = encode(noise[number * SIZE : (number + 1) * SIZE])
        leg.receive_rtp(packet(number, codes, payload_type=codec.payload_type), number * PTIME_S)
    end = 40 * SIZE
    assert leg.audio.no_louder(end, end, b"")
    assert leg.audio.no_louder(end, end, encode(np.full(SIZE, 2000, np.int16)))
    assert not leg.audio.no_louder(end, end, encode(np.full(SIZE, 2600, np.int16)))
    assert not leg.audio.no_louder(end, end, encode(np.full(SIZE, -9000, np.int16)))
    detector.close(leg)


def test_what_the_first_chunk_has_overtaken_is_waited_for_and_then_given_up(detector: Detector) -> None:
    leg = detector.open(Codec.PCMU, Endpointing(), transport="stream")
    audio = payloads(8)
    leg.receive_chunk(2 * SIZE, audio[2], 0.0)
    leg.receive_chunk(SIZE, audio[1], 0.01)
    assert leg.position == 0, "the first chunk of all may still come"
    for number in range(3, 8):
        leg.receive_chunk(number * SIZE, audio[number], 0.02 * number)
    step(detector, 0.2)
    assert leg.position == 8 * SIZE and leg.read(SIZE, 8 * SIZE) == b"".join(audio[1:])
    assert leg.read(0, SIZE) == b"\xff" * SIZE
    detector.close(leg)
