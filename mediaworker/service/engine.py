"""The composition root of `mediaworker engine`: a recognizer of this machine's engine, the port where workers reach it,
and the HTTP port for the operator."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import structlog
from starlette.requests import HTTPConnection

from asr.client.recognizer import Recognizer
from asr.network.listener import EngineListener
from asr.network.session import AnsweredFinal
from asr.utterance import EngineStatus
from config import ConfigError, Settings
from config.addresses import parse_tcp
from config.certificates import NO_ROLE, has_role, server_context
from config.listen import LOOPBACK
from config.metrics.registry import Metrics
from config.sections.section import Scope
from config.tasks import troubles
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.keys import Access
from mediaworker.access.tls import Certificate
from mediaworker.http.context import authorize, is_known
from mediaworker.http.resources.app import HttpServer, create_operator_app
from mediaworker.ops import metric_definitions as definitions
from mediaworker.service.readiness import engine_status
from mediaworker.service.reload import Part, ReloadCounters
from mediaworker.service.serve import bind, open_traces
from mediaworker.tracing.traces import Traces

log = structlog.get_logger()

MB = 1024 * 1024


class EngineService:
    """A `mediaworker.service.serve.Service`. Raises ConfigError when the engine cannot run on this machine."""

    def __init__(self, settings: Settings) -> None:
        if settings.asr.servers:
            raise ConfigError("asr.servers", list(settings.asr.servers), "an engine server has its engine itself")
        self.settings = settings
        self.metrics = Metrics()
        self.started_s = time.time()
        self.reloads = ReloadCounters(last_s=self.started_s)
        self.recognizer = Recognizer(settings, on_state=self._engine_state)
        self.traces = open_traces(settings, "mediaworker-engine")
        cluster = settings.cluster
        self.certificate: Certificate | None = None
        context = None
        if cluster.tls_cert:
            context = server_context(cluster)
            self.certificate = Certificate("cluster", cluster, context)
            if not has_role(cluster.tls_cert):
                log.warning(NO_ROLE)
        self.listener = EngineListener(
            self.recognizer,
            parse_tcp(settings.asr.listen),
            name=socket.gethostname(),
            context=context,
            token=cluster.token.reveal(),
            max_bytes=settings.asr.max_backlog_mb * MB,
            on_final=None if self.traces is None else partial(self._on_final, self.traces),
        )
        self.failures = AuthFailures()
        self.http = HttpServer(create_operator_app(self), settings)
        self._define_metrics()

    def _define_metrics(self) -> None:
        metrics = self.metrics
        definitions.add_process(metrics, self.started_s, lambda: not self._reasons())
        certificates = {"http": self.http.certificate, "cluster": self.certificate}
        present = {name: each for name, each in certificates.items() if each is not None}
        definitions.add_configuration(metrics, self.reloads, present)
        definitions.add_recognizer(metrics, self.recognizer)
        definitions.add_engine_listener(metrics, self.listener)
        if self.traces is not None:
            metrics.counters("traces", self.traces.counters)

    @property
    def hosts(self) -> Mapping[str, str]:
        return {"http": self.http.host, "media": LOOPBACK}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if self.traces is not None:
                stack.push_async_callback(self.traces.stop)
            await self.recognizer.start()
            stack.push_async_callback(self.recognizer.stop)
            await bind("asr.listen", self.settings.asr.listen, self.listener)
            stack.push_async_callback(self.listener.stop)
            await bind("http.port", self.settings.http.port, self.http)
            stack.push_async_callback(self.http.stop)
            yield

    def on_started(self) -> None:
        log.info("ready", listen=self.settings.asr.listen, http=self.http.port, engine=self.recognizer.engine)

    async def drain(self) -> None:
        log.info("draining", workers=self.listener.workers, shutdown_s=self.settings.shutdown_s)
        await self.listener.drain(self.settings.shutdown_s)

    @property
    def parts(self) -> list[Part]:
        certificates = (self.http.certificate, self.certificate)
        return [
            Part(self._use),
            Part(self.recognizer.use, check=self.recognizer.check),
            *(Part(each.use, check=each.check) for each in certificates if each is not None),
        ]

    def _use(self, settings: Settings) -> None:
        self.settings = settings

    # -- for the operator ---------------------------------------------------------------------------------------------

    def readiness(self) -> tuple[list[str], dict[str, Any]]:
        """See `mediaworker.http.context.OperatorContext`."""
        listener = self.listener
        return self._reasons(), {
            "warnings": [*self.recognizer.warnings, *troubles(stuck=False)],
            "engine": dict(engine_status(self.recognizer)),
            "workers": listener.workers,
            "legs": listener.legs,
            "delay_ms": listener.delay_ms,
        }

    def authorize(self, connection: HTTPConnection, scope: Scope | None) -> Access:
        """Raises Problem 401 or 403."""
        return authorize(self.settings.auth.api_keys, self.failures, connection, scope)

    def is_known(self, connection: HTTPConnection) -> bool:
        """Whether it shows a key, or needs none."""
        return is_known(self.settings.auth.api_keys, self.failures, connection)

    def _reasons(self) -> list[str]:
        recognizer = self.recognizer
        if (trouble := recognizer.trouble) is not None:
            return [trouble]
        if stuck := troubles(stuck=True):
            return stuck
        if recognizer.preloads and recognizer.state in (EngineStatus.IDLE, EngineStatus.WARMING_UP):
            return ["the recognition engine is loading its model"]
        return ["it is about to end"] if self.listener.draining else []

    def _on_final(self, traces: Traces, final: AnsweredFinal) -> None:
        traces.on_answered(final, self.recognizer.engine)

    def _engine_state(self, state: EngineStatus, why: str) -> None:
        ends = (server.last_end for server in self.recognizer.servers)
        self.listener.on_state(state, next(filter(None, ends), why))
