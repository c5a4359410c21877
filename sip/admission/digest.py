"""Digest authentication of callers (RFC 7616, applied to SIP by RFC 8760; RFC 3261 section 22). No I/O."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote
from urllib.request import parse_http_list

from sip.admission.request_filter import TokenBuckets

NONCE_S = 300.0
"""The lifetime of a nonce. Afterwards the caller's device uses a new one without asking its user for the password."""
_MAX_NONCES = 4096
_ALGORITHMS: dict[str, Any] = {"SHA-256": hashlib.sha256, "MD5": hashlib.md5}

GUESSES_PER_S, GUESSES = 0.2, 10
"""The limit of wrong passwords from one source for one user: 10 at once, then one every five seconds."""
_REQUIRED = {"username", "nonce", "response", "uri", "realm"}
_COUNT = re.compile(r"[0-9a-fA-F]{8}")
_TARGET = re.compile(r"(sips?):(?:([^@]*)@)?(\[[^\]]*\]|[^;?]*?)(?::([0-9]+))?(?:[;?].*)?", re.IGNORECASE | re.DOTALL)

Verdict = Literal["good", "stale", "bad"]
Reason = Literal["", "malformed", "realm", "algorithm", "nonce", "replayed", "uri", "user", "password", "slowed"]
"""Why credentials are not good. "" if they are, or if their nonce is ours, but too old or issued to another source.

`nonce`: the nonce is not ours; `malformed`: no digest credentials, or required fields are missing; `replayed`: the
count of the nonce was used before; `uri`: they are for another request; `slowed`: not checked, after too many wrong
passwords.
"""


class Challenger:
    """Builds challenges and checks credentials. Nonces contain their time; the highest count of each is remembered."""

    def __init__(self, users: Mapping[str, str], realm: str, algorithms: Sequence[str] = tuple(_ALGORITHMS)) -> None:
        """`users`: name → password; `algorithms`: a caller uses the first that it knows (RFC 8760 section 2.4)."""
        self._realm, self._names = realm, algorithms
        self._nonce_key = secrets.token_bytes(32)
        self._hashed = {
            (user, name): _hex(algorithm, user, realm, password)
            for user, password in users.items()
            for name, algorithm in _ALGORITHMS.items()
            if name in algorithms
        }
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._guesses = TokenBuckets(GUESSES_PER_S, GUESSES)

    def __bool__(self) -> bool:
        """Whether there are any users."""
        return bool(self._hashed)

    def challenge(self, now: float, *, source: str = "", stale: bool = False) -> list[str]:
        """The values of WWW-Authenticate for a request from `source`; the nonce is valid for that source only."""
        stamp = f"{int(now):x}.{secrets.token_hex(8)}"
        nonce = f"{stamp}.{self._sign(stamp)}.{self._sign(f'{stamp} {source}')}"
        more = ", stale=true" if stale else ""
        return [
            f'Digest realm="{self._realm}", nonce="{nonce}", algorithm={name}, qop="auth"{more}' for name in self._names
        ]

    def check(
        self, credentials: str, method: str, now: float, *, uri: str, source: str = ""
    ) -> tuple[Verdict, str, Reason]:
        """Check an Authorization header's value; returns the verdict, the user, and the reason why it is not good.

        `uri` is the request's (RFC 7616 section 3.4.6), and `source` the one to which the challenge was sent. Each
        count of a nonce is valid once. A nonce of another source is stale, and such credentials get no other verdict:
        so an attacker who forges source addresses can neither guess nor use up the guesses of others.
        """
        fields = _fields(credentials)
        user, nonce = fields.get("username", ""), fields.get("nonce", "")
        name = fields.get("algorithm", "MD5").upper()
        counted = "qop" in fields
        if not fields.keys() >= _REQUIRED or counted and not _is_counted(fields):
            return "bad", user, "malformed"
        if fields["realm"] != self._realm:
            return "bad", user, "realm"
        stamp = self._stamp(nonce)
        if not stamp:  # a caller may still use a nonce from before the worker's restart
            return "stale", user, "nonce"
        if not hmac.compare_digest(_bytes(self._sign(f"{stamp} {source}")), _bytes(nonce.rpartition(".")[2])):
            return "stale", user, ""
        if not same_target(fields["uri"], uri):
            return "bad", user, "uri"
        if name not in self._names:
            return "bad", user, "algorithm"
        first = self._hashed.get((user, name))
        if first is None:
            return "bad", user, "user"
        guesser = f"{source} {user}"
        if self._guesses.level(guesser, now) < 1:
            return "bad", user, "slowed"
        algorithm = _ALGORITHMS[name]
        second = _hex(algorithm, method, fields["uri"])
        middle = (fields["nc"], fields["cnonce"], fields["qop"]) if counted else ()
        expected = _hex(algorithm, first, nonce, *middle, second)
        if not hmac.compare_digest(_bytes(expected), _bytes(fields["response"].lower())):
            self._guesses.take(guesser, now)
            return "bad", user, "password"
        if not 0 <= now - int(stamp.split(".")[0], 16) <= NONCE_S:
            return "stale", user, ""
        # Without `qop` (RFC 2069) a nonce is valid once, because the hash does not cover a count.
        if not self._count(nonce, int(fields["nc"], 16) if counted else 1 << 32):
            return "stale", user, "replayed"
        return "good", user, ""

    def _sign(self, stamp: str) -> str:
        return hmac.new(self._nonce_key, _bytes(stamp), hashlib.sha256).hexdigest()[:32]

    def _stamp(self, nonce: str) -> str:
        """The time and the random part of a nonce; "" if it is not ours."""
        stamp, _, signed = nonce.rpartition(".")[0].rpartition(".")
        return stamp if hmac.compare_digest(_bytes(self._sign(stamp)), _bytes(signed)) else ""

    def _count(self, nonce: str, number: int) -> bool:
        """Whether the count is higher than all earlier ones of this nonce; if so, it is remembered."""
        if number <= self._counts.get(nonce, 0):
            return False
        self._counts[nonce] = number
        self._counts.move_to_end(nonce)
        if len(self._counts) > _MAX_NONCES:
            self._counts.popitem(last=False)
        return True


def same_target(uri: str, request_uri: str) -> bool:
    """Whether credentials for `uri` are for a request to `request_uri`.

    Parameters are ignored, because proxies change them, and so is the user if `uri` has none: SIPp and old gateways
    send the host only. URIs of other schemes must be identical.
    """
    ours, theirs = _TARGET.fullmatch(request_uri), _TARGET.fullmatch(uri)
    if ours is None or theirs is None:
        return uri == request_uri
    user, own_user = theirs[2], ours[2]
    return (
        ours[1].lower() == theirs[1].lower()
        and ours[3].strip("[]").lower() == theirs[3].strip("[]").lower()
        and (ours[4] or "5060") == (theirs[4] or "5060")
        and (user is None or unquote(user) == unquote(own_user or ""))
    )


def _is_counted(fields: Mapping[str, str]) -> bool:
    """Whether the fields required by a `qop` are present (RFC 7616 section 3.4)."""
    return fields["qop"] == "auth" and bool(fields.get("cnonce")) and bool(_COUNT.fullmatch(fields.get("nc", "")))


def _fields(credentials: str) -> dict[str, str]:
    scheme, _, rest = credentials.strip().partition(" ")
    if scheme.lower() != "digest":
        return {}
    pairs = (pair.partition("=") for pair in parse_http_list(rest))
    return {name.strip().lower(): _unquoted(value.strip()) for name, equals, value in pairs if equals}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _hex(algorithm: Any, *parts: str) -> str:
    return str(algorithm(_bytes(":".join(parts))).hexdigest())


def _bytes(text: str) -> bytes:
    """The bytes of any text, well-formed or not."""
    return text.encode(errors="surrogatepass")
