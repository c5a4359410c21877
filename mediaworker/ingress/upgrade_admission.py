"""The admission of upgrades to media WebSockets: the checks, counters and log lines that all such ingresses share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar, Generic

from config import Settings
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import Access, decide
from mediaworker.access.notices import Notices
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.ingress.interfaces import SessionFactory, Upgrade
from mediaworker.ingress.session import C, Session


class MediaIngress(Generic[C]):
    """The base of the ingresses over WebSockets. It counts and logs every refusal, and counts the sessions."""

    subprotocols: tuple[str, ...] = ()
    text_as_bytes = False
    new_counters: Callable[[], C]
    refused_event: ClassVar[str]
    """The event name in the log of a refusal for lack of capacity."""

    def __init__(self, settings: Settings, registry: CallRegistry, failures: AuthFailures | None = None) -> None:
        self.counters = self.new_counters()
        self._settings, self._registry = settings, registry
        self._failures, self._notices = failures or AuthFailures(), Notices()
        self._open: Counter[str] = Counter()
        """The number of open sessions by the name of their key."""

    def use(self, settings: Settings) -> None:
        """Use these settings for sessions that begin from now on."""
        self._settings = settings

    @property
    def sessions(self) -> int:
        """The number of open sessions."""
        return self._open.total()

    def check_key(
        self,
        upgrade: Upgrade,
        *,
        headers: Iterable[tuple[str, str]] | None = None,
        page_keys: Collection[str] = (),
        challenge: str = "",
    ) -> Access:
        """Check the API key in `headers`, by default those of the upgrade. Raises CallRefused with 401 or 403.

        `challenge` replaces the challenge of a 401. `page_keys` are the keys of pages that were opened without an API
        key.
        """
        access = decide(
            headers if headers is not None else upgrade.headers,
            upgrade.peer,
            self._settings.auth.api_keys,
            "stream",
            direct=upgrade.direct,
            sessions=page_keys,
        )
        if access.failure is None:
            return access
        self.counters.refuse("unauthorized" if access.status == 401 else "forbidden")
        now = asyncio.get_running_loop().time()
        delay_s = self._failures.record(access.failure, upgrade.peer, upgrade.path, now)
        if access.status != 401 or not challenge:
            challenge = access.challenge
        raise CallRefused(access.status, access.reason, challenge=challenge, delay_s=delay_s)

    def check_room(self, upgrade: Upgrade) -> None:
        """Raises CallRefused with 503 while no call can be accepted."""
        if (refusal := self._registry.refusal()) is not None:
            raise self.refuse("capacity", upgrade, refusal)

    def refuse(self, why: str, upgrade: Upgrade, refused: CallRefused) -> CallRefused:
        """Count and log `refused`, and return it."""
        self.counters.refuse(why)
        self._notices.warn(upgrade.peer, self.refused_event, asyncio.get_running_loop().time(), refused.reason)
        return refused

    def opening(self, upgrade: Upgrade, make: Callable[..., Session[C]], key_name: str = "") -> SessionFactory:
        """The function that opens and counts the session of an admitted upgrade.

        `make` is called with `now` and the `session.Hooks`.
        """

        def left() -> None:
            self._open[key_name] -= 1
            if not self._open[key_name]:
                del self._open[key_name]

        def opens(now: float) -> Session[C]:
            on_problem = self._notices.of(upgrade.peer, lambda: session.call_id)
            session = make(now, counters=self.counters, on_problem=on_problem, on_lost=left)
            self._open[key_name] += 1
            return session

        return opens
