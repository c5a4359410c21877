"""One signed POST, as Standard Webhooks says (standardwebhooks.com), and how long to wait before the next try.

`webhook-id` is the same in every try, so that a receiver can tell a repetition; `webhook-timestamp` and
`webhook-signature` are of the try, with a signature for each secret. Redirects are not followed: a body goes where it
was asked to go. Certificates are checked against the system's authorities, or those of SSL_CERT_FILE and SSL_CERT_DIR.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from config.certificates import system_authorities
from config.settings import Secret
from mediaworker.webhooks.targets import Targets

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 15.0
WAITS_S: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Behind the first tries; then every hour."""
JITTER = 0.1
MAX_AFTER_S = 3600.0
"""A receiver that asks for a longer pause is asked again after an hour all the same."""
UNTAKEABLE = frozenset((400, 405, 406, 411, 413, 414, 415, 422, 431))
"""What is wrong with the message itself, which no wait will change."""
TOO_MANY_REQUESTS = 429
"""Is said to the sender and not of one message: the pause that comes with it is for all."""
BODY_BYTES, BODY_S = 65536, 1.0
"""So much of an answer's body is read, for so long, that its connection can be used again."""
KEEP_S = 3.0
"""An idle connection is closed before the receiver does it, often after 5 s, just as the next message is sent."""
MAX_URL_CHARS = 2000
PREFIX = "whsec_"
"""Before a secret that is base64."""
MIN_SECRET_BYTES = 24


def wrong_with_url(url: str) -> str | None:
    """None when nothing is."""
    if len(url) > MAX_URL_CHARS or not url.isprintable() or " " in url:
        return f"must be a URL of at most {MAX_URL_CHARS} characters"
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        return "must be an http or https URL"
    return "must not hold a user or password: it is signed" if "@" in parts.netloc else None


def wrong_with_secret(secret: Secret) -> str | None:
    """None when nothing is."""
    try:
        # Here, because the library passes over what is no base64.
        size = len(base64.b64decode(_key(secret).removeprefix(PREFIX), validate=True))
    except ValueError as error:
        return f"what follows {PREFIX} must be base64 ({error})"
    return f"must have {MIN_SECRET_BYTES} characters or more, or bytes as base64" if size < MIN_SECRET_BYTES else None


def _key(secret: Secret) -> str:
    """The secret as the library takes it: base64, of any text."""
    plain = secret.reveal()
    return plain if plain.startswith(PREFIX) else PREFIX + base64.b64encode(plain.encode()).decode()


def signing(*secrets: Secret) -> tuple[Secret, ...]:
    """Those of them that are set."""
    return tuple(secret for secret in secrets if secret)


def wait_s(tries: int, after_s: float | None = None) -> float:
    """After so many tries without success; `after_s`: the pause that the receiver has asked for."""
    pause_s = WAITS_S[min(tries, len(WAITS_S)) - 1] if after_s is None else max(1.0, after_s)
    return pause_s * (1 + JITTER * random.random())


def retry_after_s(header: str, now_s: float) -> float | None:
    """The pause of `Retry-After` (RFC 9110 section 10.2.3): seconds or a date, at most MAX_AFTER_S; None: neither."""
    try:
        wait = float(int(header)) if header.isascii() and header.isdigit() else _date_s(header) - now_s
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, wait), MAX_AFTER_S)


def _date_s(text: str) -> float:
    at = parsedate_to_datetime(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a POST was not taken."""

    reason: str
    gone: bool = False
    """For ever: there is nobody behind this URL any more (410)."""
    untakeable: bool = False
    """The message is refused as such: the same message again hardly ever helps."""
    after_s: float | None = None
    """The pause that the receiver has asked for."""
    throttled: bool = False
    """The pause is for everything that is sent there."""


class Poster:
    """Posts. `close` when nothing is to be sent any more.

    `targets` holds URLs that a user gave to addresses that may be connected to; None: anywhere, as the operator says,
    and through the proxy of HTTPS_PROXY and HTTP_PROXY, except to the hosts of NO_PROXY.
    """

    def __init__(self, targets: Targets | None = None) -> None:
        self._targets = targets
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._targets is not None:
            self._targets.close()

    async def post(
        self, url: str, secrets: Sequence[Secret], message_id: str, body: str, now_s: float
    ) -> Refusal | None:
        """One try, signed with each secret. None: it has been taken."""
        import httpx
        from standardwebhooks.webhooks import Webhook as Signer

        at = datetime.fromtimestamp(now_s, UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now_s)),
            "webhook-signature": " ".join(Signer(_key(secret)).sign(message_id, at, body) for secret in secrets),
        }
        self._client = self._client or self._new_client()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, after = await self._send(self._client, httpx.URL(url), headers, body.encode())
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # TimeoutError is an OSError
            return Refusal(f"{type(error).__name__}: {error}".rstrip(": "))
        if 200 <= status < 300:
            return None
        after_s = retry_after_s(after, now_s)
        throttled = after_s is not None and status == TOO_MANY_REQUESTS
        return Refusal(f"HTTP {status}", status == 410, status in UNTAKEABLE, after_s, throttled)

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        # Whoever posts says how much at once: waiting for a place is no try.
        limits, timeout = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_S), httpx.Timeout(TIMEOUT_S)
        if self._targets is not None:
            # A connection to a checked address is not used again: it would be for every name that has this address,
            # whatever name its certificate was checked for. One address that does not answer leaves time for the next.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            timeout = httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S / 3)
        # A proxy would be connected to in place of a checked address.
        proxied = self._targets is None
        verify = system_authorities() or True
        return httpx.AsyncClient(
            timeout=timeout, follow_redirects=False, trust_env=proxied, limits=limits, verify=verify
        )

    async def _send(
        self, client: httpx.AsyncClient, url: httpx.URL, headers: dict[str, str], body: bytes
    ) -> tuple[int, str]:
        """Status and Retry-After of the answer. Tries the addresses that may be connected to one after the other."""
        import httpx

        if self._targets is None:
            return await self._request(client, url, headers, body)
        port = url.port or (443 if url.scheme == "https" else 80)
        name = url.raw_host.decode()  # as DNS has it: of an international one the ASCII form
        addresses = await self._targets.addresses(name, port)
        # The name stays what the receiver and its certificate are asked for.
        headers = headers | {"host": url.netloc.decode()}
        for address in addresses[:-1]:
            with contextlib.suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._request(client, url.copy_with(host=address), headers, body, name)
        return await self._request(client, url.copy_with(host=addresses[-1]), headers, body, name)

    async def _request(
        self, client: httpx.AsyncClient, url: httpx.URL, headers: dict[str, str], body: bytes, name: str = ""
    ) -> tuple[int, str]:
        import httpx

        extensions, size = {"sni_hostname": name} if name else None, 0
        async with client.stream("POST", url, content=body, headers=headers, extensions=extensions) as answer:
            with contextlib.suppress(TimeoutError, httpx.HTTPError):  # the status has come, and counts
                async with asyncio.timeout(BODY_S):
                    async for part in answer.aiter_raw():
                        size += len(part)
                        if size > BODY_BYTES:
                            break
            return answer.status_code, answer.headers.get("retry-after", "")
