"""SDES: which a=crypto line is taken, and what its key opens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from audio.codecs.codec import Codec
from lab.sip.crypto_lines import INLINE, KEY, LONG, SHORT, line
from sip.protocol.errors import NotAcceptable
from sip.protocol.offer_answer import negotiate, same_media
from sip.protocol.own_description import OwnEnd, make_answer
from sip.protocol.sdp import Origin, SessionDescription
from sip.protocol.srtp import SUITES, Crypto, SrtpContext, choose


def test_what_is_taken_of_a_crypto_line() -> None:
    # RFC 4568 section 9.1's, with lifetime; and what other implementations write
    assert Crypto.parse(f"1 {LONG} inline:{INLINE}|2^20") == Crypto(1, LONG, KEY)
    assert Crypto.parse(f"7 {SHORT.lower()}  inline:{INLINE.rstrip('=')} KDR=0") == Crypto(7, SHORT, KEY)
    for wrong in (
        "", "1", f"1 {LONG}", f"1 {LONG} inline:", f"1 {LONG} inline:AAAA", f"1 {LONG} inline:{INLINE}AAAA",
        f"1 AES_256_CM_HMAC_SHA1_80 inline:{INLINE}", f"1 {LONG} inline:{INLINE}|2^20|1:4",
        f"1 {LONG} inline:{INLINE}|1:4", f"1 {LONG} inline:{INLINE} UNENCRYPTED_SRTP",
        f"1 {LONG} inline:{INLINE};inline:{INLINE}",
    ):  # fmt: skip
        assert Crypto.parse(wrong) is None, wrong
    good = f"3 {SHORT} inline:{INLINE}"
    assert choose([f"1 AEAD_AES_256_GCM inline:{INLINE}", good, f"4 {LONG} inline:{INLINE}"]) == Crypto(3, SHORT, KEY)
    assert str(Crypto(3, SHORT, KEY)) == good
    assert repr(Crypto(3, SHORT, KEY)) == f"Crypto(3, {SHORT!r}, ***)", "logs have no keys"


LIKE = st.builds("{} {} inline:{}{}".format, st.integers(0), st.sampled_from(SUITES), st.text(), st.text())


@given(st.text(max_size=80) | LIKE)
def test_any_line_is_a_key_or_nothing(text: str) -> None:
    crypto = Crypto.parse(text)
    assert crypto is None or Crypto.parse(str(crypto)) == crypto


def test_which_streams_are_taken() -> None:
    secure = line(4000, f"1 {LONG} inline:{INLINE}")
    plain, unusable = line(4002, protocol="RTP/AVP"), line(4004, "1 NULL inline:x")

    def taken(use: str, *lines: str) -> list[int]:
        text = "v=0\no=- 1 1 IN IP4 192.0.2.1\ns=-\nc=IN IP4 192.0.2.1\nt=0 0\n" + "\n".join(lines)
        try:
            streams = negotiate(SessionDescription.parse(text), (Codec.PCMU,), use=use)  # type: ignore[arg-type]
            return [stream.index for stream in streams]
        except NotAcceptable:
            return []

    assert [taken(use, plain, secure) for use in ("off", "optional", "mandatory")] == [[0], [1], [1]]
    assert [taken(use, secure) for use in ("off", "optional", "mandatory")] == [[], [0], [0]]
    assert [taken(use, plain) for use in ("off", "optional", "mandatory")] == [[0], [0], []]
    assert [taken(use, unusable) for use in ("off", "optional", "mandatory")] == [[], [], []]


def test_a_packet_is_opened_once_and_only_with_its_key() -> None:
    ours, theirs = Crypto(1, LONG, KEY), Crypto(1, LONG, KEY[::-1])
    here, there = SrtpContext(theirs, ours), SrtpContext(ours, theirs)
    packet = b"\x80\x00\x00\x01" + bytes(8) + b"\x55" * 160
    sealed = there.close(packet)
    assert packet[12:] not in sealed and len(sealed) == len(packet) + 10
    assert here.open(sealed) == packet and here.open(sealed) is None, "a repetition"
    assert here.open(packet) is None and here.open(b"") is None and here.open(bytes(5000)) is None
    assert SrtpContext(ours, ours).open(sealed) is None


def test_rtcp_is_opened_once_and_only_with_its_key() -> None:
    ours, theirs = Crypto(1, LONG, KEY), Crypto(1, LONG, KEY[::-1])
    here, there = SrtpContext(theirs, ours), SrtpContext(ours, theirs)
    report = b"\x80\xc9\x00\x01\x00\x00\x00\x07"
    sealed = there.close_rtcp(report)
    assert len(sealed) == len(report) + 4 + 10, "an index, and a tag of 80 bits with either suite (RFC 4568)"
    assert here.open_rtcp(sealed) == report and here.open_rtcp(sealed) is None, "a repetition"
    assert here.open_rtcp(b"") is None and SrtpContext(ours, ours).open_rtcp(sealed) is None
    assert there.open_rtcp(here.close_rtcp(report)) == report


def test_a_suite_decides_how_long_a_tag_is() -> None:
    ours, theirs = Crypto(1, SHORT, KEY), Crypto(1, SHORT, KEY[::-1])
    packet = b"\x80\x00\x00\x01" + bytes(8) + b"\x55" * 160
    sealed = SrtpContext(ours, theirs).close(packet)
    assert len(sealed) == len(packet) + 4 and SrtpContext(theirs, ours).open(sealed) == packet


def test_the_answer_has_the_offers_suite_and_tag_and_a_key_of_its_own() -> None:
    offered = Crypto(7, SHORT, KEY)
    own = offered.own()
    assert (own.tag, own.suite) == (7, SHORT) and own.key != KEY and len(own.key) == 30
    assert Crypto.parse(str(own)) == own
    assert own.own().key != own.key and "inline" not in repr(own)


def test_an_answer_has_our_key_where_the_offer_had_theirs() -> None:
    secure, plain = line(4000, f"1 {LONG} inline:{INLINE}"), line(4002, protocol="RTP/AVP", direction="sendonly")
    text = "v=0\no=- 1 1 IN IP4 192.0.2.1\ns=-\nc=IN IP4 192.0.2.1\nt=0 0\n" + "\n".join((secure, plain))
    offer = SessionDescription.parse(text)
    streams = negotiate(offer, (Codec.PCMU,), streams=2)
    assert [stream.crypto for stream in streams] == [Crypto(1, LONG, KEY), None]
    own = Crypto(1, LONG, KEY[::-1])
    origin = Origin("-", 1, 1, "192.0.2.7")
    answer = make_answer(offer, streams, {0: OwnEnd(5000, "192.0.2.7", own), 1: OwnEnd(5002, "192.0.2.7")}, origin)
    assert [media.attribute("crypto") for media in answer.media] == [str(own), None]
    assert [media.port for media in answer.media] == [5000, 5002]
    assert [answer.direction_of(media).value for media in answer.media] == ["sendrecv", "recvonly"]
    assert same_media(answer, SessionDescription.parse(str(answer)))
    moved = make_answer(offer, streams, {0: OwnEnd(5000, "192.0.2.7", own), 1: OwnEnd(5004, "192.0.2.7")}, origin)
    assert not same_media(answer, moved)
