"""Offers of every kind that telephony peers make, as seeds: transports, keys, fingerprints, holds and other media."""

from __future__ import annotations

_SESSION = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
_KEY = "inline:WnD7c1ksDGs+dIefCEo8omPg4uO8DYIinNGL5yxQ"
_PRINT = "a=fingerprint:sha-256 " + ":".join(["4A"] * 32) + "\r\na=setup:actpass\r\n"
_CRYPTO = (
    f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 {_KEY}\r\n"
    f"a=crypto:2 AES_CM_128_HMAC_SHA1_32 {_KEY}|2^31|1:4\r\n"
    f"a=crypto:3 AEAD_AES_256_GCM {_KEY} KDR=1 UNENCRYPTED_SRTP\r\n"
)
_ICE = "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789abcdef012345\r\na=candidate:1 1 UDP 2130706431 127.0.0.1 9 typ host\r\n"
_DYNAMIC = "a=rtpmap:96 opus/48000/2\r\na=fmtp:96 useinbandfec=1\r\na=rtpmap:101 telephone-event/8000\r\n"


def _audio(transport: str, lines: str = "", formats: str = "0 8", port: int = 9) -> str:
    return f"m=audio {port} {transport} {formats}\r\n{lines}"


_MEDIA = (
    _audio("RTP/AVP", _DYNAMIC + "a=ptime:20\r\na=sendrecv\r\n", "96 9 0 8 18 101"),
    _audio("RTP/AVPF", "a=rtcp-fb:* nack\r\na=rtcp-mux\r\na=rtcp:10 IN IP4 127.0.0.1\r\n"),
    _audio("RTP/SAVP", _CRYPTO),
    _audio("RTP/SAVP"),
    _audio("RTP/SAVPF", _CRYPTO + _PRINT),
    _audio("RTP/AVP", _CRYPTO),
    _audio("RTP/AVP", _PRINT),
    _audio("RTP/SAVP", _CRYPTO) + _audio("RTP/AVP"),
    _audio("UDP/TLS/RTP/SAVP", _PRINT),
    _audio("UDP/TLS/RTP/SAVPF", _PRINT + _ICE + "a=mid:0\r\na=rtcp-mux\r\na=ssrc:1 cname:x\r\n"),
    _audio("UDP/TLS/RTP/SAVPF"),
    _audio("UDP/TLS/RTP/SAVPF", _PRINT) + _audio("RTP/AVP"),
    _audio("RTP/AVP") + _audio("UDP/TLS/RTP/SAVP", _PRINT),
    _audio("TCP/RTP/AVP", "a=setup:active\r\na=connection:new\r\n"),
    _audio("TCP/TLS/RTP/SAVP", _PRINT),
    _audio("udp") + _audio("vat", formats="x"),
    _audio("RTP/AVP", "a=inactive\r\n", port=0) + _audio("RTP/AVP", "a=recvonly\r\nc=IN IP4 0.0.0.0\r\n"),
    _audio("RTP/AVP", "a=label:1\r\na=sendonly\r\n") + _audio("RTP/AVP", "a=label:2\r\na=sendonly\r\n"),
    _audio("RTP/AVP", "c=IN IP6 ::1\r\nb=AS:64\r\nb=TIAS:64000\r\ni=title\r\nk=clear:x\r\n"),
    _audio("RTP/AVP", "a=mid:0\r\na=bundle-only\r\n", port=0) + _audio("RTP/AVP", "a=mid:1\r\n"),
    "m=image 9 udptl t38\r\na=T38FaxVersion:0\r\na=T38MaxBitRate:14400\r\n" + _audio("RTP/AVP"),
    "m=text 9 RTP/AVP 98 100\r\na=rtpmap:98 t140/1000\r\na=rtpmap:100 red/1000\r\na=fmtp:100 98/98/98\r\n"
    + _audio("RTP/AVP"),
    "m=video 9 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\n" + _audio("RTP/AVP"),
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=sctp-port:5000\r\n" + _audio("RTP/AVP"),
    "m=message 9 TCP/TLS/MSRP *\r\na=path:msrps://127.0.0.1:9/x;tcp\r\n" + _audio("RTP/AVP"),
    "m=control 9 TCP/BFCP *\r\na=floorctrl:c-s\r\n",
    "",
)
PROFILES = tuple((_SESSION + media).encode() for media in _MEDIA)
WORDS = (
    *(line.encode() + b"\r\n" for line in _CRYPTO.split("\r\n") if line),
    _PRINT.encode(),
    b"m=audio 9 RTP/SAVP 0\r\n",
    b"m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n",
    b"m=text 9 RTP/AVP 98\r\n",
    b"a=rtpmap:98 red/8000\r\n",
    b"a=fmtp:98 0/0/0/0\r\n",
    b"a=rtpmap:0 telephone-event/8000\r\n",
    b"a=group:BUNDLE 0 1\r\n",
    b"c=IN IP4 0.0.0.0\r\n",
    b"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:\r\n",
    b"RTP/SAVP",
    b"RTP/AVP",
    b"UDP/TLS/RTP/SAVPF",
)
"""What a mutation puts in: lines and transports out of these offers."""
