"""How the page is opened where no API keys are configured and the address of the browser says nothing.

The worker prints a link with a token at its start. The token opens the page once, for a key that lives as long as the
worker; the next link is printed then. A link that is found in a log later is worth nothing.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

MAX_SESSIONS = 16
"""Pages open at once in this way; the oldest is forgotten for a further one."""
TOKEN_BYTES = 24


class PageSessions:
    """`keys` are good for every scope, and only while no API keys are configured."""

    def __init__(self, on_used: Callable[[], None] = lambda: None) -> None:
        """`on_used`: called when the token has been used, and there is another one."""
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.keys: tuple[str, ...] = ()
        self._on_used = on_used

    def redeem(self, token: str) -> str | None:
        """A key for the token, once; None for any other."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        key = secrets.token_urlsafe(TOKEN_BYTES)
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.keys = (*self.keys, key)[-MAX_SESSIONS:]
        self._on_used()
        return key
