"""SDP: parse and print are inverses, hostile text raises SdpError and nothing else, and answers follow RFC 3264."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.codecs.codec import Codec
from sip.protocol.errors import NotAcceptable, PeerError, SdpError
from sip.protocol.message import SipMessage, address_uri, dtmf_info, tag_of
from sip.protocol.offer_answer import accept_answer, moved, negotiate
from sip.protocol.own_description import OwnEnd, make_answer, make_offer
from sip.protocol.sdp import ConnectionLine, Direction, MediaDescription, Origin, SessionDescription
from sip.protocol.trace import mask_message

ALL = (Codec.G722, Codec.PCMU, Codec.PCMA, Codec.OPUS)
ORIGIN = Origin("-", "1", "1", "192.0.2.1")


def own_ends(ports: dict[int, int]) -> dict[int, OwnEnd]:
    return {index: OwnEnd(port, "192.0.2.1") for index, port in ports.items()}


def offer(*media: str, connection: str = "192.0.2.9", session: str = "") -> SessionDescription:
    lines = ["v=0", "o=- 1 1 IN IP4 192.0.2.9", "s=-", f"c=IN IP4 {connection}", "t=0 0"]
    return SessionDescription.parse("\r\n".join([*lines, *([session] if session else []), *media]) + "\r\n")


def answered(description: SessionDescription, codecs: tuple[Codec, ...] = ALL) -> SessionDescription:
    streams = negotiate(description, codecs)
    ports = {stream.index: 10000 + 2 * stream.index for stream in streams}
    answer = make_answer(description, streams, own_ends(ports), ORIGIN)
    assert SessionDescription.parse(str(answer)) == answer
    return answer


# Printing

token = st.text(st.characters(codec="ascii", categories=("L", "N"), include_characters="-._"), min_size=1, max_size=12)
value = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=30)
attribute = st.tuples(token, st.none() | value)
shapes = {
    "b": st.from_regex(r"[A-Z]{2,6}:[0-9]{1,6}", fullmatch=True),
    "t": st.from_regex(r"[0-9]{1,9} [0-9]{1,9}", fullmatch=True),
}


def other_line(kinds: str) -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), shapes.get(kind, value)))


connection = st.builds(ConnectionLine, token, st.sampled_from(("IP4", "IP6")))
origin = st.builds(Origin, token, token, token, token, st.sampled_from(("IP4", "IP6")))
port = st.integers(0, 65535)


@st.composite
def media_descriptions(draw: st.DrawFn) -> MediaDescription:
    other = draw(st.lists(other_line("ibk"), max_size=3))
    return MediaDescription(
        draw(token),
        draw(port),
        draw(token),
        tuple(draw(st.lists(token, min_size=1, max_size=5))),
        draw(st.none() | connection),
        tuple(draw(st.lists(attribute, max_size=4))),
        tuple(sorted(other, key=lambda line: "ibk".index(line[0]))),
        draw(st.integers(0, 65535)),
    )


@st.composite
def descriptions(draw: st.DrawFn) -> SessionDescription:
    other = draw(st.lists(other_line("iuepbtrzk"), max_size=5))
    order = "iuepbttzk"
    return SessionDescription(
        draw(origin),
        tuple(draw(st.lists(media_descriptions(), max_size=4))),
        draw(st.none() | connection),
        draw(token),
        tuple(draw(st.lists(attribute, max_size=4))),
        tuple(sorted(other, key=lambda line: order.index("t" if line[0] == "r" else line[0]))),
    )


@given(descriptions())
def test_parse_and_print_are_inverses(description: SessionDescription) -> None:
    assert SessionDescription.parse(str(description)) == description


@given(st.text(max_size=300) | st.lists(st.sampled_from("voscmtarb")).map(lambda k: "\n".join(f"{x}=0 0 0" for x in k)))
def test_hostile_text_is_an_sdp_error(text: str) -> None:
    for candidate in (text, "v=0\no=- 1 1 IN IP4 0\n" + text):
        try:
            description = SessionDescription.parse(candidate)
            negotiate(description, ALL, families=("IP4", "IP6"))
        except PeerError as error:
            assert error.status in (400, 488)


SOFTPHONE = """v=0
o=alice 3923 3923 IN IP4 192.0.2.9
s=Talk
i=a call
c=IN IP4 192.0.2.9
b=AS:128
t=0 0
a=rtcp-xr:rcvr-rtt=all:10000
m=audio 7078 RTP/AVP 96 0 8 97
a=rtpmap:96 opus/48000/2
a=fmtp:96 useinbandfec=1
a=rtpmap:97 telephone-event/8000
a=rtcp:7079
m=video 9078 RTP/AVP 98
a=rtpmap:98 VP8/90000
"""


def test_bytes_that_are_no_utf8_come_back_as_text() -> None:
    """PJSIP's binding decodes them to surrogates, and raises for any that our answer gives back."""
    lines = b"m=audio 9 RTP/AVP 0\r\na=label:\xe9\r\nm=video 0 RTP 31\r\n".decode("utf-8", "surrogateescape")
    answer = str(answered(offer(lines.rstrip())))
    assert answer.encode().decode() == answer
    assert "a=label:?" in answer


@pytest.mark.parametrize(
    "line", ["m=vid\xe9o 0 RTP 31", "m=a/b 0 RTP 31", "m=video 0 / 31", "m=video 0 RTP/ 31", "m=video 0 RTP (1"]
)
def test_words_of_a_media_line_are_tokens(line: str) -> None:
    with pytest.raises(SdpError):
        offer("m=audio 9 RTP/AVP 0", line)


def test_a_softphones_offer() -> None:
    description = SessionDescription.parse(SOFTPHONE)
    assert str(description) == SOFTPHONE.replace("\n", "\r\n")
    (stream,) = negotiate(description, ALL)
    assert (stream.codec, stream.telephone_event, stream.remote) == (Codec.OPUS, 97, ("192.0.2.9", 7078))
    audio, video = answered(description).media
    assert audio.formats == ("96", "97")
    assert (video.kind, video.port, video.formats) == ("video", 0, ("98",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v=1\r\no=- 1 1 IN IP4 0\r\n",
        "o=- 1 1 IN IP4 0\r\nv=0\r\n",
        "v=0\r\ns=-\r\n",
        "v=0\r\no=- 1 1 IN IP9 0\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\nnonsense\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\nm=audio\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\nm=audio 99999 RTP/AVP 0\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\nm=audio -1 RTP/AVP 0\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\nm=audio \u0661 RTP/AVP 0\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\nc=IN IP4\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\na=x\0y\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\na=x\ry\r\n",
        "v=0\r\no=- 1 1 IN IP4 0\r\n" + "m=audio 1 RTP/AVP 0\r\n" * 65,
        "v=0\r\no=- 1 1 IN IP4 0\r\na=" + "x" * 70000,
    ],
)
def test_what_is_not_sdp(text: str) -> None:
    with pytest.raises(SdpError):
        SessionDescription.parse(text)


# Answers


@pytest.mark.parametrize(
    ("formats", "codec", "payload_type"),
    [
        ("0 8 9", Codec.PCMU, 0),
        ("8 0", Codec.PCMA, 8),
        ("9 0 8", Codec.G722, 9),
        ("18 4 3 8", Codec.PCMA, 8),
        ("13 101 0", Codec.PCMU, 0),
    ],
)
def test_the_order_of_the_offer_decides(formats: str, codec: Codec, payload_type: int) -> None:
    description = offer(f"m=audio 4000 RTP/AVP {formats}")
    (stream,) = negotiate(description, ALL)
    assert (stream.codec, stream.payload_type) == (codec, payload_type)
    assert answered(description).media[0].formats == (str(payload_type),)


def test_only_allowed_codecs_are_chosen() -> None:
    (stream,) = negotiate(offer("m=audio 4000 RTP/AVP 9 0 8"), (Codec.PCMA,))
    assert stream.codec is Codec.PCMA


def test_a_dynamic_payload_type_is_echoed() -> None:
    description = offer("m=audio 4000 RTP/AVP 110 111", "a=rtpmap:110 pcma/8000/1", "a=rtpmap:111 TELEPHONE-EVENT/8000")
    (audio,) = answered(description).media
    assert audio.formats == ("110", "111")
    assert [f.encoding for f in audio.rtp_formats()] == ["PCMA", "TELEPHONE-EVENT"]


def test_opus_is_answered_as_its_rfc_says() -> None:
    lines = ("a=rtpmap:96 opus/48000/2", "a=fmtp:96 useinbandfec=1;usedtx=1", "a=rtpmap:97 telephone-event/48000")
    description = offer("m=audio 4000 RTP/AVP 96 97 0 101", *lines, "a=rtpmap:101 telephone-event/8000")
    (stream,) = negotiate(description, ALL)
    assert (stream.codec, stream.payload_type, stream.telephone_event) == (Codec.OPUS, 96, 97)
    (audio,) = answered(description).media
    assert audio.formats == ("96", "97")
    assert audio.attributes[:4] == (
        ("rtpmap", "96 opus/48000/2"),
        ("fmtp", "96 maxplaybackrate=16000;stereo=0;useinbandfec=1"),
        ("rtpmap", "97 telephone-event/48000"),
        ("fmtp", "97 0-15"),
    )


def test_opus_with_digits_by_another_clock() -> None:
    lines = ("a=rtpmap:96 opus/48000/2", "a=rtpmap:101 telephone-event/8000")
    description = offer("m=audio 4000 RTP/AVP 96 101", *lines)
    (stream,) = negotiate(description, ALL)
    assert (stream.codec, stream.telephone_event, stream.event_clock_hz) == (Codec.OPUS, 101, 8000)
    assert ("rtpmap", "101 telephone-event/8000") in answered(description).media[0].attributes


@pytest.mark.parametrize("mapped", ["opus/8000", "opus/48000/6", "PCMU/48000", "PCMA/8000/2"])
def test_a_codec_with_another_clock_is_another_codec(mapped: str) -> None:
    with pytest.raises(NotAcceptable):
        negotiate(offer("m=audio 4000 RTP/AVP 96", f"a=rtpmap:96 {mapped}"), ALL)


def test_an_offer_has_digits_for_each_clock() -> None:
    own = make_offer(ALL, 10000, address="192.0.2.1", origin=ORIGIN)
    assert own.media[0].formats == ("9", "0", "8", "111", "101", "100")
    clocks = {f.payload_type: f.clock_hz for f in own.media[0].rtp_formats() if f.encoding == "TELEPHONE-EVENT"}
    assert clocks == {101: 8000, 100: 48000}


def test_the_telephone_event_of_the_codecs_clock_is_taken() -> None:
    lines = ("a=rtpmap:100 telephone-event/48000", "a=rtpmap:101 telephone-event/8000")
    (stream,) = negotiate(offer("m=audio 4000 RTP/AVP 0 100 101", *lines), ALL)
    assert stream.telephone_event == 101


@pytest.mark.parametrize(
    "media",
    [
        "m=audio 4000 RTP/AVP 18 4",
        "m=audio 0 RTP/AVP 0",
        "m=audio 4000 RTP/SAVP 0",
        "m=video 4000 RTP/AVP 0",
        "m=audio 4000 RTP/AVP 96",
        "m=audio 4000 RTP/AVP 999999 hello",
    ],
)
def test_nothing_in_common_is_488(media: str) -> None:
    with pytest.raises(NotAcceptable) as caught:
        negotiate(offer(media), ALL)
    assert caught.value.status == 488


@pytest.mark.parametrize(
    ("offered", "address", "ours", "held", "sends_to"),
    [
        ("sendrecv", "192.0.2.9", "sendrecv", False, ("192.0.2.9", 4000)),
        ("sendonly", "192.0.2.9", "recvonly", True, ("192.0.2.9", 4000)),
        ("recvonly", "192.0.2.9", "sendonly", False, ("192.0.2.9", 4000)),
        ("inactive", "192.0.2.9", "inactive", True, ("192.0.2.9", 4000)),
        ("sendrecv", "0.0.0.0", "recvonly", True, None),
        ("inactive", "0.0.0.0", "inactive", True, None),
        ("recvonly", "0.0.0.0", "inactive", True, None),
    ],
)
@pytest.mark.parametrize("level", ["media", "session"])
def test_direction_is_answered(
    offered: str, address: str, ours: str, held: bool, sends_to: tuple[str, int] | None, level: str
) -> None:
    if level == "media":
        description = offer("m=audio 4000 RTP/AVP 0", f"a={offered}", connection=address)
    else:
        description = offer("m=audio 4000 RTP/AVP 0", connection=address, session=f"a={offered}")
    (stream,) = negotiate(description, ALL)
    assert (stream.direction, stream.on_hold, stream.remote) == (Direction(ours), held, sends_to)
    answer = answered(description)
    assert answer.direction_of(answer.media[0]) is Direction(ours)


def test_m_lines_keep_their_order_and_labels() -> None:
    description = offer(
        "m=video 5000 RTP/AVP 96",
        "m=audio 4000 RTP/AVP 0",
        "a=label:10",
        "a=sendonly",
        "m=application 9 UDP/BFCP *",
        "m=audio 4002 RTP/AVP 8",
        "a=label:20",
        "a=sendonly",
    )
    streams = negotiate(description, ALL, streams=2)
    assert [(stream.index, stream.label) for stream in streams] == [(1, "10"), (3, "20")]
    answer = make_answer(description, streams, own_ends({1: 10000, 3: 10002}), ORIGIN)
    assert [(media.kind, media.port) for media in answer.media] == [
        ("video", 0),
        ("audio", 10000),
        ("application", 0),
        ("audio", 10002),
    ]
    assert [answer.media[index].attribute("label") for index in (1, 3)] == ["10", "20"]
    only = make_answer(description, negotiate(description, ALL), own_ends({1: 10000}), ORIGIN)
    assert [media.port for media in only.media] == [0, 10000, 0, 0]


def test_rtcp_mux_only_when_offered() -> None:
    with_mux = answered(offer("m=audio 4000 RTP/AVP 0", "a=rtcp-mux")).media[0]
    without = answered(offer("m=audio 4000 RTP/AVP 0")).media[0]
    assert (with_mux.attribute("rtcp-mux"), without.attribute("rtcp-mux")) == ("", None)


@given(st.permutations(ALL), st.permutations(ALL))
def test_an_answer_to_our_offer_is_understood(ours: list[Codec], theirs: list[Codec]) -> None:
    """Two of us: what one answers is what the other takes from the answer."""
    first = make_offer(ours, 10000, address="192.0.2.1", origin=ORIGIN)
    assert SessionDescription.parse(str(first)) == first
    streams = negotiate(first, theirs)
    answer = make_answer(first, streams, {0: OwnEnd(20000, "192.0.2.2")}, ORIGIN)
    (taken,) = accept_answer(first, SessionDescription.parse(str(answer)), ours)
    assert taken.codec is streams[0].codec is ours[0]
    assert taken.remote == ("192.0.2.2", 20000)


@pytest.mark.parametrize("address", ["pbx.example.org", "239.1.1.1"])
def test_an_address_that_is_not_an_ipv4_host_is_learned_from_packets(address: str) -> None:
    assert negotiate(offer("m=audio 4000 RTP/AVP 0", connection=address), ALL)[0].remote is None


BOTH = ("IP4", "IP6")
ORIGIN6 = Origin("-", "1", "1", "2001:db8::1", "IP6")


def offer6(*media: str, connection: str = "2001:db8::9") -> SessionDescription:
    lines = ["v=0", "o=- 1 1 IN IP6 2001:db8::9", "s=-", f"c=IN IP6 {connection}", "t=0 0", *media]
    return SessionDescription.parse("\r\n".join(lines) + "\r\n")


def test_an_offer_over_ipv6_is_answered_over_ipv6() -> None:
    description = offer6("m=audio 4000 RTP/AVP 0", connection="2001:DB8:0:0::0009")
    (stream,) = negotiate(description, ALL, families=BOTH)
    assert (stream.family, stream.remote, stream.control) == ("IP6", ("2001:db8::9", 4000), ("2001:db8::9", 4001))
    answer = str(make_answer(description, (stream,), {0: OwnEnd(10000, "2001:db8::1")}, ORIGIN))
    assert "o=- 1 1 IN IP6 2001:db8::1\r\n" in answer and "c=IN IP6 2001:db8::1\r\n" in answer


def test_media_of_a_family_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(NotAcceptable, match="over IPv4$"):
        negotiate(offer6("m=audio 4000 RTP/AVP 0"), ALL, families=("IP4",))
    with pytest.raises(NotAcceptable, match="over IPv6$"):
        negotiate(offer("m=audio 4000 RTP/AVP 0"), ALL, families=("IP6",))
    mixed = offer6("m=audio 4000 RTP/AVP 0", "m=audio 4002 RTP/AVP 0", "c=IN IP4 192.0.2.9")
    for families, index in ((("IP4",), 1), (("IP6",), 0), (BOTH, 0)):
        assert [stream.index for stream in negotiate(mixed, ALL, families=families)] == [index]


def test_each_stream_of_an_answer_may_have_its_own_address() -> None:
    lines = "m=audio 4000 RTP/AVP 0", "c=IN IP4 192.0.2.9", "m=audio 4002 RTP/AVP 0", "m=video 1 RTP/AVP 96"
    description = offer6(*lines)
    streams = negotiate(description, ALL, streams=2, families=BOTH)
    ports = {0: 10000, 1: 10002}
    answer = make_answer(description, streams, own_ends(ports) | {1: OwnEnd(ports[1], "2001:db8::1")}, ORIGIN)
    assert SessionDescription.parse(str(answer)) == answer
    taken = negotiate(answer, ALL, streams=2, families=BOTH)
    assert [(stream.family, stream.remote) for stream in taken] == [
        ("IP4", ("192.0.2.1", 10000)), ("IP6", ("2001:db8::1", 10002)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "control"),
    [
        (["a=rtcp:5001"], ("2001:db8::9", 5001)),
        (["a=rtcp:5001 IN IP6 2001:DB8::7"], ("2001:db8::7", 5001)),
        (["a=rtcp:5001 IN IP4 192.0.2.7"], ("2001:db8::9", 4001)),  # nothing gets there from an IPv6 socket
        (["a=rtcp-mux", "a=rtcp:5001"], ("2001:db8::9", 4000)),
    ],
)
def test_where_reports_go_over_ipv6(lines: list[str], control: tuple[str, int]) -> None:
    (stream,) = negotiate(offer6("m=audio 4000 RTP/AVP 0", *lines), ALL, families=BOTH)
    assert stream.control == control


@pytest.mark.parametrize("address", ["::", "::0", "0:0:0:0:0:0:0:0", "::/64"])
def test_the_null_address_of_ipv6_is_a_hold(address: str) -> None:
    (stream,) = negotiate(offer6("m=audio 4000 RTP/AVP 0", connection=address), ALL, families=BOTH)
    assert (stream.on_hold, stream.remote, stream.direction) == (True, None, Direction.RECVONLY)


@pytest.mark.parametrize(
    "address", ["pbx.example.org", "ff02::1", "::ffff:192.0.2.9", "192.0.2.9", "fe80::1%eth0", "2001:db8::g", "1::2::3"]
)
def test_an_address_that_is_not_an_ipv6_host_is_learned_from_packets(address: str) -> None:
    (stream,) = negotiate(offer6("m=audio 4000 RTP/AVP 0", connection=address), ALL, families=BOTH)
    assert (stream.remote, stream.on_hold) == (None, False)


def test_a_refresh_moves_nothing_to_the_other_family() -> None:
    agreed = negotiate(offer("m=audio 4000 RTP/AVP 0"), ALL, families=BOTH)
    assert moved(agreed, negotiate(offer6("m=audio 4004 RTP/AVP 0"), ALL, families=BOTH)) == ()
    (to,) = moved(agreed, negotiate(offer("m=audio 4004 RTP/AVP 0"), ALL, families=BOTH))
    assert to.remote == ("192.0.2.9", 4004)


def test_what_we_offer_over_ipv6() -> None:
    first = make_offer(ALL, 10000, address="2001:db8::1", origin=ORIGIN)
    assert (first.origin, first.connection) == (ORIGIN6, ConnectionLine("2001:db8::1", "IP6"))
    (taken,) = accept_answer(first, offer6("m=audio 4000 RTP/AVP 0"), ALL)
    assert taken.family == "IP6"
    with pytest.raises(NotAcceptable):
        accept_answer(first, offer("m=audio 4000 RTP/AVP 0"), ALL)


# Messages


header_name = st.text(st.characters(codec="ascii", categories=("Ll",), include_characters="-"), min_size=2, max_size=12)
header_value = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30).map(str.strip)


@given(
    token,
    st.lists(st.tuples(header_name, header_value), max_size=5).map(tuple),
    st.text(st.characters(exclude_characters="\r", exclude_categories=("Cs",)), max_size=60),
)
def test_messages_print_as_they_are_read(start: str, headers: tuple[tuple[str, str], ...], body: str) -> None:
    message = SipMessage(start, headers, body)
    assert SipMessage.parse(str(message)) == message


@given(st.text(max_size=200))
def test_hostile_messages_are_a_peers_error(text: str) -> None:
    try:
        message = SipMessage.parse(text)
    except PeerError:
        return
    message.part("application/sdp")
    message.public_headers()


INVITE = (
    'INVITE sip:1@h SIP/2.0\r\nf: "A <b>" <sip:4711@pbx;transport=tcp>;tag=1\r\ni: abc\r\n'
    "Authorization: Digest x=1\r\n"
    'Subject: one\r\n  two\r\nX-A: 1\r\nX-A: 2\r\nc: multipart/mixed;boundary="b1"\r\n\r\n'
    "--b1\r\nContent-Type: application/sdp\r\n\r\nv=0\r\n\r\n--b1\r\n"
    "Content-Type: application/rs-metadata+xml\r\n\r\n<x/>\r\n--b1--\r\n"
)


def test_an_invite_is_read() -> None:
    message = SipMessage.parse(INVITE)
    assert address_uri(message.header("from")) == "sip:4711@pbx"
    assert address_uri("sip:a@b;x=1") == "sip:a@b"
    headers = message.public_headers()
    assert headers["call-id"] == "abc"
    assert headers["subject"] == "one two"
    assert headers["x-a"] == "1, 2"
    assert "authorization" not in headers
    assert message.part("application/sdp").strip() == "v=0"
    assert message.part("application/rs-metadata+xml").strip() == "<x/>"
    assert message.part("text/plain") == ""


def test_credentials_are_not_logged() -> None:
    text = 'REGISTER sip:h SIP/2.0\r\nAuthorization: Digest\r\n response="s3cret"\r\n'
    text += "proxy-authorization:s3cret\r\nVia: x\r\n"
    assert "s3cret" not in mask_message(text)
    assert "Via: x" in mask_message(text)


@pytest.mark.parametrize(
    ("content_type", "body", "found"),
    [
        ("application/dtmf-relay", "Signal=5\r\nDuration=160\r\n", ("5", 160)),
        ("application/dtmf-relay", "Signal= *\r\nDuration= 250", ("*", 250)),
        ("Application/DTMF-Relay; x=y", "signal=d", ("D", 0)),
        ("application/dtmf", "#", ("#", 0)),
        ("application/dtmf", "Signal=7", ("7", 0)),
        ("application/dtmf", "hello", None),
        ("application/dtmf", "", None),
        ("application/dtmf-relay", "Signal=x", None),
        # Events by their numbers (RFC 4733 section 3.2).
        ("application/dtmf-relay", "Signal=10\r\nDuration=250\r\n", ("*", 250)),
        ("application/dtmf-relay", "Signal=11", ("#", 0)),
        ("application/dtmf-relay", "Signal= 12\nDuration= 100", ("A", 100)),
        ("application/dtmf-relay", "SIGNAL = 15", ("D", 0)),
        ("application/dtmf-relay", "Signal=05", ("5", 0)),
        ("application/dtmf", "10", ("*", 0)),
        ("application/dtmf", "Signal=11\r\nDuration=160", ("#", 160)),
        # A flash is no digit.
        ("application/dtmf-relay", "Signal=16\r\nDuration=500\r\n", ("", 500)),
        ("application/dtmf-relay", "Signal=!", ("", 0)),
        ("application/dtmf", "16", ("", 0)),
        ("application/hook-flash", "", ("", 0)),
        ("application/dtmf-relay", "Signal=17", None),
        ("application/dtmf-relay", "Signal=99", None),
        ("application/dtmf-relay", "Signal=555", None),
        ("application/dtmf-relay", "Signal=5x", None),
        ("application/dtmf-relay", "Signal=", None),
        ("application/dtmf-relay", "Signal=\u0665", None),
        ("application/dtmf", "123", None),
        ("application/dtmf", "a", ("A", 0)),
        # Spellings.
        ("APPLICATION/dtmf-relay;charset=utf-8", "Duration=160\r\nSignal=A\r\n", ("A", 160)),
        ("application/dtmf-relay", "Signal: 9\nDuration: 80", ("9", 80)),
        ("application/dtmf-relay", 'Signal="#"', ("#", 0)),
        ("application/dtmf-relay", "Signal=1\r\nDuration=", ("1", 0)),
        ("application/dtmf-relay", "Signal=1\r\nDuration=-5", ("1", 0)),
        ("application/dtmf-relay", "Signal=1\r\nDuration=9999999999", ("1", 0)),
        ("application/dtmf-relay", "7", ("7", 0)),
        (
            "application/vnd.nortelnetworks.digits",
            "p=Digit-Collection\r\ny=Digits\r\n\r\nd=7\r\nDuration=100",
            ("7", 100),
        ),
        ("application/media_control+xml", "5", None),
    ],
)
def test_digits_in_info(content_type: str, body: str, found: tuple[str, int] | None) -> None:
    assert dtmf_info(content_type, body) == found


@pytest.mark.parametrize("piece", ['\\"', '"', '"\\', "\\", "<", ";tag", '"a'])
def test_headers_made_to_be_slow_are_read_at_once(piece: str) -> None:
    """A message may have 64 KB, and everybody's calls wait while one is read."""
    header = '"' + piece * (60000 // len(piece)) + "\\"
    started = time.process_time()
    address_uri(header)
    tag_of(header)
    assert time.process_time() - started < 0.5
    assert address_uri('"a <sip:b@c>') == "sip:b@c", "of a string that nobody closes"
    assert tag_of('"a;tag=x\\"" <sip:b@c;tag=y>;tag=z') == "z"


@pytest.mark.parametrize(
    ("text", "warning"),
    [("IN IP7 192.0.2.1", 301), ("IN ip4 192.0.2.1", 301), ("ATM NSAP 47.0091.8100", 300)],
)
def test_a_connection_of_another_kind_is_refused_with_its_warning(text: str, warning: int) -> None:
    with pytest.raises(NotAcceptable) as raised:
        ConnectionLine.parse(text)
    assert raised.value.warning == warning


@pytest.mark.parametrize("text", ["", "IN", "IN IP4", "IN IP4 192.0.2.1 x"])
def test_a_connection_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(SdpError, match="bad connection"):
        ConnectionLine.parse(text)
