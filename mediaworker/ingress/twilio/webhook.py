"""Twilio's webhook without I/O: signatures, call-bound tokens, and the TwiML of the response.

Signature: base64(HMAC-SHA1(auth token, URL as Twilio sees it + POST parameters sorted by name)), in
`X-Twilio-Signature` on every POST, and on every GET and the WebSocket upgrade, where there are no POST parameters.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit, urlunsplit
from xml.etree import ElementTree as Xml

_DEFAULT_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def sign(auth_token: str, url: str, parameters: Iterable[tuple[str, str]] = ()) -> str:
    """The value of `X-Twilio-Signature`. A parameter that repeats a value counts once, as in Twilio's own library."""
    text = url + "".join(name + value for name, value in sorted(set(parameters)))
    return base64.b64encode(hmac.new(auth_token.encode(), text.encode(), hashlib.sha1).digest()).decode()


def verify(auth_tokens: Sequence[str], signature: str, url: str, parameters: Iterable[tuple[str, str]] = ()) -> bool:
    """Whether one of the tokens made this signature over the URL, with or without its port.

    Twilio has signed both ways over the years, and its own validators accept either. All comparisons are made, each in
    constant time.
    """
    given = signature.encode(errors="replace")
    pairs = list(parameters)
    matches = [
        hmac.compare_digest(sign(token, candidate, pairs).encode(), given)
        for token in auth_tokens
        if token
        for candidate in _spellings(url)
    ]
    return any(matches)


def _spellings(url: str) -> list[str]:
    parts = urlsplit(url)
    userinfo, at, hostport = parts.netloc.rpartition("@")
    host = re.sub(r":\d*$", "", hostport)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 443)
    netlocs = (parts.netloc, f"{userinfo}{at}{host}", f"{userinfo}{at}{host}:{port}")
    return list(dict.fromkeys([url, *(urlunsplit(parts._replace(netloc=netloc)) for netloc in netlocs)]))


class CallTokens:
    """One-time tokens that bind a media stream to the webhook response that requested it.

    A token is `expiry.nonce.mac`, with the HMAC-SHA256 over CallSid, expiry and nonce. The key is derived from the auth
    token, so that workers behind one address, and a restarted worker, accept each other's tokens. Without an auth token
    the key is random.

    Tokens tolerate Twilio's retries. A repeated webhook gets a new token, and a failed upgrade uses none, because a
    token is only used by `start`. A stream with the *same* streamSid (Twilio repeated the connection) is the same use;
    the same token for another stream is refused. Used tokens are remembered until they expire, in this process only:
    across workers only the expiry limits a replay.
    """

    def __init__(self, auth_tokens: Sequence[str] = (), *, ttl_s: float) -> None:
        self._random = secrets.token_bytes(32)
        self._used: dict[str, tuple[str, int]] = {}
        self.use(auth_tokens, ttl_s=ttl_s)

    def use(self, auth_tokens: Sequence[str], *, ttl_s: float) -> None:
        """Use these auth tokens from now on. An issued token stays valid as long as its auth token."""
        self._keys = [
            hmac.digest(token.encode(), b"mediaworker call-bound token", "sha256") for token in auth_tokens if token
        ] or [self._random]
        self._ttl_s = ttl_s

    def issue(self, call_sid: str, time_s: float) -> str:
        """Issue a token for this call. `time_s` is Unix time, because tokens are used across processes."""
        expiry = int(time_s + self._ttl_s) + 1
        nonce = secrets.token_urlsafe(12)
        return f"{expiry}.{nonce}.{self._mac(self._keys[0], call_sid, expiry, nonce)}"

    def check(self, token: str, call_sid: str, stream_sid: str, time_s: float) -> bool:
        """Whether the token is fresh, for this call, and not used by another stream. If so, this stream uses it."""
        found = re.fullmatch(r"([1-9][0-9]{0,11})\.([A-Za-z0-9_-]{16})\.([A-Za-z0-9_-]{43})", token)
        if found is None:
            return False
        expiry, nonce, mac = int(found[1]), found[2], found[3].encode()
        genuine = [hmac.compare_digest(self._mac(key, call_sid, expiry, nonce).encode(), mac) for key in self._keys]
        if not any(genuine) or time_s >= expiry:
            return False
        self._used = {n: use for n, use in self._used.items() if use[1] > time_s}
        user, _ = self._used.setdefault(nonce, (stream_sid, expiry))
        return user == stream_sid

    @staticmethod
    def _mac(key: bytes, call_sid: str, expiry: int, nonce: str) -> str:
        # CallSid comes last, because it alone may contain a dot.
        digest = hmac.digest(key, f"{expiry}.{nonce}.{call_sid}".encode(errors="replace"), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def twiml(stream_url: str, status_url: str, mode: str, then: str, parameters: Iterable[tuple[str, str]]) -> bytes:
    """The response to a voice webhook: TwiML that sends a call's audio to `stream_url`.

    Args:
        status_url: the URL to which Twilio posts stream-started, stream-stopped and stream-error; empty for none.
        mode: `start` forks both tracks, and the call goes on with `then`; `connect` hands the call to the stream.
        then: `twilio.then`, the verbs after `<Start>`.
        parameters: Twilio returns them in the stream's `start` as customParameters.
    """
    connect = mode == "connect"
    response = Xml.Element("Response")
    attributes = {"url": stream_url} | ({} if connect else {"track": "both_tracks"})
    if status_url:
        attributes["statusCallback"] = status_url
    stream = Xml.SubElement(Xml.SubElement(response, "Connect" if connect else "Start"), "Stream", attributes)
    for name, value in parameters:
        Xml.SubElement(stream, "Parameter", {"name": name, "value": _NOT_XML.sub("", value)})
    if not connect:
        response.extend(Xml.fromstring(f"<Response>{then}</Response>"))
    return _document(response)


def busy() -> bytes:
    """The body of a 503, after which Twilio uses the fallback URL. A client that ignores the status hears busy."""
    response = Xml.Element("Response")
    Xml.SubElement(response, "Reject", {"reason": "busy"})
    return _document(response)


def _document(response: Xml.Element) -> bytes:
    text: bytes = Xml.tostring(response, encoding="utf-8", xml_declaration=True)
    return text
