"""The HTTP side on a real port, with calls that answer as live ones do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from config.load import parse
from config.metrics.registry import MetricsRegistry
from lab.events.samples import LEGS, ended, running_hub, started
from lab.http.documented import check_async
from lab.patience import seconds
from mediaworker.calls.directory import CallDirectory
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask
from mediaworker.events.schema import LegUpdated
from mediaworker.http.resources.app import ApiContext, HttpServer, create_app

EVENTS_KEY, ADMIN_KEY, BOTH_KEY, METRICS_KEY = "events-key-1", "admin.key~2", "both_key-3", "metrics-key-4"
KEYS = {
    "api_keys": [
        {"name": "screen", "key": EVENTS_KEY, "scopes": ["events"]},
        {"name": "ops", "key": ADMIN_KEY, "scopes": ["admin"]},
        {"name": "prometheus", "key": METRICS_KEY, "scopes": ["metrics"]},
        {"name": "both", "key": BOTH_KEY, "scopes": ["events", "admin"]},
    ]
}


@dataclass
class LiveCall:
    """Publishes what `mediaworker.calls.call.Call` would, without its audio."""

    id: str
    hub: EventHub
    languages: list[str] = field(default_factory=list)
    player: Any = None
    hangups_after_playback: int = 0

    def hangup(self) -> None:
        self.hub.publish(self.id, 1000, ended("api"))

    def hangup_after_playback(self) -> None:
        self.hangups_after_playback += 1

    def rename(self, leg: str, name: str) -> None:
        info = next(info for info in LEGS if info.leg == leg)
        self.hub.publish(self.id, 500, LegUpdated(leg, info.role, name, info.label, info.codec))

    def set_language(self, language: str) -> None:
        self.languages.append(language)


class LiveCalls(dict[str, LiveCall]):
    """The registry: call id → call."""


@dataclass
class Running:
    url: str
    hub: EventHub
    calls: LiveCalls
    client: httpx.AsyncClient
    reasons: list[str]
    server: HttpServer

    @property
    def ws(self) -> str:
        return self.url.replace("http:", "ws:") + "/v1/events"

    def open_call(self, call_id: str, **fields: Any) -> LiveCall:
        self.hub.publish(call_id, 0, started(**fields))
        self.calls[call_id] = LiveCall(call_id, self.hub)
        return self.calls[call_id]


@asynccontextmanager
async def running_api(directory: Path, *, keys: bool = False, **sections: Any) -> AsyncIterator[Running]:
    tree = {"http": {"host": "127.0.0.1", "port": 0}, "auth": KEYS if keys else {}, **sections}
    settings = parse(tree)
    reasons: list[str] = []
    async with running_hub(directory, settings) as hub:
        calls, metrics = LiveCalls(), MetricsRegistry()
        hub.add_metrics(metrics)
        RetentionTask(hub, settings.retention).add_metrics(metrics)
        directory = CallDirectory(hub, calls)
        shown = {"warnings": [], "sip": [{"account": "pbx", "state": "registered", "code": 200}], "engine": {}}
        context = ApiContext(settings, hub, metrics, directory, lambda: (reasons, shown))
        server = HttpServer(create_app(context), settings)
        await server.start()
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(
            base_url=url, timeout=seconds(10), event_hooks={"response": [check_async]}
        ) as client:
            try:
                yield Running(url, hub, calls, client, reasons, server)
            finally:
                await server.stop()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
