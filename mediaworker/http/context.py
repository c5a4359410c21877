"""What the routes are given, and how they ask who is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from config import Settings
from config.sections.section import Scope
from mediaworker.calls.registry import CallRegistry
from mediaworker.events.hub import EventHub
from mediaworker.http.auth import Access, decide
from mediaworker.http.page_sessions import PageSessions
from mediaworker.http.problem import Problem
from mediaworker.ingress.access import delay_answer, is_direct_asgi
from mediaworker.ingress.auth_failures import AuthFailures
from mediaworker.ops.metrics import MetricsRegistry


@dataclass(slots=True)
class ApiContext:
    """The worker, as far as the HTTP side needs it. A reload puts other `settings` in."""

    settings: Settings
    hub: EventHub
    calls: CallRegistry
    metrics: MetricsRegistry
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

    def authorize(self, connection: HTTPConnection, scope: Scope | None) -> Access:
        """Raises Problem 401 or 403."""
        peer = connection.client.host if connection.client else ""
        keys = self.settings.auth.api_keys
        direct = not keys and is_direct_asgi(connection.scope)
        access = decide(connection.headers.items(), peer, keys, scope, direct=direct, sessions=self.sessions.keys)
        if access.failure is not None:
            now = asyncio.get_running_loop().time()
            delay_s = self.failures.record(access.failure, peer, connection.url.path, now)
            delay_answer(connection.scope, delay_s)
            raise Problem(access.status, access.reason, headers={"WWW-Authenticate": access.challenge})
        return access
