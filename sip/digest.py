"""Digest authentication of callers (RFC 7616 as RFC 8760 has it for SIP; RFC 3261 section 22). No I/O."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.request import parse_http_list

NONCE_S = 300.0
"""After that a nonce is stale: the caller takes another one, without asking anybody for the password."""
_MAX_NONCES = 4096
_ALGORITHMS: dict[str, Any] = {"SHA-256": hashlib.sha256, "MD5": hashlib.md5}

Verdict = Literal["good", "stale", "bad"]


class Challenger:
    """Asks for credentials and checks them. Nonces carry their own time; of each the highest count is remembered."""

    def __init__(self, users: Mapping[str, str], realm: str, algorithms: Sequence[str] = tuple(_ALGORITHMS)) -> None:
        """`users`: name → password; `algorithms`: a caller takes the first that it knows (RFC 8760 section 2.4)."""
        self._realm, self._names = realm, algorithms
        self._nonce_key = secrets.token_bytes(32)
        self._hashed = {
            (user, name): _hex(algorithm, user, realm, password)
            for user, password in users.items()
            for name, algorithm in _ALGORITHMS.items()
            if name in algorithms
        }
        self._counts: OrderedDict[str, int] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there is anybody to ask."""
        return bool(self._hashed)

    def challenge(self, now: float, *, stale: bool = False) -> list[str]:
        """Values of WWW-Authenticate."""
        stamp = f"{int(now):x}.{secrets.token_hex(8)}"
        nonce = f"{stamp}.{self._sign(stamp)}"
        more = ", stale=true" if stale else ""
        return [
            f'Digest realm="{self._realm}", nonce="{nonce}", algorithm={name}, qop="auth"{more}' for name in self._names
        ]

    def check(self, credentials: str, method: str, now: float) -> tuple[Verdict, str]:
        """What an Authorization header's value is worth, and whose it is. Each count of a nonce is good once."""
        fields = _fields(credentials)
        user, nonce = fields.get("username", ""), fields.get("nonce", "")
        name = fields.get("algorithm", "MD5").upper()
        first = self._hashed.get((user, name))
        if first is None or fields.get("realm") != self._realm or not self._ours(nonce):
            return "bad", user
        algorithm = _ALGORITHMS[name]
        second = _hex(algorithm, method, fields.get("uri", ""))
        counted = "qop" in fields
        middle = (fields.get("nc", ""), fields.get("cnonce", ""), fields["qop"]) if counted else ()
        wanted = _hex(algorithm, first, nonce, *middle, second)
        if not hmac.compare_digest(_bytes(wanted), _bytes(fields.get("response", "").lower())):
            return "bad", user
        if not 0 <= now - int(nonce.split(".")[0], 16) <= NONCE_S or not self._count(nonce, fields.get("nc", "")):
            return "stale", user
        return "good", user

    def _sign(self, stamp: str) -> str:
        return hmac.new(self._nonce_key, _bytes(stamp), hashlib.sha256).hexdigest()[:32]

    def _ours(self, nonce: str) -> bool:
        stamp, _, signed = nonce.rpartition(".")
        return hmac.compare_digest(_bytes(self._sign(stamp)), _bytes(signed))

    def _count(self, nonce: str, count: str) -> bool:
        """Whether it is higher than any before. Without one (RFC 2069) a nonce is good once."""
        try:
            number = int(count, 16) if count else 1 << 32
        except ValueError:
            return False
        if number <= self._counts.get(nonce, 0):
            return False
        self._counts[nonce] = number
        self._counts.move_to_end(nonce)
        if len(self._counts) > _MAX_NONCES:
            self._counts.popitem(last=False)
        return True


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
    """Of any text, well-formed or not."""
    return text.encode(errors="surrogatepass")
