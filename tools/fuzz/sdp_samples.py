"""Session descriptions of every kind in IANA's registry of SDP parameters (RFC 8866 section 8), and odd ones beside
them, each with the statuses that are a sensible answer to it."""

from __future__ import annotations

import base64
from dataclasses import dataclass

KEY = base64.b64encode(bytes(range(30))).decode()
CRYPTO = f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}"
FINGERPRINT = ("a=setup:actpass", "a=fingerprint:sha-256 " + ":".join(["AB"] * 32))
PLAIN = "m=audio 40000 RTP/AVP 0"
SRTP = ("RTP/SAVP", "RTP/SAVPF")
SPOKEN = ("RTP/AVP", "RTP/AVPF")

PROTOCOLS = (
    *("udp", "vat", "rtp", "UDPTL", "TCP", "RTP/AVP", "RTP/SAVP", "RTP/AVPF", "RTP/SAVPF", "TCP/RTP/AVP"),
    *("TCP/RTP/SAVP", "TCP/RTP/AVPF", "TCP/RTP/SAVPF", "TCP/TLS", "TCP/TLS/RTP/SAVP", "TCP/TLS/RTP/SAVPF"),
    *("TCP/TLS/RTP/AVP", "TCP/TLS/RTP/AVPF", "TCP/DTLS/RTP/SAVP", "TCP/DTLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP"),
    *("UDP/TLS/RTP/SAVPF", "UDP/TLS/UDPTL", "DCCP", "DCCP/RTP/AVP", "DCCP/RTP/SAVP", "DCCP/RTP/AVPF"),
    *("DCCP/RTP/SAVPF", "DCCP/TLS/RTP/SAVP", "DCCP/TLS/RTP/SAVPF", "TCP/DCCP", "SCTP", "SCTP/DTLS", "DTLS/SCTP"),
    *("UDP/DTLS/SCTP", "TCP/DTLS/SCTP", "TCP/MSRP", "TCP/TLS/MSRP", "TCP/WS/MSRP", "TCP/WSS/MSRP", "TCP/BFCP"),
    *("TCP/TLS/BFCP", "UDP/BFCP", "UDP/TLS/BFCP", "TCP/WS/BFCP", "TCP/WSS/BFCP", "TCP/DTLS/BFCP", "FLUTE/UDP"),
    *("UDP/FEC", "UDP/MIKEY", "FEC/UDP", "TCP/MRCPv2", "TCP/TLS/MRCPv2", "TCP/TLS/1-Secure", "PSTN", "AAL1/AVP"),
    *("AAL2/ITU", "AAL5/AVP", "UDP/UDPTL", "UDP/QUIC", "RTP/AVP/TCP", "nonsense", "/", "RTP/", "//RTP", "rtp/avp"),
)
MEDIA = {
    "audio": "RTP/AVP 0",
    "video": "RTP/AVP 31",
    "text": "RTP/AVP 98",
    "application": "UDP/DTLS/SCTP webrtc-datachannel",
    "message": "TCP/MSRP *",
    "image": "udptl t38",
    "data": "udp 9",
    "control": "RTP/AVP 33",
    "model": "RTP/AVP 33",
}
NETWORKS = (
    *("IN IP4 192.0.2.1", "IN IP6 2001:db8::1", "TN RFC2543 +1-201-555-0123", "PSTN E164 +12015550123"),
    *("ATM NSAP 47.0091.8100.0000.0060.3e64.fd01.0060.3e64.fd01.00", "ATM GWID pbx1", "ATM E164 12015550123", "- - -"),
    *(
        "IN IP4 224.2.1.1/127/3",
        "IN IP6 FF15::101/3",
        "IN IP4 pbx.example",
        "IN IP4 0.0.0.0",
        "IN IP6 ::",
        "IN IP4 ::1",
    ),
    *("IN IP4 256.256.256.256", "IN IP5 1", "IN IP4", "IN", "", "IN IP4 192.0.2.1 more", "in ip4 192.0.2.1"),
    *("IN IP4 " + "9" * 5000, "IN IP4 127.0.0.1%lo", "IN IP4 255.255.255.255"),
)
DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")
GROUPS = ("BUNDLE a b", "LS a b", "FID a", "SRF a", "ANAT a b", "FEC a b", "FEC-FR a b", "CS a", "DDP a", "DUP a b")
FINE, NOT_HERE, BAD, EITHER = {200}, {488}, {400}, {200, 400, 415, 488}
REFUSED = {400, 488}


@dataclass(frozen=True)
class Sample:
    """`statuses`: of the answer; as an answer in an ACK it keeps the call when 200 is one, and else ends it."""

    name: str
    body: str
    statuses: set[int]
    content_type: str = "application/sdp"


def described(*lines: str, session: tuple[str, ...] = ("c=IN IP4 127.0.0.1",), origin: str = "IN IP4 127.0.0.1") -> str:
    return "\r\n".join(("v=0", f"o=- 1 1 {origin}", "s=-", *session, "t=0 0", *lines, ""))


def _protocols() -> list[Sample]:
    found = []
    for protocol in PROTOCOLS:
        line = f"m=audio 40002 {protocol} 0"
        alone = FINE if protocol in SPOKEN else NOT_HERE if all(protocol.split("/")) else BAD
        beside = FINE if protocol.strip("/") == protocol else EITHER
        found += [
            Sample(f"{protocol} alone", described(line), alone),
            Sample(f"{protocol} with a fingerprint", described(line, *FINGERPRINT), alone),
            Sample(f"{protocol} with keys", described(line, CRYPTO), FINE if protocol in SRTP else alone),
            Sample(f"{protocol} before a plain line", described(line, *FINGERPRINT, PLAIN), beside),
            Sample(f"{protocol} behind a plain line", described(PLAIN, line, *FINGERPRINT, CRYPTO), beside),
        ]
    return found


def _twice_understood() -> list[Sample]:
    """What two parsers may take for different things."""
    lines = {
        "digits of another clock first": ("0 101 96", "101 telephone-event/16000", "96 telephone-event/8000"),
        "digits of another clock last": ("0 96 101", "101 telephone-event/16000", "96 telephone-event/8000"),
        "digits twice": ("8 101 96", "101 telephone-event/8000", "96 telephone-event/8000"),
        "digits at a number of RTCP": ("0 72", "72 telephone-event/8000"),
        "digits at an unassigned number": ("0 35", "35 telephone-event/8000"),
        "digits at the number of a codec": ("0 10", "10 telephone-event/8000"),
        "a codec at an unassigned number first": ("45 0", "45 PCMA/8000"),
        "a codec and digits at unassigned numbers": ("95 8 94", "95 PCMU/8000", "94 telephone-event/8000"),
        "Opus of one channel first": ("111 0", "111 opus/48000/1"),
        "Opus without channels first": ("111 8", "111 opus/48000"),
        "a codec by its number and its name": ("97 0", "97 PCMU/8000"),
        "two names for a number": ("97", "97 AMR/8000", "97 PCMA/8000"),
    }
    found = [
        Sample(name, described(f"m=audio 40000 RTP/AVP {formats}", *(f"a=rtpmap:{each}" for each in rtpmaps)), FINE)
        for name, (formats, *rtpmaps) in lines.items()
    ]
    whole = described(PLAIN)
    found.append(
        Sample("a codec at an unassigned number", described("m=audio 4 RTP/AVP 45", "a=rtpmap:45 PCMA/8000"), NOT_HERE)
    )
    heads = {"no name": ("s=-\r\n", ""), "an empty name": ("s=-", "s="), "no user": ("o=- 1 1 ", "o=1 1 ")}
    return [*found, *(Sample(name, whole.replace(*change), FINE) for name, change in heads.items())]


def _media() -> list[Sample]:
    found = []
    for kind, rest in MEDIA.items():
        described_alone = described(f"m={kind} 40002 {rest}", "a=rtpmap:98 t140/1000", session=())
        found += [
            Sample(f"{kind} alone", described(f"m={kind} 40002 {rest}"), FINE if kind == "audio" else NOT_HERE),
            Sample(f"{kind} beside audio", described(PLAIN, f"m={kind} 40002 {rest}", "a=rtpmap:98 t140/1000"), FINE),
            Sample(f"{kind} without a connection", described_alone, REFUSED),
            Sample(f"{kind} closed, no connection", described(f"m={kind} 0 {rest}", session=()), REFUSED),
        ]
    return found


def _networks() -> list[Sample]:
    found = []
    for network in NETWORKS:
        here = FINE if network.startswith(("IN IP4 2", "IN IP4 1", "IN IP4 0", "IN IP4 p")) else REFUSED
        here = (
            EITHER if network.endswith(("more", "%lo", "256")) or "999" in network or network == "IN IP4 ::1" else here
        )
        line = f"c={network}"
        found += [
            Sample(f"session at {network[:40]}", described(PLAIN, session=(line,)), here),
            Sample(f"media at {network[:40]}", described(PLAIN, line), here),
            Sample(f"video at {network[:40]}", described(PLAIN, "m=video 40002 RTP/AVP 31", line), EITHER),
            Sample(f"closed video at {network[:40]}", described(PLAIN, "m=video 0 RTP/AVP 31", line), EITHER),
            Sample(f"origin {network[:40]}", described(PLAIN, origin=network), EITHER),
            Sample(f"control at {network[:40]}", described(PLAIN, f"a=rtcp:53020 {network}"), EITHER),
        ]
    return found


def _odd() -> list[Sample]:
    formats = " ".join(map(str, range(96, 128)))
    mapped = [f"a=rtpmap:{number} x{number}/8000" for number in range(96, 128)]
    bad = ("a=crypto:1 UNKNOWN inline:x", "a=crypto:", "a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:c2hvcnQ=")
    bad += (CRYPTO + "|2^20|1:4", CRYPTO + " UNENCRYPTED_SRTP", CRYPTO.replace("crypto:1", "crypto:99999999999999"))
    secure = "m=audio 40002 RTP/SAVP 0"
    found = [Sample(f"direction {each}", described(PLAIN, f"a={each}"), FINE) for each in DIRECTIONS]
    found += [Sample(f"session {each}", described(f"a={each}", PLAIN), FINE) for each in DIRECTIONS]
    found += [
        Sample(f"group {each}", described(f"a=group:{each}", PLAIN, "a=mid:a", "m=video 9 RTP/AVP 31", "a=mid:b"), FINE)
        for each in GROUPS
    ]
    found += [Sample(f"no keys {line[9:]}", described(secure, line), NOT_HERE) for line in bad]
    found += [Sample(f"no keys {line[9:]} beside", described(secure, line, PLAIN), FINE) for line in bad]
    ports = {"0": NOT_HERE, "40000/2": FINE, "40000/65535": EITHER, "40000/0": EITHER, "65535": FINE, "1": FINE}
    ports |= {"65536": BAD, "-1": BAD, "99999999999999999999": BAD, "x": BAD, "40000/": EITHER, "/2": BAD, "0x10": BAD}
    found += [Sample(f"port {port}", described(f"m=audio {port} RTP/AVP 0"), said) for port, said in ports.items()]
    kinds = {"18": NOT_HERE, "0 0 0": FINE, "256": REFUSED, "-1": REFUSED, "99999999999": REFUSED, "x": REFUSED}
    kinds |= {
        "0 256": EITHER,
        "96": REFUSED,
        "*": REFUSED,
        "0 " * 100: FINE,
        "0 " + "x" * 3000: NOT_HERE,
        "13": NOT_HERE,
    }
    found += [
        Sample(f"formats {each[:20]}", described(f"m=audio 4 RTP/AVP {each}"), said) for each, said in kinds.items()
    ]
    found += [
        Sample("no formats", described("m=audio 40000 RTP/AVP"), BAD),
        Sample("no protocol", described("m=audio 40000"), BAD),
        Sample("nothing after m=", described("m="), BAD),
        Sample("no media", described(), REFUSED),
        Sample("no connection", described(PLAIN, session=()), REFUSED),
        Sample(
            "no connection, closed beside",
            described(PLAIN, "c=IN IP4 127.0.0.1", "m=video 0 RTP/AVP 31", session=()),
            FINE,
        ),
        Sample(
            "no connection, video beside",
            described(PLAIN, "c=IN IP4 127.0.0.1", "m=video 9 RTP/AVP 31", session=()),
            EITHER,
        ),
        Sample("all closed", described("m=audio 0 RTP/AVP 0", "m=video 0 RTP/AVP 31"), NOT_HERE),
        Sample("two lines", described(PLAIN, "m=audio 40004 RTP/AVP 8"), FINE),
        Sample("the same line twice", described(PLAIN, PLAIN), FINE),
        Sample("sixteen lines", described(*[PLAIN] * 16), FINE),
        Sample("seventeen lines", described(*[PLAIN] * 17), NOT_HERE),
        Sample("sixty lines", described(PLAIN, *["m=video 9 UDP/TLS/RTP/SAVPF 96"] * 59), NOT_HERE),
        Sample("five hundred lines", described(*[PLAIN] * 500), REFUSED),
        Sample("all formats", described(f"m=audio 40000 RTP/AVP 0 {formats}", *mapped), FINE),
        Sample("four hundred attributes", described(PLAIN, *["a=x:y"] * 400), EITHER),
        Sample("two thousand attributes", described(PLAIN, *["a=x"] * 2000), REFUSED),
        Sample("sixty keys", described(secure, *[CRYPTO] * 60), EITHER),
        Sample("two hundred keys", described(secure, *[CRYPTO] * 200), REFUSED),
        Sample("two hundred keys beside", described(secure, *[CRYPTO] * 200, PLAIN), EITHER),
        Sample(
            "two hundred unusable keys", described(secure, *[f"a=crypto:{n} X inline:y" for n in range(200)]), REFUSED
        ),
        Sample("two hundred keys for nothing", described(PLAIN, *[CRYPTO] * 200), EITHER),
        Sample("a bandwidth without a colon", described(PLAIN, "b=sendonly", PLAIN), BAD),
        Sample("a bandwidth without a colon before video", described(PLAIN, "b=AS", "m=video 40002 RTP/AVP 31"), BAD),
        *_twice_understood(),
        Sample("digits as PCMU", described("m=audio 40000 RTP/AVP 0 8", "a=rtpmap:0 telephone-event/8000"), FINE),
        Sample("a tab in a transport", described(PLAIN, "m=message 0 TCP/TL\t/MSRP *"), BAD),
        Sample("a bandwidth without a number", described(PLAIN, "b=AS:x"), BAD),
        Sample("times without a blank", described(PLAIN, PLAIN).replace("t=0 0", "t=0!0"), BAD),
        Sample("one time", described(PLAIN, PLAIN).replace("t=0 0", "t=0"), BAD),
        Sample("a connection of two words", described(PLAIN, "c=IN IP4", PLAIN), BAD),
        Sample("an origin of five words", described(PLAIN, PLAIN, origin="IN IP4"), BAD),
        Sample("two hundred bandwidths", described(PLAIN, *["b=AS:64"] * 200), EITHER),
        Sample("dynamic type without rtpmap", described("m=audio 40000 RTP/AVP 0 101"), EITHER),
        Sample("old data channel", described(PLAIN, "m=application 9 DTLS/SCTP 5000"), FINE),
        Sample(
            "data channel alone",
            described("m=application 9 UDP/DTLS/SCTP webrtc-datachannel", "a=sctp-port:5000"),
            NOT_HERE,
        ),
        Sample("T.38", described("m=image 40002 udptl t38", "a=T38FaxVersion:0"), NOT_HERE),
        Sample("BFCP beside", described(PLAIN, "m=application 9 TCP/BFCP *", "a=floorctrl:c-s"), FINE),
        Sample("no version", "o=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nm=audio 4 RTP/AVP 0\r\n", BAD),
        Sample("no origin", "v=0\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nm=audio 4 RTP/AVP 0\r\n", BAD),
        Sample(
            "no name", "v=0\r\no=- 1 1 IN IP4 1.1.1.1\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 4 RTP/AVP 0\r\n", EITHER
        ),
        Sample("line feeds", described(PLAIN).replace("\r\n", "\n"), FINE),
        Sample("no last line end", described(PLAIN).rstrip(), FINE),
        Sample("a zero byte", described(PLAIN, "a=x\0y"), BAD),
        Sample("not text", "\xff\xfe\xfd" * 50, BAD),
        Sample(
            "huge numbers",
            described(PLAIN, origin="IN IP4 127.0.0.1").replace("1 1", "9" * 400 + " " + "9" * 400),
            EITHER,
        ),
        Sample("huge clock", described("m=audio 4 RTP/AVP 96", "a=rtpmap:96 opus/99999999999/99999999999"), REFUSED),
        Sample("no clock", described("m=audio 4 RTP/AVP 96", "a=rtpmap:96 opus"), REFUSED),
        Sample("bad fmtp", described(PLAIN, "a=fmtp:", "a=fmtp:0", "a=rtpmap:", "a=rtcp:", "a=ptime:x", "a=:"), EITHER),
        Sample("ptime", described(PLAIN, "a=ptime:0", "a=maxptime:99999999999"), FINE),
        *(Sample(f"control port {port}", described(PLAIN, f"a=rtcp:{port}"), EITHER) for port in (0, 65536, 99999, -1)),
        Sample(
            "ICE", described(PLAIN, "a=ice-ufrag:x", "a=ice-pwd:y", "a=candidate:1 1 udp 1 127.0.0.1 9 typ host"), FINE
        ),
        Sample("multiplexed control", described(PLAIN, "a=rtcp-mux", "a=rtcp-mux-only"), FINE),
        Sample("bundle-only", described("a=group:BUNDLE a", PLAIN, "m=video 0 RTP/AVP 31", "a=bundle-only"), FINE),
        Sample("not SDP", "hello", {415}, "text/plain"),
        Sample("no such type", "hello", {415}, "x/y"),
        Sample("XML", "<a/>", {415}, "application/pidf+xml"),
        Sample("a multipart of nothing", "--b\r\n\r\n\r\n--b--\r\n", {400, 415}, "multipart/mixed;boundary=b"),
        Sample(
            "a multipart without SDP",
            "--b\r\nContent-Type: text/plain\r\n\r\nx\r\n--b--\r\n",
            {415},
            "multipart/mixed;boundary=b",
        ),
        Sample("a multipart without boundary", described(PLAIN), {400, 415}, "multipart/mixed"),
    ]
    for name, lines, said in (
        ("plain", (PLAIN,), FINE),
        ("DTLS", ("m=audio 4 UDP/TLS/RTP/SAVPF 0", *FINGERPRINT), NOT_HERE),
        ("DTLS and plain", ("m=audio 4 UDP/TLS/RTP/SAVPF 0", *FINGERPRINT, PLAIN), FINE),
    ):
        part = "--b\r\nContent-Type: application/sdp\r\n\r\n" + described(*lines) + "\r\n--b--\r\n"
        found.append(Sample(f"a multipart of {name}", part, said, "multipart/mixed;boundary=b"))
    return found


SAMPLES = _protocols() + _media() + _networks() + _odd()
