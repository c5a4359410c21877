"""The parts of the worker that the HTTP routes use, and the check of a request's access that they call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from config import Settings
from config.metrics.registry import MetricsRegistry
from config.sections.section import Scope
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import Access, decide
from mediaworker.access.local_trust import delay_answer, is_direct_asgi
from mediaworker.access.page_sessions import PageSessions
from mediaworker.calls.directory import CallDirectory
from mediaworker.events.hub import EventHub
from mediaworker.events.stored_events import StoredEvents
from mediaworker.http.problem import Problem


class OperatorContext:
    """The access check, and the parts of a worker or an engine server that `/healthz`, `/readyz` and `/metrics` use."""

    settings: Settings
    metrics: MetricsRegistry
    failures: AuthFailures
    sessions: PageSessions | None = None
    """The sessions of pages that were opened without an API key; None where there is no page."""

    def readiness(self) -> tuple[list[str], dict[str, Any]]:
        """Return the reasons for not being ready, and the further members of `/readyz`."""
        raise NotImplementedError

    def authorize(self, connection: HTTPConnection, scope: Scope | None) -> Access:
        """Return the access of a request with this scope; None: any key will do. Raises Problem 401 or 403."""
        access = self._decide(connection, scope)
        if access.failure is not None:
            now, path = asyncio.get_running_loop().time(), connection.url.path
            delay_answer(connection.scope, self.failures.record(access.failure, _peer(connection), path, now))
            raise Problem(access.status, access.reason, headers={"WWW-Authenticate": access.challenge})
        return access

    def is_known(self, connection: HTTPConnection) -> bool:
        """Return whether a request to a public route has a valid key, or needs none. A wrong key is counted and its
        response delayed, as on any route."""
        if connection.headers.get("authorization", "").lower().startswith("bearer "):
            try:
                return self.authorize(connection, None).status == 200
            except Problem:
                return False
        return self._decide(connection, None).status == 200

    def _decide(self, connection: HTTPConnection, scope: Scope | None) -> Access:
        keys, sessions = self.settings.auth.api_keys, self.sessions.keys if self.sessions is not None else ()
        direct = not keys and is_direct_asgi(connection.scope)
        return decide(connection.headers.items(), _peer(connection), keys, scope, direct=direct, sessions=sessions)


def _peer(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


@dataclass(slots=True)
class ApiContext(OperatorContext):
    """The parts of the worker that the routes of its API use."""

    settings: Settings
    hub: EventHub
    metrics: MetricsRegistry
    directory: CallDirectory
    """Finds a call's state, among all calls whose state this worker's API can return."""
    report: Callable[[], tuple[list[str], dict[str, Any]]]
    """As `readiness`, which adds the hub's own trouble and warnings."""
    unknown_language: Callable[[str], str] = lambda code: ""
    """Returns why the engine does not support a language; an empty string when it does."""
    sessions: PageSessions = field(default_factory=PageSessions)
    failures: AuthFailures = field(default_factory=AuthFailures)
    feed: Callable[[], StoredEvents] | None = None
    """Returns the events that subscribers follow; None: they follow this worker's own."""

    def use(self, settings: Settings) -> None:
        """Apply reloaded settings to requests that arrive from now on."""
        self.settings = settings

    @property
    def events(self) -> StoredEvents:
        return self.feed() if self.feed is not None else self.hub

    def readiness(self) -> tuple[list[str], dict[str, Any]]:
        """See `OperatorContext`."""
        reasons, shown = self.report()
        if (trouble := self.hub.trouble) is not None:
            reasons = [*reasons, f"events are not being stored: {trouble}"]
        return reasons, shown | {"warnings": [*self.hub.warnings, *shown["warnings"]]}
