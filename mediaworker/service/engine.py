"""The composition root of `mediaworker engine`: the inference processes of this machine, the port where workers reach
them, and the HTTP port for the operator."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog

from asr import messages
from asr.network.listener import EngineListener
from asr.network.relay import ServedEngines
from asr.utterance import EngineStatus
from config import ConfigError, Settings
from config.certificates import NO_ROLE, has_role, server_context
from config.listen import LOOPBACK
from config.network.addresses import parse_tcp
from config.process.tasks import troubles
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.tls import Certificate
from mediaworker.http.context import OperatorContext
from mediaworker.http.resources.app import HttpServer, create_operator_app
from mediaworker.service.readiness import engine_status
from mediaworker.service.reload import Part
from mediaworker.service.serve import Service, bind

log = structlog.get_logger()


class EngineService(Service, OperatorContext):
    """An engine server, as `mediaworker.service.serve.Service` describes a service.

    Raises ConfigError when the engine cannot run on this machine.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.asr.servers:
            raise ConfigError("asr.servers", list(settings.asr.servers), "an engine server has its engine itself")
        super().__init__(settings, "mediaworker-engine")
        self.engines = ServedEngines(settings, on_state=lambda state, why: None, on_final=self._on_final)
        cluster = settings.cluster
        self.certificate: Certificate | None = None
        context = None
        if cluster.tls_cert:
            context = server_context(cluster)
            self.certificate = Certificate("cluster", cluster, context)
            if not has_role(cluster.tls_cert):
                log.warning(NO_ROLE)
        self.listener = EngineListener(
            self.engines,
            parse_tcp(settings.asr.listen),
            name=socket.gethostname(),
            context=context,
            token=cluster.token.reveal(),
        )
        self.failures = AuthFailures()
        self.http = HttpServer(create_operator_app(self), settings)
        self.add_process_metrics(self.engines, lambda: not self._reasons())
        self.listener.add_metrics(self.metrics)

    @property
    def certificates(self) -> dict[str, Certificate]:
        found = {"http": self.http.certificate, "cluster": self.certificate}
        return {name: each for name, each in found.items() if each is not None}

    @property
    def hosts(self) -> Mapping[str, str]:
        return {"http": self.http.host, "media": LOOPBACK}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if self.traces is not None:
                stack.push_async_callback(self.traces.stop)
            await self.engines.start()
            stack.push_async_callback(self.engines.stop)
            await bind("asr.listen", self.settings.asr.listen, self.listener)
            stack.push_async_callback(self.listener.stop)
            await bind("http.port", self.settings.http.port, self.http)
            stack.push_async_callback(self.http.stop)
            yield

    def on_started(self) -> None:
        log.info("ready", listen=self.settings.asr.listen, http=self.http.port, engine=self.engines.engine)

    async def drain(self) -> None:
        log.info("draining", workers=self.engines.workers, shutdown_s=self.settings.shutdown_s)
        await self.listener.drain(self.settings.shutdown_s)

    @property
    def parts(self) -> list[Part]:
        return [
            Part(self.use),
            Part(self.engines.use, check=self.engines.check),
            *(Part(each.use, check=each.check) for each in self.certificates.values()),
        ]

    # -- for the operator ---------------------------------------------------------------------------------------------

    def readiness(self) -> tuple[list[str], dict[str, Any]]:
        return self._reasons(), {
            "warnings": [*self.engines.warnings, *troubles(stuck=False)],
            "engine": engine_status(self.engines),
            "workers": self.engines.workers,
            "legs": self.engines.legs,
            "delay_ms": self.engines.delay_ms,
        }

    def _reasons(self) -> list[str]:
        engines = self.engines
        if (trouble := engines.trouble) is not None:
            return [trouble]
        if stuck := troubles(stuck=True):
            return stuck
        if engines.preloads and engines.state in (EngineStatus.IDLE, EngineStatus.WARMING_UP):
            return ["the recognition engine is loading its model"]
        return ["it is about to end"] if self.listener.draining else []

    def _on_final(self, final: messages.Answered, worker: str) -> None:
        if self.traces is not None:
            self.traces.on_answered(final, worker, self.engines.engine)
