"""One signed POST, as Standard Webhooks says (standardwebhooks.com), and how long to wait before the next try.

`webhook-id` is the same in every try, so that a receiver can tell a repetition; `webhook-timestamp` and
`webhook-signature` are of the try. Redirects are not followed: a body goes where it was asked to go.
"""

from __future__ import annotations

import asyncio
import base64
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from config.settings import Secret

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
    """Posts. `close` when nothing is to be sent any more."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

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
        self._client = self._client or httpx.AsyncClient(
            # Whoever posts says how much at once: waiting for a place is no try.
            timeout=TIMEOUT_S, follow_redirects=False, trust_env=False, limits=httpx.Limits(max_connections=None)
        )  # fmt: skip
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._client.stream("POST", url, content=body.encode(), headers=headers) as answer,
            ):
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # TimeoutError is an OSError
            return Refusal(f"{type(error).__name__}: {error}".rstrip(": "))
        return None if 200 <= status < 300 else Refusal(f"HTTP {status}", gone=status == 410)
