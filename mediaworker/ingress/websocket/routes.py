"""`WS /ws/asr`, `WS /ws/transcribe` and other dialects: the admission of sessions by key and number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial

from uuid_utils import uuid7

from config import Settings
from config.metrics.registry import MetricsRegistry
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import SUBPROTOCOL
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.ingress.interfaces import MediaEndpoint, SessionFactory, Upgrade
from mediaworker.ingress.upgrade_admission import MediaIngress
from mediaworker.ingress.websocket.dialects import dialects
from mediaworker.ingress.websocket.limits import StreamCounters, StreamEngine, StreamPolicy


@dataclass(slots=True)
class StreamEndpoint:
    """The endpoint of one dialect; implements `interfaces.MediaEndpoint`."""

    subprotocols: tuple[str, ...]
    admit: Callable[[Upgrade], SessionFactory]
    text_as_bytes: bool = False


class StreamIngress(MediaIngress[StreamCounters]):
    """Admits the clients of all dialects, which the path of an upgrade selects.

    `settled` returns once all published events are stored (`EventHub.flush`), `page_keys` returns the keys of pages
    that were opened without an API key, and `taken` are the paths of other ingresses. Raises ConfigError for a dialect
    of an installed package that cannot be used.
    """

    new_counters = StreamCounters
    refused_event = "stream refused"

    def __init__(
        self,
        settings: Settings,
        registry: CallRegistry,
        failures: AuthFailures | None = None,
        *,
        engine: StreamEngine,
        settled: Callable[[], Awaitable[None]],
        page_keys: Callable[[], Collection[str]] = tuple,
        taken: Collection[str] = (),
    ) -> None:
        super().__init__(settings, registry, failures)
        self._dialects = dialects(taken)
        self._engine, self._settled, self._page_keys = engine, settled, page_keys
        self._settling: set[asyncio.Future[None]] = set()

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("stream", self.counters)
        metrics.gauge(
            "stream_sessions", "Shows how many sessions of /ws/asr and /ws/transcribe are open.", lambda: self.sessions
        )

    def endpoints(self) -> dict[str, MediaEndpoint]:
        """The endpoints of all dialects, by path."""
        spoken = {path: (*dialect.subprotocols, SUBPROTOCOL) for path, dialect in self._dialects.items()}
        return {path: StreamEndpoint(subprotocols, self.admit) for path, subprotocols in spoken.items()}

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Check an upgrade, and return what opens its session. Raises CallRefused with 401, 403, 429 or 503."""
        access = self.check_key(upgrade, page_keys=self._page_keys())
        self.check_room(upgrade)
        limits = self._settings.stream
        if self.sessions >= limits.max_sessions:
            most = f"all {limits.max_sessions} sessions are taken"
            raise self.refuse("sessions", upgrade, CallRefused(503, most))
        if self._open[access.name] >= limits.max_sessions_per_key:
            most = f"a key may have {limits.max_sessions_per_key} sessions at once"
            raise self.refuse("key_sessions", upgrade, CallRefused(429, most))
        policy = StreamPolicy(
            session_id=str(uuid7()),
            caller=access.name,
            start_timeout_s=self._settings.media.start_timeout_s,
            idle_s=limits.idle_s,
            max_s=limits.max_s,
            engine=self._engine,
        )
        make = partial(self._dialects[upgrade.path], policy, self._registry, settle=self._settle)
        return self.opening(upgrade, make, access.name)

    def _settle(self, done: Callable[[], None]) -> None:
        waiting = asyncio.ensure_future(self._settled())
        self._settling.add(waiting)
        waiting.add_done_callback(self._settling.discard)
        waiting.add_done_callback(lambda _: done())
