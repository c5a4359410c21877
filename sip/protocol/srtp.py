"""SRTP (RFC 3711) with keys from the SDP (SDES, RFC 4568): parsing and choosing `a=crypto`, and the two contexts of a
stream. libsrtp protects the packets. No I/O.

Two suites of RFC 4568 are supported, with a key of 30 bytes. Lines with session parameters that would change the
packets (no encryption, no authentication, forward error correction) or with a master key identifier are skipped, and
the offer's next line is tried.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pylibsrtp

Suite = Literal["AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32"]
SUITES: tuple[Suite, ...] = ("AES_CM_128_HMAC_SHA1_80", "AES_CM_128_HMAC_SHA1_32")
KEY_BYTES = 30
"""The size of a key: a master key of 16 bytes and a master salt of 14."""
_LINE = re.compile(
    r"(?P<tag>\d{1,9})[ \t]+(?P<suite>\S+)[ \t]+inline:(?P<key>[A-Za-z0-9+/=]{1,60})"
    r"(?:\|(?P<lifetime>[^|\s]*))?(?:\|(?P<mki>[^|\s]*))?(?:[ \t]+(?P<parameters>.*))?"
)
_HARMLESS = re.compile(r"(?:KDR=0|WSH=\d+)", re.IGNORECASE)
_WINDOW = 1024
"""The replay window: packets that are this late are still distinguished from duplicates."""


@dataclass(frozen=True, slots=True)
class Crypto:
    """One `a=crypto`, ours or the peer's. Its text contains the key, but its repr does not."""

    tag: int
    suite: Suite
    key: bytes

    @classmethod
    def parse(cls, value: str) -> Crypto | None:
        """Parse the value of `a=crypto`; None if it cannot be used here."""
        found = _LINE.fullmatch(value.strip())
        suite = next((name for name in SUITES if found and name == found["suite"].upper()), None)
        if found is None or suite is None or found["mki"] or ":" in (found["lifetime"] or ""):
            return None
        if not all(map(_HARMLESS.fullmatch, (found["parameters"] or "").split())):
            return None
        text = found["key"].rstrip("=")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            return None
        return cls(int(found["tag"]), suite, key) if len(key) == KEY_BYTES else None

    def __str__(self) -> str:
        return f"{self.tag} {self.suite} inline:{base64.b64encode(self.key).decode()}"

    def __repr__(self) -> str:
        return f"Crypto({self.tag}, {self.suite!r}, ***)"

    @classmethod
    def fresh(cls) -> Crypto:
        """A fresh key for an offer of ours."""
        return cls(1, SUITES[0], secrets.token_bytes(KEY_BYTES))

    def own(self) -> Crypto:
        """Our answer to it: the same suite and tag, with a fresh key."""
        return Crypto(self.tag, self.suite, secrets.token_bytes(KEY_BYTES))


def choose(values: Sequence[str]) -> Crypto | None:
    """The first usable line: the order is the offerer's preference (RFC 4568 section 5.1.1)."""
    return next((crypto for value in values if (crypto := Crypto.parse(value)) is not None), None)


class SrtpContext:
    """The SRTP contexts of both directions of one stream."""

    def __init__(self, remote: Crypto, local: Crypto) -> None:
        import pylibsrtp  # only for such a call

        self._broken = pylibsrtp.Error, ValueError
        """The errors for a packet with a wrong tag, a duplicate, or a packet that is too long for the library."""
        self._inbound = _session(remote, pylibsrtp.Policy.SSRC_ANY_INBOUND)
        self._outbound = _session(local, pylibsrtp.Policy.SSRC_ANY_OUTBOUND)

    def open(self, datagram: bytes) -> bytes | None:
        """Decrypt an RTP packet; None if it is not the peer's, or a duplicate."""
        try:
            return self._inbound.unprotect(datagram)
        except self._broken:
            return None

    def open_rtcp(self, datagram: bytes) -> bytes | None:
        try:
            return self._inbound.unprotect_rtcp(datagram)
        except self._broken:
            return None

    def close(self, packet: bytes) -> bytes:
        """Protect an RTP packet."""
        return self._outbound.protect(packet)

    def close_rtcp(self, packet: bytes) -> bytes:
        return self._outbound.protect_rtcp(packet)


def _session(crypto: Crypto, ssrc_type: int) -> pylibsrtp.Session:
    from pylibsrtp import Policy, Session

    long, short = Policy.SRTP_PROFILE_AES128_CM_SHA1_80, Policy.SRTP_PROFILE_AES128_CM_SHA1_32
    profile = long if crypto.suite == SUITES[0] else short
    policy = Policy(key=crypto.key, ssrc_type=ssrc_type, srtp_profile=profile)
    policy.window_size = _WINDOW
    return Session(policy)
