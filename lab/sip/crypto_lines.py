"""Media descriptions with `a=crypto` (RFC 4568)."""

from __future__ import annotations

import base64

from sip.protocol.srtp import KEY_BYTES, SUITES

KEY = bytes(range(KEY_BYTES))
INLINE = base64.b64encode(KEY).decode()
LONG, SHORT = SUITES


def line(port: int, *crypto: str, protocol: str = "RTP/SAVP", direction: str = "sendrecv") -> str:
    keys = "".join(f"\na=crypto:{each}" for each in crypto)
    return f"m=audio {port} {protocol} 0\na=rtpmap:0 PCMU/8000{keys}\na={direction}"
