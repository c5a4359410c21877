"""Opus: packets by position in any order become the samples of an undisturbed call, and what is missing is bridged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from audio import Codec, Detection, Detector, Digit, Leg
from audio.codecs.opus import SILENCE, OpusDecoder, OpusEncoder, OpusError, OpusPacket, OpusWindows
from audio.rtp.packet import RtpPacket, TelephoneEvent
from config import Endpointing
from lab.house import ROOT
from mediaworker.cli.play import load_pcm

SPEECH = ROOT / "tests/data" / "digits"
WINDOW, SIZE, EVENT, SSRC = 256, 160, 101, 7
Samples = NDArray[np.int16]


@pytest.fixture(scope="module")
def packets() -> list[bytes]:
    """6 s of speech, 20 ms each."""
    samples, encoder = load_pcm(SPEECH / "customer.ulaw", 16000)[: 6 * 16000], OpusEncoder()
    return [encoder.encode(samples[at : at + 320]) for at in range(0, len(samples) - 319, 320)]


@pytest.fixture(scope="module")
def plain(packets: list[bytes]) -> Samples:
    decoder = OpusDecoder()
    return np.concatenate([decoder.decode(packet) for packet in packets])


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector()


def taken(windows: OpusWindows, count: int) -> Samples:
    out = np.zeros(count * 2 * WINDOW, np.int16)
    for number in range(count):
        start = number * WINDOW
        windows.fill(start, start + WINDOW, out[2 * start : 2 * (start + WINDOW)])
    return out


def error_db(heard: Samples, wanted: Samples) -> float:
    """Of the difference, against what was wanted."""
    difference = heard.astype(float) - wanted
    return float(10 * np.log10((difference**2).sum() / (wanted.astype(float) ** 2).sum()))


def test_a_packet_is_as_long_as_it_lasts(packets: list[bytes]) -> None:
    assert {len(OpusPacket(packet)) for packet in packets} == {SIZE}
    assert len(OpusPacket(SILENCE)) == SIZE and not OpusDecoder().decode(SILENCE).any()
    # RFC 6716 section 3.1: configuration 16 is 2.5 ms; code 3 with six frames of configuration 3, 60 ms, is too long.
    assert len(OpusPacket(bytes([16 << 3, 0]))) == 20
    for bad in (b"", bytes([3 << 3 | 3, 6])):
        with pytest.raises(OpusError):
            OpusPacket(bad)


def test_an_encoder_takes_20_ms_only() -> None:
    with pytest.raises(ValueError, match="319 samples"):
        OpusEncoder().encode(np.zeros(319, np.int16))


def test_windows_are_cut_out_of_packets(packets: list[bytes], plain: Samples) -> None:
    windows = OpusWindows()
    for number in reversed(range(len(packets))):
        windows.insert(number * SIZE, OpusPacket(packets[number]))
    count = len(packets) * SIZE // WINDOW
    assert (taken(windows, count) == plain[: count * 2 * WINDOW]).all()


def test_packets_longer_than_windows(plain: Samples) -> None:
    """40 ms: two frames in one packet (RFC 6716 section 3.2.4)."""
    encoder, samples = OpusEncoder(), plain[:16000]
    twenties = [encoder.encode(samples[at : at + 320]) for at in range(0, len(samples) - 319, 320)]
    windows, decoder = OpusWindows(), OpusDecoder()
    for number, (first, second) in enumerate(zip(twenties[::2], twenties[1::2], strict=True)):
        assert first[0] == second[0]
        joined = bytes([first[0] | 2]) + length(len(first) - 1) + first[1:] + second[1:]
        assert len(OpusPacket(joined)) == 2 * SIZE
        windows.insert(number * 2 * SIZE, OpusPacket(joined))
    wanted = np.concatenate([decoder.decode(packet) for packet in twenties])
    count = len(wanted) // (2 * WINDOW)
    assert (taken(windows, count) == wanted[: count * 2 * WINDOW]).all()


def length(size: int) -> bytes:
    """RFC 6716 section 3.2.1."""
    return bytes([size]) if size < 252 else bytes([252 + (size - 252) % 4, (size - 252) // 4])


def test_a_lost_packet_comes_with_the_next_one(packets: list[bytes], plain: Samples) -> None:
    lost = set(range(7, len(packets), 9))
    windows = OpusWindows()
    for number, packet in enumerate(packets):
        if number not in lost:
            windows.insert(number * SIZE, OpusPacket(packet))
    silent = plain.copy().reshape(-1, 320)
    silent[list(lost)] = 0
    count = len(packets) * SIZE // WINDOW
    wanted = plain[: count * 2 * WINDOW]
    assert error_db(taken(windows, count), wanted) < error_db(silent.reshape(-1)[: len(wanted)], wanted) - 6


def test_two_lost_are_concealed_and_many_are_silence(packets: list[bytes], plain: Samples) -> None:
    speaking = int(np.argmax([np.abs(frame.astype(int)).sum() for frame in plain.reshape(-1, 320)]))
    for gap, audible in ((2, True), (40, False)):
        windows = OpusWindows()
        for number, packet in enumerate(packets):
            if not speaking < number <= speaking + gap:
                windows.insert(number * SIZE, OpusPacket(packet))
        heard = taken(windows, len(packets) * SIZE // WINDOW).astype(int)
        # But for the last packet of the gap, which comes with the next one.
        unknown = heard[(speaking + 1) * 320 : (speaking + gap) * 320]
        assert bool(np.abs(unknown).max() > 50) is audible


def test_a_damaged_packet_is_silence_and_counted(packets: list[bytes], plain: Samples) -> None:
    windows = OpusWindows()
    for number, packet in enumerate(packets[:20]):
        windows.insert(number * SIZE, OpusPacket(packet if number != 10 else bytes([0x0B, 0xC2]) + bytes(2)))
    heard = taken(windows, 12)
    assert windows.damaged <= 1
    assert (heard[: 10 * 320] == plain[: 10 * 320]).all()


@given(st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=80)), max_size=20))
def test_whatever_comes_fills_the_windows(sent: list[tuple[int, bytes]]) -> None:
    windows = OpusWindows()
    for position, data in sent:
        try:
            windows.insert(position, OpusPacket(data))
        except OpusError:
            continue
    taken(windows, 14)
    assert len(windows._rest) <= 2 * (960 + 2000)


# A leg


def rtp(number: int, payload: bytes, *, timestamp: int = 1000, kind: int = 111) -> bytes:
    return bytes(RtpPacket(kind, 50 + number & 0xFFFF, timestamp + number * 960 & 0xFFFFFFFF, SSRC, payload))


def opened(detector: Detector, codec: Codec = Codec.OPUS, event_clock_hz: int = 48000) -> Leg:
    return detector.open(codec, Endpointing(), transport="rtp", telephone_event=EVENT, event_clock_hz=event_clock_hz)


def stepped(detector: Detector, now: float) -> list[Detection]:
    return [detection for detections in detector.step(now) for detection in detections]


@pytest.mark.parametrize("order", ["in order", "swapped", "twice"])
@pytest.mark.parametrize("timestamp", [1000, 2**32 - 50 * 960 - 3])
def test_a_leg_reads_back_what_was_sent(
    detector: Detector, packets: list[bytes], plain: Samples, order: str, timestamp: int
) -> None:
    leg, now = opened(detector), 100.0
    numbers = list(range(200))
    if order == "swapped":
        numbers[2:] = [number ^ 1 for number in numbers[2:]]  # before the first one that comes nothing is heard of
    elif order == "twice":
        numbers = [number for each in numbers for number in (each, each)]
    for number in numbers:
        now = 100.0 + number * 0.020
        leg.receive_rtp(rtp(number, packets[number], timestamp=timestamp), now)
        stepped(detector, now)
    stepped(detector, now + 1)
    heard = np.frombuffer(leg.read(0, 200 * SIZE // WINDOW * WINDOW), "<i2")
    assert leg.lost(0, 200 * SIZE) == 0 and leg.lost_packets == 0 and leg.jumps == leg.ssrc_changes == 0
    assert (heard == plain[: len(heard)]).all()
    assert leg.duplicates == (200 if order == "twice" else 0)
    detector.close(leg)


def test_a_sender_that_is_silent_sends_less(detector: Detector, packets: list[bytes], plain: Samples) -> None:
    """Discontinuous transmission: the sequence goes on, the timestamp jumps (RFC 7587 section 3.1.3)."""
    leg, now = opened(detector), 100.0
    for number in range(100):
        now = 100.0 + number * 0.020 + (0.4 if number >= 50 else 0)
        leg.receive_rtp(rtp(number, packets[number], timestamp=1000 + (20 * 960 if number >= 50 else 0)), now)
        stepped(detector, now)
    stepped(detector, now + 1)
    heard = np.frombuffer(leg.read(0, 110 * SIZE), "<i2").reshape(-1, 320)
    assert (heard[:50].reshape(-1) == plain[: 50 * 320]).all()
    assert not heard[50:69].any()
    assert leg.lost(0, 120 * SIZE) == 0
    detector.close(leg)


def test_a_packet_that_comes_too_late_changes_nothing_of_what_follows(detector: Detector, packets: list[bytes]) -> None:
    heard = []
    for late in (False, True):
        leg, now = opened(detector), 100.0
        for number in range(200):
            now = 100.0 + number * 0.020
            if number % 50 != 20:
                leg.receive_rtp(rtp(number, packets[number]), now)
            if late and number % 50 == 30:
                leg.receive_rtp(rtp(number - 10, packets[number - 10]), now)
            stepped(detector, now)
        stepped(detector, now + 1)
        assert leg.late == (4 if late else 0)
        heard.append(leg.read(0, 200 * SIZE))
        detector.close(leg)
    assert heard[0] == heard[1]


@pytest.mark.parametrize("clock_hz", [48000, 8000])
def test_digits_go_by_the_clock_that_the_sdp_names(detector: Detector, packets: list[bytes], clock_hz: int) -> None:
    leg = opened(detector, event_clock_hz=clock_hz)
    for number in range(10):
        leg.receive_rtp(rtp(number, packets[number]), 100.0 + number * 0.020)
    found: list[Detection] = []
    for number in range(10, 15):
        event = TelephoneEvent(5, clock_hz // 50 * (number - 9), end=number >= 14)
        leg.receive_rtp(
            bytes(RtpPacket(EVENT, 50 + number, 1000 + 10 * 960, SSRC, bytes(event))), 100.0 + number * 0.020
        )
        found += stepped(detector, 100.0 + number * 0.020)
    found += stepped(detector, 101.0)
    (digit,) = (each for each in found if isinstance(each, Digit))
    assert (digit.digit, digit.duration_ms, digit.position) == ("5", 100, 10 * SIZE)
    detector.close(leg)


def test_what_is_no_packet_is_counted(detector: Detector, packets: list[bytes]) -> None:
    leg = opened(detector)
    leg.receive_rtp(rtp(0, packets[0]), 100.0)
    leg.receive_rtp(rtp(1, bytes([3 << 3 | 3, 6])), 100.02)
    leg.receive_rtp(rtp(2, packets[2]), 100.04)
    assert leg.malformed == 1
    assert (leg.packets, leg.lost_packets) == (2, 1)
    detector.close(leg)


@pytest.mark.parametrize("codec", [Codec.PCMU, Codec.G722])
def test_a_call_changes_to_opus_and_back(
    detector: Detector, packets: list[bytes], plain: Samples, codec: Codec
) -> None:
    leg = opened(detector, codec)
    for number in range(50):
        leg.receive_rtp(
            bytes(RtpPacket(codec.payload_type, number, number * SIZE, 9, bytes([0x10]) * SIZE)), 100 + number * 0.02
        )
    stepped(detector, 101.5)
    detector.change(leg, Codec.OPUS, EVENT, 111, 48000)
    begin = leg.position
    for number in range(100):
        leg.receive_rtp(rtp(number, packets[number]), 102 + number * 0.02)
        stepped(detector, 102 + number * 0.02)
    stepped(detector, 105.0)
    assert leg.lost_packets == 0 and leg.packets == 150
    heard = np.frombuffer(leg.read(begin, leg.position), "<i2")
    start = int(np.flatnonzero(heard)[0]) // 320 * 320
    quiet = int(np.flatnonzero(plain)[0]) // 320 * 320
    assert error_db(heard[start : start + 16000], plain[quiet : quiet + 16000]) < 0
    detector.change(leg, codec, EVENT)
    assert leg.codec is codec
    detector.close(leg)


def test_it_does_not_go_over_a_stream(detector: Detector) -> None:
    with pytest.raises(ValueError, match="Opus is for RTP"):
        detector.open(Codec.OPUS, Endpointing(), transport="stream")


def test_jitter_is_reported_by_the_clock_of_the_stream(detector: Detector, packets: list[bytes]) -> None:
    leg = opened(detector)
    for number in range(40):
        leg.receive_rtp(rtp(number, packets[number]), 100.0 + number * 0.020 + 0.005 * (number % 2))
    reception = leg.reception_report
    assert reception is not None
    assert reception[:3] == (SSRC, 50 + 39, 0)
    assert abs(reception[3] / 48 - leg.jitter_ms) < 0.1 and leg.jitter_ms > 3
    detector.close(leg)
