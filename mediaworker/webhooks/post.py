"""Sends one signed POST by the rules of Standard Webhooks (standardwebhooks.com); computes the pause before a retry.

`webhook-id` is the same in every attempt, so that a receiver can recognise a repetition. `webhook-timestamp` and
`webhook-signature` are new in each attempt, with a signature for each secret. Redirects are not followed: they could
lead the body to a host that nobody has configured. Certificates are checked against the system's authorities, or those
of SSL_CERT_FILE and SSL_CERT_DIR.
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
"""The pauses after the first attempts; the last one is repeated."""
JITTER = 0.1
MAX_AFTER_S = 3600.0
"""The longest pause of a `Retry-After` that is respected."""
UNTAKEABLE = frozenset((400, 405, 406, 411, 413, 414, 415, 422, 431))
"""The statuses that refuse the message itself, so that a later retry hardly ever helps."""
TOO_MANY_REQUESTS = 429
"""This status refuses the sender and not one message, so its pause applies to every message to the host."""
BODY_BYTES, BODY_S = 65536, 1.0
"""The most bytes of a response's body that are read, and for how long, so that its connection can be reused."""
KEEP_S = 3.0
"""The time after which an idle connection is closed. Receivers often close theirs after 5 s; a message that is sent at
that moment would be lost."""
MAX_URL_CHARS = 2000
PREFIX = "whsec_"
"""The prefix of a secret that is base64."""
MIN_SECRET_BYTES = 24


def wrong_with_url(url: str) -> str | None:
    """Return why a URL cannot be used; None when it can."""
    if len(url) > MAX_URL_CHARS or not url.isprintable() or " " in url:
        return f"must be a URL of at most {MAX_URL_CHARS} characters"
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        return "must be an http or https URL"
    return "must not hold a user or password: requests are signed" if "@" in parts.netloc else None


def wrong_with_secret(secret: Secret) -> str | None:
    """Return why a secret cannot be used; None when it can."""
    try:
        # Checked here, because the library ignores characters that are not base64.
        size = len(base64.b64decode(_key(secret).removeprefix(PREFIX), validate=True))
    except ValueError as error:
        return f"what follows {PREFIX} must be base64 ({error})"
    return f"must have {MIN_SECRET_BYTES} characters or more, or bytes as base64" if size < MIN_SECRET_BYTES else None


def _key(secret: Secret) -> str:
    """Return the secret in the library's form, which is base64; any other text is encoded."""
    plain = secret.reveal()
    return plain if plain.startswith(PREFIX) else PREFIX + base64.b64encode(plain.encode()).decode()


def signing(*secrets: Secret) -> tuple[Secret, ...]:
    """Return the secrets that are set."""
    return tuple(secret for secret in secrets if secret)


def wait_s(tries: int, after_s: float | None = None) -> float:
    """Return the pause after this many failed attempts; `after_s`: the pause that the receiver has requested."""
    pause_s = WAITS_S[min(tries, len(WAITS_S)) - 1] if after_s is None else max(1.0, after_s)
    return pause_s * (1 + JITTER * random.random())


def retry_after_s(header: str, now_s: float) -> float | None:
    """Return the pause of a `Retry-After` with seconds or a date (RFC 9110 section 10.2.3), at most MAX_AFTER_S; None
    for any other value."""
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
    """The reason why a POST was not accepted, and whether and when a retry makes sense."""

    reason: str
    gone: bool = False
    """The receiver no longer exists at this URL (410), so no retry is made."""
    untakeable: bool = False
    """The receiver refuses the message itself, so a retry hardly ever helps."""
    after_s: float | None = None
    """The pause that the receiver has requested."""
    throttled: bool = False
    """The pause applies to every message to the host."""


class Poster:
    """An HTTP client that posts signed messages. `close` it after the last message.

    `targets` restricts the connections for URLs that a user has set. None: the URLs are the operator's, connections go
    anywhere, and they use the proxy of HTTPS_PROXY and HTTP_PROXY except to the hosts of NO_PROXY.
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
        """Post a message once, signed with each secret. Return why it was refused; None when it was accepted."""
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

        # The outbox limits the parallel posts. With a limit here, an attempt would include the wait for a connection.
        limits, timeout = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_S), httpx.Timeout(TIMEOUT_S)
        if self._targets is not None:
            # A connection to a checked address is not reused: httpx would use it for every host name with this address,
            # although the certificate was checked for one name. The shorter connect timeout leaves time for the next
            # address when one does not answer.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            timeout = httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S / 3)
        # A proxy would make the connection itself, to an address that nobody has checked.
        proxied = self._targets is None
        verify = system_authorities() or True
        return httpx.AsyncClient(
            timeout=timeout, follow_redirects=False, trust_env=proxied, limits=limits, verify=verify
        )

    async def _send(
        self, client: httpx.AsyncClient, url: httpx.URL, headers: dict[str, str], body: bytes
    ) -> tuple[int, str]:
        """Send the request to the allowed addresses of its host, one after the other until one accepts the connection.
        Return status and Retry-After of the response."""
        import httpx

        if self._targets is None:
            return await self._request(client, url, headers, body)
        port = url.port or (443 if url.scheme == "https" else 80)
        name = url.raw_host.decode()  # the form for DNS, which is ASCII also for an international name
        addresses = await self._targets.addresses(name, port)
        # The Host header and the certificate check keep the name, although the URL now has an address.
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
            with contextlib.suppress(TimeoutError, httpx.HTTPError):  # the status has arrived, and only it matters
                async with asyncio.timeout(BODY_S):
                    async for part in answer.aiter_raw():
                        size += len(part)
                        if size > BODY_BYTES:
                            break
            return answer.status_code, answer.headers.get("retry-after", "")
