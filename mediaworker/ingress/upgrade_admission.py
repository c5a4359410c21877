"""Admits upgrades to media WebSockets: the checks, counts and log lines that their ingresses share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from config import Settings
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import Access, decide
from mediaworker.access.notices import Notices
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.counters import IngressCounters
from mediaworker.ingress.interfaces import Upgrade


class UpgradeAdmission:
    """Counts and logs every refusal.

    Args:
        event: the log line of a refusal for lack of room.
        refusal: returns why no call is taken now (`CallRegistry.refusal`), or None.
    """

    def __init__(
        self,
        event: str,
        counters: IngressCounters,
        refusal: Callable[[], CallRefused | None],
        failures: AuthFailures | None,
    ) -> None:
        self.refusal, self.failures, self.notices = refusal, failures or AuthFailures(), Notices()
        self._event, self._counters = event, counters

    def check_key(
        self,
        upgrade: Upgrade,
        settings: Settings,
        *,
        headers: Iterable[tuple[str, str]] | None = None,
        sessions: Collection[str] = (),
        challenge: str = "",
    ) -> Access:
        """Check the API key in `headers`, by default those of the upgrade. Raises CallRefused 401 or 403.

        `challenge` replaces the challenge of a 401; `sessions` are keys of pages that were opened without an API key.
        """
        access = decide(
            headers if headers is not None else upgrade.headers,
            upgrade.peer,
            settings.auth.api_keys,
            "stream",
            direct=upgrade.direct,
            sessions=sessions,
        )
        if access.failure is None:
            return access
        self._counters.refuse("unauthorized" if access.status == 401 else "forbidden")
        now = asyncio.get_running_loop().time()
        delay_s = self.failures.record(access.failure, upgrade.peer, upgrade.path, now)
        if access.status != 401 or not challenge:
            challenge = access.challenge
        raise CallRefused(access.status, access.reason, challenge=challenge, delay_s=delay_s)

    def check_room(self, upgrade: Upgrade) -> None:
        """Raises CallRefused 503 while no call is taken."""
        if (refusal := self.refusal()) is not None:
            raise self.refuse("capacity", upgrade, refusal)

    def refuse(self, why: str, upgrade: Upgrade, refused: CallRefused) -> CallRefused:
        """Count and log `refused`, and return it."""
        self._counters.refuse(why)
        self.notices.warn(upgrade.peer, self._event, asyncio.get_running_loop().time(), refused.reason)
        return refused
