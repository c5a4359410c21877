"""What a request offers, judged without a socket: which lines are closed, and what the refusals say."""

from __future__ import annotations

import re

import pytest

from audio.codecs.codec import Codec
from sip.protocol import offer_check
from sip.protocol.errors import PeerError
from sip.protocol.offer_answer import SrtpUse, audio_lines, negotiate
from sip.protocol.sdp import SessionDescription
from tools.fuzz.sdp_samples import CRYPTO, FINGERPRINT, PLAIN, SAMPLES, described

CODECS = (Codec.PCMU, Codec.PCMA)
DTLS = ("m=audio 40002 UDP/TLS/RTP/SAVPF 0", *FINGERPRINT)
SECURE = "m=audio 40004 RTP/SAVP 0"
VIDEO = "m=video 40006 RTP/AVP 31"


def packet(body: str, content_type: str = "application/sdp", *headers: str, to: str = "<sip:1>") -> bytes:
    head = ["INVITE sip:1 SIP/2.0", f"To: {to}", f"Content-Type: {content_type}", *headers, "", ""]
    return ("\r\n".join(head) + body).encode()


def refusal(data: bytes, use: SrtpUse = "optional") -> PeerError:
    with pytest.raises(PeerError) as caught:
        offer_check.check(data, CODECS, use=use)
    return caught.value


@pytest.mark.parametrize("tag", ["", ";tag=there"], ids=["INVITE", "within a call"])
def test_every_kind_of_description_has_its_status(tag: str) -> None:
    """tests/sip puts each of them to a live worker once."""
    wrong = {}
    for sample in SAMPLES:
        try:
            offer_check.check(packet(sample.body, sample.content_type, to=f"<sip:1>{tag}"), list(Codec))
            status = 200
        except PeerError as refused:
            status = refused.status
        if status not in sample.statuses:
            wrong[sample.name] = status, sample.statuses
    assert not wrong and len(SAMPLES) > 600


@pytest.mark.parametrize(
    ("lines", "ports"),
    [
        ((PLAIN,), []),
        ((*DTLS, PLAIN), ["40002"]),
        ((PLAIN, *DTLS, VIDEO), ["40002", "40006"]),
        ((SECURE, "a=crypto:1 X inline:y", VIDEO, PLAIN), ["40004", "40006"]),
        ((SECURE, CRYPTO, PLAIN), []),
        ((PLAIN, "m=application 9 DTLS/SCTP 5000", "m=image 40008 udptl t38"), ["9", "40008"]),
        ((PLAIN, "m=audio 40010 RTP/AVP 0", "c=IN IP6 2001:db8::1"), ["40010"]),
    ],
)
def test_lines_that_cannot_be_used_are_closed_beside_one_that_can(lines: tuple[str, ...], ports: list[str]) -> None:
    body = described(*lines)
    parts = "--b\r\nContent-Type: text/plain\r\n\r\nm=audio 1 x 0\r\n--b\r\nc: application/sdp\r\n\r\n" + body
    for data in (
        packet(body),
        packet(body.replace("\r\n", "\n")),
        packet(parts + "--b--\r\n", 'multipart/mixed; boundary="b"'),
        packet(body + "m=audio 40012 UDP/TLS 0", "application/sdp", f"Content-Length: {len(body)}"),
    ):
        shown = SessionDescription.parse(offer_check.check(data, CODECS))
        asked = SessionDescription.parse(body).media
        assert [str(line.port) for line, seen in zip(asked, shown.media, strict=True) if not seen.port] == ports
        assert offer_check.check(packet(str(shown)), CODECS) == str(shown), "which is the same again"


@pytest.mark.parametrize(
    ("lines", "use", "warning"),
    [
        ((VIDEO,), "optional", 304),
        (("m=audio 0 RTP/AVP 0",), "optional", 304),
        (DTLS, "optional", 302),
        ((*DTLS, VIDEO), "optional", 302),
        ((SECURE, CRYPTO), "off", 302),
        ((PLAIN, CRYPTO), "mandatory", 302),
        ((SECURE,), "optional", 306),
        ((SECURE, "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:c2hvcnQ="), "mandatory", 306),
        ((PLAIN, "c=IN IP6 2001:db8::1"), "optional", 301),
        ((PLAIN, "c=TN RFC2543 +1-201-555-0123"), "optional", 300),
        (("m=audio 40000 RTP/AVP 18",), "optional", 305),
        ((*DTLS, "m=audio 40000 RTP/AVP 18", SECURE), "optional", 305),
        ([PLAIN] * 17, "optional", 399),
        ((PLAIN, *["a=x"] * 257), "optional", 399),
        ((SECURE, *[CRYPTO] * 33), "optional", 306),
    ],
)
def test_a_refusal_says_why(lines: tuple[str, ...], use: SrtpUse, warning: int) -> None:
    error = refusal(packet(described(*lines)), use)
    ((name, value),) = error.headers
    assert (error.status, name) == (488, "Warning")
    assert value.startswith(f'{warning} mediaworker "') and value.endswith('"') and value.count('"') == 2


def test_what_is_no_description() -> None:
    assert (
        offer_check.check(packet(""), CODECS) == "" == offer_check.check(b"INVITE sip:1 SIP/2.0\r\nTo: <sip:1>", CODECS)
    )
    for data in (
        packet("hello", "text/plain"),
        packet("<a/>", "application/rs-metadata+xml"),
        packet("--b\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--", "multipart/mixed;boundary=b"),
        packet(described(PLAIN), "application/sdp", "Content-Encoding: gzip"),
    ):
        error = refusal(data)
        assert error.status == 415 and dict(error.headers)["Accept"].startswith("application/sdp")
    assert offer_check.check(packet("<a/>", "application/rs-metadata+xml", to="<sip:1>;tag=2"), CODECS) == ""
    for body in ("hello", "v=0\r\n", described("m=audio x RTP/AVP 0"), described("m=audio\x0b40000 RTP/AVP 0")):
        assert refusal(packet(body)).status == 400


def test_a_port_that_is_none_is_no_address_of_control() -> None:
    for line in ("a=rtcp:65536", "a=rtcp:0", "a=rtcp:99999 IN IP4 127.0.0.1"):
        (stream,) = negotiate(SessionDescription.parse(described(PLAIN, line)), CODECS)
        assert stream.control is None
    (stream,) = negotiate(SessionDescription.parse(described("m=audio 65535 RTP/AVP 0")), CODECS)
    assert stream.control is None and stream.remote == ("127.0.0.1", 65535)


@pytest.mark.parametrize(
    ("lines", "formats", "rtpmaps"),
    [
        (("m=audio 4 RTP/AVP 0 101 96", "a=rtpmap:101 telephone-event/16000", "a=rtpmap:96 telephone-event/8000"),
         ("0", "96"), ["0 PCMU/8000", "96 telephone-event/8000"]),
        (("m=audio 4 RTP/AVP 0 72 97", "a=rtpmap:72 telephone-event/8000", "a=rtpmap:97 telephone-event/8000"),
         ("0", "97"), ["0 PCMU/8000", "97 telephone-event/8000"]),
        (("m=audio 4 RTP/AVP 35 8", "a=rtpmap:35 PCMU/8000", "a=fmtp:8 x"), ("8",), ["8 PCMA/8000"]),
        (("m=audio 4 RTP/AVP 120 0", "a=rtpmap:120 opus/48000/1"), ("120",), ["120 opus/48000/2"]),
        (("m=audio 4 RTP/AVP 8 10", "a=rtpmap:10 telephone-event/8000"), ("8",), ["8 PCMA/8000"]),
        (("m=audio 4 RTP/AVP 18 8 34 0",), ("8",), ["8 PCMA/8000"]),
        (("m=audio 4 RTP/AVP 97 98", "a=rtpmap:97 AMR-WB/16000", "a=rtpmap:98 pcmu/8000/1"), ("98",), ["98 PCMU/8000"]),
    ],
)  # fmt: skip
def test_pjsip_is_shown_what_is_used_and_nothing_else(
    lines: tuple[str, ...], formats: tuple[str, ...], rtpmaps: list[str]
) -> None:
    others = ("a=label:1", "a=sendonly", "a=rtcp:9")
    (line,) = SessionDescription.parse(offer_check.check(packet(described(*lines, *others)), list(Codec))).media
    assert line.formats == formats
    assert [value for name, value in line.attributes if name == "rtpmap"] == rtpmaps
    assert [f"a={name}" + (f":{value}" if value else "") for name, value in line.attributes][-3:] == list(others)


@pytest.mark.parametrize(
    ("origin", "name"), [("o=- 1 1", "s="), ("o=1 1", "s=-"), ("o=1 1", ""), ("o=a 1 1", "s= "), ("o=-  1  1", "s=x")]
)
def test_heads_that_some_send(origin: str, name: str) -> None:
    """Without a user, without a name (RFC 8866 sections 5.2 and 5.3 want both): PJSIP gets both."""
    head = ("v=0", f"{origin} IN IP4 192.0.2.1", *([name] if name else []), "c=IN IP4 192.0.2.1", "t=0 0")
    shown = offer_check.check(packet("\r\n".join((*head, PLAIN, ""))), CODECS)
    lines = shown.splitlines()
    assert re.fullmatch(r"o=- 1 1 IN IP4 127.0.0.1", lines[1]) and lines[2] == "s=-"


@pytest.mark.parametrize(
    ("content_type", "headers", "to", "status"),
    [
        ("text/plain", (), "<sip:1>", 415),
        ("text/plain", (), "<sip:1>;tag=x", 415),
        ("application/sdp", ("Content-Encoding: gzip",), "<sip:1>", 415),
        ("application/sdp", ("Content-Encoding: Identity",), "<sip:1>", 0),
        ("application/rs-metadata+xml", (), "<sip:1>;tag=x", 0),
        ("application/rs-metadata+xml", (), "<sip:1>", 415),
        ("application/sdp", ("Content-Length: 5", "Content-Length: 6"), "<sip:1>", 400),
    ],
)
def test_what_may_be_in_a_body(content_type: str, headers: tuple[str, ...], to: str, status: int) -> None:
    data = packet(described(PLAIN), content_type, *headers, to=to)
    if status:
        with pytest.raises(PeerError) as refused:
            offer_check.described(data)
        assert refused.value.status == status
    else:
        offer_check.described(data)


def test_a_content_length_says_where_the_body_ends() -> None:
    body = described(PLAIN)
    for length, found in ((len(body), body), (len(body) - 2, body[:-2]), (len(body) + 50, body)):
        data = packet(body, "application/sdp", f"Content-Length: {length}")
        where = offer_check.described(data)
        assert where is not None and data[where].decode().rstrip() == found.rstrip()
    for strange in ("-1", "x", "9999999999"):
        where = offer_check.described(packet(body, "application/sdp", f"Content-Length: {strange}"))
        assert where is not None


@pytest.mark.parametrize(
    ("kinds", "lines"), [([], 1), (["video"], 1), (["audio"], 1), (["audio", "video", "audio"], 2)]
)
def test_an_answer_has_as_many_audio_lines_as_the_offer_and_one_at_least(kinds: list[str], lines: int) -> None:
    media = "".join(f"m={kind} {4000 + 2 * n} RTP/AVP 0\r\n" for n, kind in enumerate(kinds))
    offer = SessionDescription.parse(
        f"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n{media}"
    )
    assert audio_lines(offer) == lines
