"""One signed POST, as Standard Webhooks says (standardwebhooks.com), and how long to wait before the next try.

`webhook-id` is the same in every try, so that a receiver can tell a repetition; `webhook-timestamp` and
`webhook-signature` are of the try. Redirects are not followed: a body goes where it was asked to go.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from config.settings import Secret
from mediaworker.webhooks.targets import Targets

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 15.0
WAITS_S: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Behind the first tries; then every hour."""
JITTER = 0.1
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
    plain = str.__str__(secret)
    return plain if plain.startswith(PREFIX) else PREFIX + base64.b64encode(plain.encode()).decode()


def wait_s(tries: int) -> float:
    """After so many tries without success."""
    return WAITS_S[min(tries, len(WAITS_S)) - 1] * (1 + JITTER * random.random())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a POST was not taken."""

    reason: str
    gone: bool = False
    """For ever: there is nobody behind this URL any more (410)."""


class Poster:
    """Posts. `close` when nothing is to be sent any more.

    `targets` holds URLs that a user gave to addresses that may be connected to; None: anywhere, as the operator says.
    """

    def __init__(self, targets: Targets | None = None) -> None:
        self._targets = targets
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._targets is not None:
            self._targets.close()

    async def post(self, url: str, secret: Secret, message_id: str, body: str, now_s: float) -> Refusal | None:
        """One try, signed with the secret. None: it has been taken."""
        import httpx
        from standardwebhooks.webhooks import Webhook as Signer

        at = datetime.fromtimestamp(now_s, UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now_s)),
            "webhook-signature": Signer(_key(secret)).sign(message_id, at, body),
        }
        self._client = self._client or self._new_client()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._send(self._client, httpx.URL(url), headers, body.encode())
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # TimeoutError is an OSError
            return Refusal(f"{type(error).__name__}: {error}".rstrip(": "))
        return None if 200 <= status < 300 else Refusal(f"HTTP {status}", gone=status == 410)

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        # Whoever posts says how much at once: waiting for a place is no try.
        limits, timeout = httpx.Limits(max_connections=None), httpx.Timeout(TIMEOUT_S)
        if self._targets is not None:
            # A connection to a checked address is not used again: it would be for every name that has this address,
            # whatever name its certificate was checked for. One address that does not answer leaves time for the next.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            timeout = httpx.Timeout(TIMEOUT_S, connect=TIMEOUT_S / 3)
        return httpx.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False, limits=limits)

    async def _send(self, client: httpx.AsyncClient, url: httpx.URL, headers: dict[str, str], body: bytes) -> int:
        """The status that was answered. Tries the addresses that may be connected to one after the other."""
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
    ) -> int:
        extensions = {"sni_hostname": name} if name else None
        async with client.stream("POST", url, content=body, headers=headers, extensions=extensions) as answer:
            return answer.status_code
