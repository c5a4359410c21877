"""What is fuzzed: how each target is made, what it begins with, and its share of the inputs."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.fuzz import media, profiles, secure, text

DATA = Path(__file__).parents[2] / "tests/data"


@dataclass(frozen=True, slots=True)
class Target:
    make: Callable[[], Callable[[bytes], None]]
    """A new one: `take(data)` raises only for a defect of ours."""
    seeds: Callable[[], Sequence[bytes]]
    words: tuple[bytes, ...] = ()
    share: int = 1


def _stateless(take: Callable[[bytes], None]) -> Callable[[], Callable[[bytes], None]]:
    return lambda: take


def _capture_seeds() -> list[bytes]:
    return [gzip.decompress(path.read_bytes())[:2000] for path in sorted((DATA / "replay").glob("*.gz"))]


TARGETS: dict[str, Target] = {
    "rtp": Target(media.Rtp, lambda: media.rtp_seeds(DATA), share=4),
    "digits": Target(lambda: media.Rtp(digits=True), media.event_seeds, share=2),
    "twilio": Target(
        media.Twilio,
        lambda: media.twilio_seeds(DATA),
        (b'"event":"media"', b'"event":"start"', b'"event":"stop"', b'"dtmf":{"digit":"5"}', b"[" * 500, b"\\ud800"),
        share=3,
    ),
    "stream": Target(
        media.Streams,
        media.stream_seeds,
        (b'{"type":"config"}', b'{"type":"flush"}', b'"vad":false', b'"encoding":"alaw"', b"[" * 500, b"\\ud800"),
        share=2,
    ),
    "asterisk": Target(
        media.Asterisk,
        media.asterisk_seeds,
        (b'"event":"MEDIA_START"', b"format:slin", b"MEDIAWORKER_CALL", b"DTMF_END digit:5", b"\\ud800", b"\n\n"),
        share=2,
    ),
    "audiosocket": Target(
        media.AudioSocket,
        media.audiosocket_seeds,
        (b"\x00\x00\x00", b"\x03\x00\x015", b"\x10\x00\x02", b"\x12\xff\xff", b"\x18\x00\x01", b"\xff\x00\x01\x04"),
        share=2,
    ),
    "offer": Target(
        _stateless(text.offer),
        text.offer_seeds,
        (
            b"m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n",
            b"m=audio 40000 RTP/AVP 0\r\n",
            b"c=IN IP4 127.0.0.1\r\n",
            b"\r\n--b\r\n",
        ),
    ),
    "sdp": Target(
        _stateless(text.sdp),
        lambda: [text.SDP, *profiles.PROFILES],
        (b"a=sendonly", b"m=audio 9 RTP/AVP 0", b"\r", *profiles.WORDS),
        share=2,
    ),
    "sip": Target(
        _stateless(text.sip),
        lambda: [text.INVITE + text.MULTIPART, text.INVITE + b"\r\n", text.INFO],
        (b"application/dtmf\r\n", b"\r\n ", b"--b", b'"' * 200, b"<" * 200, b" " * 200, b"Signal=", b"anonymous"),
        share=2,
    ),
    "siprec": Target(
        _stateless(text.siprec),
        lambda: [text.METADATA],
        (b"partial", b"<disassociate-time/>", b"&#55296;", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"<a>" * 200, b"mixed"),
    ),
    "rtcp": Target(
        _stateless(secure.rtcp),
        lambda: secure.RTCP_SEEDS,
        (b"\x81\xc8\x00\x0c", b"\x81\xc9\x00\x07", b"\x81\xca\x00\x02", b"\x9f\xc9\xff\xff", b"\x80\xcb\0\0"),
    ),
    "srtp": Target(
        secure.Srtp,
        secure.srtp_seeds,
        (b"inline:", b"AES_CM_128_HMAC_SHA1_80 ", b"|2^20|1:4", b" KDR=0", b"\x80\x00", b"\x80\xc8"),
    ),
    "stun": Target(
        _stateless(secure.stun),
        secure.stun_seeds,
        (b"\x00\x20\x00\x08", b"\x00\x01\x00\x08", b"\x00\x09\x00\x04", b"\x01\x11", b"\x80\x28\x00\x04", b"\xff\xff"),
    ),
    "opus": Target(
        media.Opus,
        media.opus_seeds,
        (b"\xf8\xff\xfe", b"\x03", b"\x0b\xff", b"\x78\x01", b"\xff\xff\xff"),
    ),
    "digest": Target(
        _stateless(text.digest),
        lambda: [text.CREDENTIALS],
        (b'username="', b"qop=auth", b"nc=00000001", b'nonce="', b"algorithm=SHA-256", b'\\"', b", , ,", b"=" * 200),
    ),
    "http": Target(
        _stateless(text.http),
        lambda: [
            b"GET /v1/events?call=* HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nOrigin: http://127.0.0.1:8080\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: bearer, wrong-key\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"PATCH / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong-key\r\nContent-Length: 3\r\n\r\nabc",
        ],
        (b"Transfer-Encoding: chunked\r\n", b"Content-Length: 1\r\n", b"Host: [\r\n", b"Forwarded: x\r\n", b"[::1"),
    ),
    "query": Target(
        _stateless(text.query),
        lambda: [b"call=0193&after=0a1b:12&types=call.started,dtmf", b"after=a:0", b"call=*"],
        (b"&call=", b"&after=", b"%3A", b"dtmf", b"%ff"),
    ),
    "patch": Target(
        _stateless(text.patch),
        lambda: [b'{"names":{"inbound":"Ann"},"language":"en"}', b'{"names":{}}', b'{"language":""}'],
        (b"[" * 2000, b'{"a":' * 700, b"\\ud800", b'"names"', b"null", b"\\u0000"),
    ),
    "upload": Target(
        _stateless(text.upload),
        lambda: [text.UPLOAD, text.UPLOAD.replace(b"\r\n--b--", b"\r\n--b\r\n\r\nx\r\n--b--")],
        (b"\r\n--b", b"--b--", b'name="', b'; filename="', b"\r\n\r\n", b"timestamp_granularities[]", b"{" * 500),
        share=2,
    ),
    "webhook": Target(
        _stateless(text.webhook),
        lambda: [b"CallSid=CA1&From=%2B1555&To=&Direction=inbound", b"StreamEvent=stream-error&StreamError=x"],
        (b"%00", b"%ED%A0%80", b"]]>", b"&a", b"%0B", b"%EF%BF%BE"),
    ),
    "capture": Target(_stateless(text.capture), _capture_seeds),
}
