"""Targets that read text: SDP, SIP, HTTP, queries, forms, JSON. What is wrong is refused in the parser's own way, and
what is accepted prints as it was read."""

from __future__ import annotations

import contextlib
import ctypes
import io
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import h11
from starlette.datastructures import QueryParams

from audio.codecs.codec import Codec
from config import Endpointing
from config.network.addresses import Family
from config.settings import ApiKey, Secret, Sip
from mediaworker.access.keys import decide
from mediaworker.access.local_trust import is_local
from mediaworker.events.schema import EventError
from mediaworker.events.subscription import Cursor
from mediaworker.http import uploads
from mediaworker.http.openai import form as openai_form
from mediaworker.http.problem import Problem
from mediaworker.http.request_watch import MAX_HEAD, BadRequest, RequestWatch
from mediaworker.http.requests import parsed
from mediaworker.http.resources import calls, events, jobs
from mediaworker.ingress.sip.headers import MAX_HEADERS, calling_uri, custom_headers, overriding_headers, user_part
from mediaworker.ingress.twilio.webhook import twiml, verify
from mediaworker.replay import pcap
from mediaworker.replay.datagrams import DatagramCounters, datagrams
from sip.admission.digest import Challenger, same_target
from sip.pjsip import native
from sip.protocol import offer_check, trace
from sip.protocol import siprec as metadata
from sip.protocol.errors import PeerError
from sip.protocol.message import SipMessage, address_uri, dtmf_info
from sip.protocol.offer_answer import NegotiatedStream, match_answer, match_lines, negotiate, same_media
from sip.protocol.own_description import OwnEnd, make_answer
from sip.protocol.sdp import Origin, SessionDescription
from tools.fuzz.sdp_samples import SAMPLES

CODECS = (Codec.G722, Codec.PCMU, Codec.PCMA, Codec.OPUS)
SDP = b"""v=0\r\no=caller 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\na=sendrecv\r\n\
m=audio 10000 RTP/AVP 9 0 8 101\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\na=ptime:20\r\n\
m=video 0 RTP/AVP 96\r\nc=IN IP6 2001:db8::1\r\na=rtpmap:96 H264/90000\r\na=inactive\r\n"""
INVITE = (
    b"INVITE sip:100@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK1\r\n"
    b'f: "A \\"B\\" <x>" <sip:4711:secret@192.0.2.1;a=b?c=d>;tag=1\r\nTo: <sip:100@192.0.2.2>\r\ni: 1@x\r\n'
    b"CSeq: 1 INVITE\r\nSubject: folded\r\n  on\r\nAuthorization: Digest username=a\r\n"
    b'P-Asserted-Identity: "A" <sip:100@x>, <tel:+1>\r\nX-Mediaworker-Role-main: agent\r\n'
)
MULTIPART = (
    b"Content-Type: multipart/mixed;boundary=b\r\n\r\n--b\r\nContent-Type: application/sdp\r\n\r\n" + SDP + b"--b--"
)
METADATA = (
    b"<?xml version='1.0' encoding='UTF-8'?><recording xmlns='urn:ietf:params:xml:ns:recording:1'><datamode>complete"
    b"</datamode><session session_id='q'><sipSessionID>ab;remote=cd</sipSessionID></session>"
    b"<participant participant_id='a'><nameID aor='sip:100@x;p=1'><name xml:lang='en'>A &amp; B</name></nameID>"
    b"</participant><stream stream_id='s'>"
    b"<label>1</label><mode>separate</mode></stream>"
    b"<participantstreamassoc participant_id='a'><send>s</send><recv>t</recv>"
    b"</participantstreamassoc></recording>"
)
CREDENTIALS = (
    b'Digest username="sbc", realm="mediaworker", nonce="5f.00112233aabbccdd.00112233445566778899aabbccddeeff", '
    b'uri="sip:1000@worker", response="753927fa0e85d155564e2e272a28d180", algorithm=MD5, qop=auth, '
    b'nc=00000001, cnonce="a"'
)
INFO = b"INFO sip:x SIP/2.0\r\nc: application/dtmf-relay\r\n\r\nSignal=5\r\nDuration=160\r\n"


def sdp(data: bytes) -> None:
    try:
        offer = SessionDescription.parse(data.decode("latin-1"))
    except PeerError:
        return
    printed = str(offer)
    assert str(SessionDescription.parse(printed)) == printed
    try:
        streams = negotiate(offer, CODECS, families=("IP4", "IP6"))
    except PeerError:
        return
    ends = {stream.index: OwnEnd(10000, "192.0.2.2") for stream in streams}
    answer = make_answer(offer, streams, ends, Origin("-", "1", "1", "192.0.2.2"))
    assert len(answer.media) == len(offer.media)
    assert SessionDescription.parse(str(answer)).media[streams[0].index].port == 10000


native.library.pj_log_set_level(0)
DESCRIPTION_BYTES = 65536


def negotiated(offer: str, answer: str, *, local: str) -> str:
    """The description that PJSIP negotiates from two: the `local` one, "offer" or "answer", as it would use it."""
    out = ctypes.create_string_buffer(DESCRIPTION_BYTES)
    texts = (each.encode("latin-1") for each in (offer, answer))
    length = native.library.mediaworker_negotiate(*texts, int(local == "answer"), out, DESCRIPTION_BYTES)
    assert length >= 0, f"PJSIP does not agree (status {-length})"
    return out.raw[:length].decode("latin-1")


FAMILIES: tuple[Family, ...] = ("IP4", "IP6")


def offer(data: bytes) -> None:
    """A whole request: what PJSIP is shown comes to the same here, and PJSIP agrees to what we answer."""
    match = partial(match_lines, codecs=CODECS, families=FAMILIES)
    try:
        judged = offer_check.judge(data, match)
    except PeerError as error:
        assert 400 <= error.status < 500 and all(value.isprintable() for _, value in error.headers)
        return
    if judged is None:
        return
    shown = SessionDescription.parse(judged.shown)
    streams = tuple(line for line in match(shown) if isinstance(line, NegotiatedStream))
    assert streams == judged.streams and str(shown) == judged.shown
    ports = {stream.index: 10000 + 2 * stream.index for stream in streams}
    ends = {
        stream.index: OwnEnd(ports[stream.index], "192.0.2.2", stream.crypto and stream.crypto.own())
        for stream in streams
    }
    ours = partial(make_answer, shown, streams, ends, Origin("-", "1", "2", "192.0.2.2"))
    own = ours()
    assert same_media(own, SessionDescription.parse(negotiated(judged.shown, str(own), local="answer")))
    own = ours(also=CODECS)  # the next offer, which the same description answers
    try:
        answered = offer_check.judge(data, partial(match_answer, own, codecs=CODECS))
    except PeerError:
        return
    assert answered is not None
    agreed = SessionDescription.parse(negotiated(str(own), answered.shown, local="offer"))
    for stream in answered.streams:
        line = agreed.media[stream.index]
        assert line.port == ports[stream.index] and line.formats[0] == str(stream.payload_type)


def offer_seeds() -> list[bytes]:
    """An INVITE with each of the samples."""
    head = b"INVITE sip:x SIP/2.0\r\nTo: <sip:x>\r\nContent-Type: "
    return [head + f"{each.content_type}\r\n\r\n{each.body}".encode() for each in SAMPLES if len(each.body) < 2000]


def siprec(data: bytes) -> None:
    """Complete, then again as an update: whatever came before, what is wrong changes nothing."""
    recording = metadata.Recording()
    for text in (data.decode("utf-8", errors="surrogateescape"), METADATA.decode()):
        try:
            recording.update(metadata.parse(text))
        except PeerError:
            continue
        for participant in recording.speakers("1", 0):
            (participant.name + participant.user).encode()
        assert len(recording.speakers("", 1, unmixed_place=0, of=2)) <= metadata.MAX_ITEMS
        "".join(recording.identities()).encode()
        mixed = recording.is_mixed("1", 0)
    assert not mixed
    (speaker,) = recording.speakers("1", 0)
    assert speaker.user == "100", "the second is complete: nothing of the first is left"


def sip(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    trace.mask_message(text)
    trace.parse(f"RX {len(text)} bytes Request msg INVITE/cseq=1 (r0x1) from UDP 192.0.2.1:5060:\n{text}\n--end msg--")
    try:
        message = SipMessage.parse(text)
    except PeerError:
        return
    assert not {"authorization", "proxy-authorization"} & message.public_headers().keys()
    for name in ("from", "to", "contact"):
        address_uri(message.header(name))
    headers = message.public_headers()
    user_part(calling_uri(address_uri(message.header("from")), headers))
    assert len(custom_headers(headers, Sip().headers)) <= MAX_HEADERS >= len(overriding_headers(headers))
    message.part("application/sdp")
    assert metadata.is_recording(message) or not metadata.metadata_of(message)
    digit = dtmf_info(message.header("content-type"), message.body)
    assert digit is None or (digit[0] in "0123456789*#ABCD" and 0 <= digit[1] < 100_000)


def digest(data: bytes) -> None:
    """Nobody guesses: whatever comes is nobody's credentials, but ours, once."""
    challenger = Challenger({"sbc": "secret"}, "mediaworker")
    text = data.decode("utf-8", errors="surrogateescape")
    verdict, _, reason = challenger.check(text, "INVITE", 0.0, uri="sip:1000@worker")
    assert verdict == "bad" or (verdict, reason) == ("stale", "nonce")
    assert same_target(text, text)


def http(data: bytes) -> None:
    watch, passed = RequestWatch(0.0, header_timeout_s=1, stall_s=1), b""
    try:
        for part in filter(None, (data[: len(data) // 2], data[len(data) // 2 :])):
            passed += watch.receive(part, 0.0)
        while watch.later:
            passed += watch.answered(1.0)
        assert watch.overdue(0.5) == "" and passed == data
    except BadRequest as bad:
        assert bad.status in (400, 426, 431, 501, 505) and data.startswith(passed)
    connection = h11.Connection(h11.SERVER, MAX_HEAD)
    with contextlib.suppress(h11.RemoteProtocolError):
        connection.receive_data(data)
        event = connection.next_event()
        if isinstance(event, h11.Request):
            event.target.decode("ascii")
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers]
            is_local(headers, "127.0.0.1")
            assert decide(headers, "127.0.0.1", KEYS, "admin").status != 200 or b"right-key" in data


KEYS = (ApiKey(name="k", key=Secret("right-key"), scopes=("admin",)),)


def query(data: bytes) -> None:
    asked: Any = SimpleNamespace(query_params=QueryParams(data.decode("latin-1")))
    try:
        events._types(asked.query_params.getlist("types"))
        call, after = events._one(asked, "call"), events._one(asked, "after")
    except Problem as problem:
        assert problem.status == 400
        problem.response()
        return
    assert call is None or events.CALL_ID.fullmatch(call) is None or call.isascii()
    try:
        cursor = Cursor.parse(after or "")
    except EventError:
        return
    assert str(cursor) == after and cursor.row < 1 << 63


def patch(data: bytes) -> None:
    try:
        found = parsed(data, calls.Patch)
    except Problem as problem:
        assert problem.status == 400
        problem.response()
        return
    assert all(len(name) <= 200 for name in found.names.values())


UPLOAD = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n'
    b'--b\r\nContent-Disposition: form-data; name="chunking_strategy"\r\n\r\n{"type": "server_vad"}\r\n'
    b'--b\r\nContent-Disposition: form-data; name="response_format"\r\n\r\nverbose_json\r\n'
    b'--b\r\nContent-Disposition: form-data; name="language"\r\n\r\nen\r\n--b--\r\n'
)
_CAN = openai_form.Can(("whisper-1",), ("en", "de"), words=True, endpointing=Endpointing())


def upload(data: bytes) -> None:
    """A form with a file, and what both kinds of requests make of its fields."""
    form = uploads.FormReader(b"b")
    try:
        form.feed(data)
    except uploads.BadUpload as bad:
        assert bad.status in (400, 413) and bad.detail
        return
    assert sum(map(len, form.fields.values())) <= uploads.MAX_FIELDS
    try:
        openai_form.parse(form.fields, _CAN)
    except Problem as error:
        assert error.status in (400, 404)
        error.response()
    try:
        jobs.parse_fields(form.fields)
    except Problem as problem:
        assert problem.status == 400
        problem.response()


def webhook(data: bytes) -> None:
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return
    assert not verify(("12345",), data[:40].decode("latin-1"), "https://twilio.test/twilio/voice", pairs)
    answer = twiml("wss://twilio.test/twilio/stream", "", "start", "", [("mw_from", value) for _, value in pairs])
    assert len(ElementTree.fromstring(answer).findall("Start/Stream/Parameter")) == len(pairs)


def capture(data: bytes) -> None:
    try:
        for datagram in datagrams(pcap._frames(io.BytesIO(data)), DatagramCounters()):
            assert len(datagram.payload) <= len(data)
    except pcap.CaptureError:
        pass
