"""RTP and telephone events: parse and print as inverses, and one binary file for each odd case."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiortc.rtp import RtpPacket as OtherPacket
from hypothesis import given
from hypothesis import strategies as st

from audio.rtp.packet import RtpError, RtpPacket, TelephoneEvent, is_rtcp
from lab.house import ROOT

DATA = ROOT / "tests/data" / "rtp"
VALID = sorted(DATA.glob("valid-*.bin"))
MALFORMED = sorted(DATA.glob("malformed-*.bin"))


def name(path: Path) -> str:
    return path.stem


@st.composite
def packets(draw: st.DrawFn) -> RtpPacket:
    marker = draw(st.booleans())
    # With the marker bit, payload types 64-95 are RTCP's (RFC 5761 section 4).
    types = st.integers(0, 127).filter(lambda n: not (marker and 64 <= n <= 95))
    profile = draw(st.none() | st.integers(0, 0xFFFF))
    return RtpPacket(
        payload_type=draw(types),
        sequence=draw(st.integers(0, 0xFFFF)),
        timestamp=draw(st.integers(0, 0xFFFFFFFF)),
        ssrc=draw(st.integers(0, 0xFFFFFFFF)),
        payload=draw(st.binary(max_size=400)),
        marker=marker,
        csrc=tuple(draw(st.lists(st.integers(0, 0xFFFFFFFF), max_size=15))),
        extension_profile=profile,
        extension=b"" if profile is None else draw(st.binary(max_size=16)) * 4,
        padding_bytes=draw(st.integers(0, 255)),
    )


@given(packets())
def test_parse_is_the_inverse_of_bytes(packet: RtpPacket) -> None:
    assert RtpPacket.parse(bytes(packet)) == packet


@given(st.binary(max_size=80) | packets().map(bytes).flatmap(lambda d: st.integers(0, len(d)).map(lambda n: d[:n])))
def test_any_bytes_parse_or_raise_rtp_error(datagram: bytes) -> None:
    try:
        packet = RtpPacket.parse(datagram)
    except RtpError:
        return
    again = bytes(packet)
    assert len(again) == len(datagram)
    assert RtpPacket.parse(again) == packet


def test_the_corpus_is_there() -> None:
    assert len(VALID) >= 13 and len(MALFORMED) >= 18


@pytest.mark.parametrize("path", VALID, ids=name)
def test_valid_files_round_trip(path: Path) -> None:
    datagram = path.read_bytes()
    assert bytes(RtpPacket.parse(datagram)) == datagram


@pytest.mark.parametrize("path", VALID, ids=name)
def test_another_parser_reads_the_same(path: Path) -> None:
    ours, other = RtpPacket.parse(path.read_bytes()), OtherPacket.parse(path.read_bytes())
    assert (ours.payload_type, ours.sequence, ours.timestamp, ours.ssrc, bool(ours.marker)) == (
        other.payload_type, other.sequence_number, other.timestamp, other.ssrc, bool(other.marker),
    )  # fmt: skip
    assert (ours.payload, list(ours.csrc), ours.padding_bytes) == (other.payload, other.csrc, other.padding_size)


@pytest.mark.parametrize("path", MALFORMED, ids=name)
def test_malformed_files_raise_rtp_error(path: Path) -> None:
    with pytest.raises(RtpError):
        RtpPacket.parse(path.read_bytes())


@given(st.integers(0, 255), st.integers(0, 0xFFFF), st.booleans(), st.integers(0, 63))
def test_telephone_event_parse_is_the_inverse_of_bytes(event: int, duration: int, end: bool, volume: int) -> None:
    printed = TelephoneEvent(event, duration, end, volume)
    assert TelephoneEvent.parse(bytes(printed)) == printed


def test_telephone_events_name_their_digits() -> None:
    digits = [TelephoneEvent(event, 0).digit for event in range(17)]
    assert digits == [*"0123456789*#ABCD", None]
    with pytest.raises(RtpError, match="3 bytes"):
        TelephoneEvent.parse(b"\x01\x0a\x00")


def test_rtcp_is_told_from_rtp() -> None:
    assert is_rtcp((DATA / "malformed-rtcp-sender-report.bin").read_bytes())
    assert not is_rtcp((DATA / "valid-pcma-30ms-marker.bin").read_bytes())
    assert not is_rtcp(b"\x80")
