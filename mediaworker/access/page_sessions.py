"""Sessions of the page without API keys, for browsers whose address does not show that they are local.

The worker logs a link with a token at its start. The token opens the page once, and is exchanged for a key that is
valid as long as the worker runs. Then the next link is logged. So a link that is found in a log later is worthless.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

MAX_SESSIONS = 16
"""The most sessions at once; a further one replaces the oldest."""
TOKEN_BYTES = 24


class PageSessions:
    """The sessions. Their `keys` have every scope, and are valid only while no API keys are configured."""

    def __init__(self, on_used: Callable[[], None] = lambda: None) -> None:
        """`on_used`: called when the token has been used and replaced by a new one."""
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.keys: tuple[str, ...] = ()
        self._on_used = on_used

    def redeem(self, token: str) -> str | None:
        """Exchange the token for a key, once; None for any other token."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        key = secrets.token_urlsafe(TOKEN_BYTES)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.keys = (*self.keys, key)[-MAX_SESSIONS:]
        self._on_used()
        return key
