"""`WS /ws/asr`, `WS /ws/transcribe` and other dialects: who may open a session, and how many there may be."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from uuid_utils import uuid7

from config import Settings
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import SUBPROTOCOL
from mediaworker.calls.registry import CallRefused
from mediaworker.ingress.interfaces import CallOpener, MediaEndpoint, MediaSession, SessionFactory, Upgrade
from mediaworker.ingress.upgrade_admission import UpgradeAdmission
from mediaworker.ingress.websocket.dialects import dialects
from mediaworker.ingress.websocket.limits import StreamCounters, StreamPolicy


@dataclass(slots=True)
class StreamEndpoint:
    """Implements `interfaces.MediaEndpoint` for one dialect."""

    subprotocols: tuple[str, ...]
    admit: Callable[[Upgrade], SessionFactory]
    text_as_bytes: bool = False


class StreamIngress:
    """Admits the clients of all dialects; the path of an upgrade says which. Raises ConfigError for a dialect of an
    installed package that cannot be used.

    `settled` returns once all published events are stored (`EventHub.flush`), `sessions` returns the keys of pages that
    were opened without an API key, and `taken` are the paths of other ingresses.
    """

    def __init__(
        self,
        settings: Settings,
        open_call: CallOpener,
        *,
        engine_ready: Callable[[], bool],
        languages: Callable[[], Collection[str]],
        settled: Callable[[], Awaitable[None]],
        refusal: Callable[[], CallRefused | None] = lambda: None,
        unix_time: Callable[[], float] = time.time,
        sessions: Callable[[], Collection[str]] = tuple,
        failures: AuthFailures | None = None,
        taken: Collection[str] = (),
    ) -> None:
        self.counters = StreamCounters()
        self._dialects = dialects(taken)
        self._sessions = sessions
        self._open: Counter[str] = Counter()
        """Sessions by key."""
        self._open_call = open_call
        self._languages = languages
        self._engine_ready, self._settled, self._unix_time = engine_ready, settled, unix_time
        self._settling: set[asyncio.Future[None]] = set()
        self._settings = settings
        self._admission = UpgradeAdmission("stream refused", self.counters, refusal, failures)

    @property
    def sessions(self) -> int:
        return self._open.total()

    def use(self, settings: Settings) -> None:
        """Use these settings for sessions that begin from now on."""
        self._settings = settings

    def endpoints(self) -> dict[str, MediaEndpoint]:
        """The endpoints of all dialects, by path."""
        spoken = {path: (*dialect.subprotocols, SUBPROTOCOL) for path, dialect in self._dialects.items()}
        return {path: StreamEndpoint(subprotocols, self.admit) for path, subprotocols in spoken.items()}

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Raises CallRefused 401, 403, 429 or 503."""
        access = self._admission.check_key(upgrade, self._settings, sessions=self._sessions())
        self._admission.check_room(upgrade)
        limits = self._settings.stream
        if self.sessions >= limits.max_sessions:
            raise self._admission.refuse(
                "sessions", upgrade, CallRefused(503, f"all {limits.max_sessions} sessions are taken")
            )
        if self._open[access.name] >= limits.max_sessions_per_key:
            most = f"a key may have {limits.max_sessions_per_key} sessions at once"
            raise self._admission.refuse("key_sessions", upgrade, CallRefused(429, most))

        def opens(now: float) -> MediaSession:
            policy = StreamPolicy(
                session_id=str(uuid7()),
                caller=access.name,
                start_timeout_s=self._settings.media.start_timeout_s,
                idle_s=limits.idle_s,
                max_s=limits.max_s,
                engine_ready=self._engine_ready,
                unix_time=self._unix_time,
                languages=self._languages,
            )

            session = self._dialects[upgrade.path](
                policy,
                self._open_call,
                now,
                counters=self.counters,
                on_problem=self._admission.notices.of(upgrade.peer, lambda: session.call_id),
                on_lost=lambda: self._left(access.name),
                settle=self._settle,
            )
            self._open[access.name] += 1
            return session

        return opens

    def _settle(self, done: Callable[[], None]) -> None:
        waiting = asyncio.ensure_future(self._settled())
        self._settling.add(waiting)
        waiting.add_done_callback(self._settling.discard)
        waiting.add_done_callback(lambda _: done())

    def _left(self, name: str) -> None:
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]
