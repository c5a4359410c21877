"""What the routes are given, and how they ask who is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from config import Settings
from config.metrics.registry import Metrics
from config.sections.section import Scope
from config.settings import ApiKey
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import Access, decide
from mediaworker.access.local_trust import delay_answer, is_direct_asgi
from mediaworker.access.page_sessions import PageSessions
from mediaworker.calls.directory import CallDirectory
from mediaworker.calls.registry import CallRegistry
from mediaworker.events.hub import EventHub
from mediaworker.events.stored_events import StoredEvents
from mediaworker.http.problem import Problem


class OperatorContext(Protocol):
    """What `/healthz`, `/readyz` and `/metrics` need, of a worker and of an engine server."""

    metrics: Metrics

    def readiness(self) -> tuple[list[str], dict[str, Any]]:
        """Reasons why it is not ready, and what `/readyz` shows besides."""

    def authorize(self, connection: HTTPConnection, scope: Scope | None) -> Access:
        """Raises Problem 401 or 403."""

    def is_known(self, connection: HTTPConnection) -> bool:
        """Whether it shows a key, or needs none."""


@dataclass(slots=True)
class ApiContext:
    """The worker, as far as the HTTP side needs it."""

    settings: Settings
    hub: EventHub
    calls: CallRegistry
    metrics: Metrics
    directory: CallDirectory
    """Of all calls that can be asked about here."""
    ready: Callable[[], Sequence[str]]
    """Reasons why no call can be taken now; none: ready. The hub's own trouble is added here."""
    warnings: Callable[[], Sequence[str]] = lambda: ()
    """What `/readyz` says beside that it is ready: sentences for the operator. The hub's own are added here."""
    engine: Callable[[], Mapping[str, Any]] = dict
    """The engine's name and state, and where it computes, for `/readyz`."""
    sip_status: Callable[[], Sequence[Mapping[str, Any]]] = lambda: ()
    """One object per registration, for `/readyz`."""
    unknown_language: Callable[[str], str] = lambda code: ""
    """Why the engine cannot be asked for this language; empty when it can."""
    sessions: PageSessions = field(default_factory=PageSessions)
    """Of pages that were opened without an API key."""
    failures: AuthFailures = field(default_factory=AuthFailures)
    feed: Callable[[], StoredEvents] | None = None
    """The events that subscribers follow; without one: those of this worker."""

    def use(self, settings: Settings) -> None:
        """For requests that come from now on."""
        self.settings = settings

    @property
    def events(self) -> StoredEvents:
        return self.feed() if self.feed is not None else self.hub

    def readiness(self) -> tuple[list[str], dict[str, Any]]:
        """See `OperatorContext`."""
        reasons = list(self.ready())
        if (trouble := self.hub.trouble) is not None:
            reasons.append(f"events are not being stored: {trouble}")
        sip = [dict(registration) for registration in self.sip_status()]
        return reasons, {"warnings": [*self.hub.warnings, *self.warnings()], "sip": sip, "engine": dict(self.engine())}

    def authorize(self, connection: HTTPConnection, scope: Scope | None) -> Access:
        """Raises Problem 401 or 403."""
        return authorize(self.settings.auth.api_keys, self.failures, connection, scope, self.sessions.keys)

    def is_known(self, connection: HTTPConnection) -> bool:
        """See `OperatorContext`."""
        return is_known(self.settings.auth.api_keys, self.failures, connection, self.sessions.keys)


def is_known(
    keys: Sequence[ApiKey], failures: AuthFailures, connection: HTTPConnection, sessions: Collection[str] = ()
) -> bool:
    """Whether a request to a route that is open to all shows a key, or needs none. A wrong key is counted, and its
    answer slowed, as at any route."""
    if connection.headers.get("authorization", "").lower().startswith("bearer "):
        try:
            return authorize(keys, failures, connection, None, sessions).status == 200
        except Problem:
            return False
    peer = connection.client.host if connection.client else ""
    direct = not keys and is_direct_asgi(connection.scope)
    return decide(connection.headers.items(), peer, keys, None, direct=direct, sessions=sessions).status == 200


def authorize(
    keys: Sequence[ApiKey],
    failures: AuthFailures,
    connection: HTTPConnection,
    scope: Scope | None,
    sessions: Collection[str] = (),
) -> Access:
    """Raises Problem 401 or 403."""
    peer = connection.client.host if connection.client else ""
    direct = not keys and is_direct_asgi(connection.scope)
    access = decide(connection.headers.items(), peer, keys, scope, direct=direct, sessions=sessions)
    if access.failure is not None:
        now = asyncio.get_running_loop().time()
        delay_s = failures.record(access.failure, peer, connection.url.path, now)
        delay_answer(connection.scope, delay_s)
        raise Problem(access.status, access.reason, headers={"WWW-Authenticate": access.challenge})
    return access
