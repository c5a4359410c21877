"""The composition root of the worker: every part is created here, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus
from audio import Detector, Shard
from config import ConfigError, Settings
from config.listen import media_host
from config.metrics.registry import MetricsRegistry
from config.network.addresses import bracketed
from mediaworker.access import connections
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.access.page_sessions import PageSessions
from mediaworker.access.tls import Certificate, sip_certificate
from mediaworker.calls.directory import CallDirectory
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.overload import LoadGuard
from mediaworker.calls.parts import TranscriberParts
from mediaworker.calls.registry import CallRegistry
from mediaworker.events import schema as events
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask
from mediaworker.events.store import EventStore, StoreError
from mediaworker.files.service import FileService
from mediaworker.http.openai import routes as openai
from mediaworker.http.resources import jobs as jobs_api
from mediaworker.http.resources import page
from mediaworker.http.resources.app import ApiContext, HttpServer, create_app
from mediaworker.ingress.asterisk import routes as asterisk_http
from mediaworker.ingress.audiosocket.listener import AudioSocketListener
from mediaworker.ingress.interfaces import MediaEndpoint
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.runner import Throttle, websocket_routes
from mediaworker.ingress.twilio import routes as twilio_http
from mediaworker.ingress.websocket import routes as ws_http
from mediaworker.ingress.websocket.limits import StreamEngine
from mediaworker.jobs import notifier
from mediaworker.jobs.service import JobService
from mediaworker.policy.alerts.watch import AlertWatch
from mediaworker.policy.redaction.call import Policy
from mediaworker.service.readiness import Readiness
from mediaworker.service.reload import Part
from mediaworker.service.serve import Service, StartError, bind
from mediaworker.webhooks import events as event_webhooks
from mediaworker.webhooks.events import EventWebhooks

if TYPE_CHECKING:
    from mediaworker.cluster.member import ClusterMember
    from sip.pjsip.endpoint import SipEndpoint

log = structlog.get_logger()


class Worker(Service):
    """One worker on the running loop: `async with worker.running(): …`, and `drain` before leaving.

    Raises ConfigError for settings that only their parts can judge, and StartError if pjsua2 is missing.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "mediaworker")
        clock = asyncio.get_running_loop().time
        self.hub = EventHub(settings, EventStore(settings.data_dir))
        if self.traces is not None:
            self.hub.on_shown.append(self.traces.on_shown)
        self.webhooks = EventWebhooks(self.hub, settings)
        self.retention = RetentionTask(self.hub, settings.retention)
        self.recognizer = Recognizer(settings, on_state=self._engine_state)
        self.hub.engine = self._engine_info("idle")
        self.detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.silence_after_s)
        self.alerts = AlertWatch(settings.alerts.file, lambda: self.calls)
        parts = TranscriberParts(self.recognizer, clock, guard=LoadGuard(), traces=self.traces)
        self.calls = CallRegistry(
            settings,
            parts,
            detector=self.detector,
            publish=self.hub.publish,
            aligner=self.recognizer if settings.asr.word_timestamps else None,
            calls_changed=self._calls_changed,
            rules=(lambda: self.alerts.rules) if settings.alerts.file else None,
        )
        self.sip_certificate = sip_certificate(settings.sip)
        self.sip = self._make_sip()
        self.files = FileService(settings, self.recognizer, in_work=self._files_changed)
        self.cluster = self._join_cluster(settings)
        self.jobs = JobService(settings, self.files, store=self.cluster.jobs if self.cluster is not None else None)
        self.readiness = Readiness(
            settings, self.calls, self.recognizer, self.jobs, self.webhooks, self.sip, self.cluster
        )
        self.page_sessions, self.auth_failures = PageSessions(self._show_page_link), AuthFailures()
        self._throttle = Throttle()
        self.media = MediaLoop(self.calls, sweep=self._sweep, stepped=self._throttle.release)
        endpoints = self._make_ingresses(settings)
        self._make_http(settings, endpoints)
        self._add_metrics(self.metrics)

    def _make_ingresses(self, settings: Settings) -> dict[str, MediaEndpoint]:
        """Create all ingresses but SIP. Returns those with WebSockets by path, since the HTTP port serves them too."""
        self.twilio = twilio_http.TwilioIngress(settings, self.calls, self.auth_failures)
        self.asterisk = asterisk_http.AsteriskIngress(settings, self.calls, self.auth_failures)
        endpoints: dict[str, MediaEndpoint] = {twilio_http.STREAM: self.twilio, asterisk_http.MEDIA: self.asterisk}
        self.streams = ws_http.StreamIngress(
            settings,
            self.calls,
            self.auth_failures,
            engine=StreamEngine(lambda: self.recognizer.state is EngineStatus.READY, lambda: self.recognizer.languages),
            settled=self.hub.flush,
            page_keys=lambda: self.page_sessions.keys,
            taken=endpoints,
        )
        endpoints |= self.streams.endpoints()
        media, heartbeat_s = replace(settings.media, host=media_host(settings)), settings.events.heartbeat_s
        self.listener = MediaListener(media, endpoints, self._throttle, heartbeat_s=heartbeat_s)
        self.audiosocket = AudioSocketListener(settings, self.calls, self._throttle)
        return endpoints

    def _make_http(self, settings: Settings, endpoints: Mapping[str, MediaEndpoint]) -> None:
        self.api = ApiContext(
            settings=settings,
            hub=self.hub,
            metrics=self.metrics,
            directory=self.cluster.directory if self.cluster is not None else CallDirectory(self.hub, self.calls),
            report=self.readiness.report,
            unknown_language=self.recognizer.unknown,
            sessions=self.page_sessions,
            failures=self.auth_failures,
            feed=self.cluster.feed if self.cluster is not None else lambda: self.hub,
        )
        extra = websocket_routes(endpoints, self._throttle, max_bytes=settings.media.max_message_bytes)
        extra += twilio_http.webhook_routes(self.twilio)
        extra += openai.routes(self.api, self.files)
        extra += jobs_api.routes(self.api, self.jobs, self.files)
        self.http = HttpServer(create_app(self.api, extra), settings)

    def _add_metrics(self, metrics: MetricsRegistry) -> None:
        limits = {"http": self.http.guard.limit, "media": self.listener.limit}
        if self.settings.audiosocket.enabled:
            limits["audiosocket"] = self.audiosocket.limit
        self.add_process_metrics(
            self.recognizer, ready=lambda: not self.readiness.reasons() and self.hub.trouble is None
        )
        connections.add_metrics(metrics, limits)
        metrics.counters("http", self.http.guard.counters)
        latency = self.calls.parts.latency
        latency.add_metrics(metrics, commit=self.hub.final_commit_s, fan_out=self.hub.final_fan_out_s)
        for part in (
            self.auth_failures, self.listener, self.calls, self.alerts, self.media, self.hub,
            self.retention, self.webhooks, self.twilio, self.streams, self.asterisk, self.audiosocket, self.files,
            self.jobs, self.cluster, self.sip,
        ):  # fmt: skip
            if part is not None:
                part.add_metrics(metrics)

    @property
    def certificates(self) -> dict[str, Certificate]:
        found = {"http": self.http.certificate, "media": self.listener.certificate, "sip": self.sip_certificate}
        return {section: certificate for section, certificate in found.items() if certificate is not None}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listening on every port; everything is closed at the end. Raises StartError."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._bound_files()
                if self.traces is not None:
                    stack.push_async_callback(self.traces.stop)
                await self.hub.start()
                stack.push_async_callback(self.hub.stop)
                if self.cluster is not None:
                    self.cluster.start()
                    stack.push_async_callback(self.cluster.stop)
                await self.webhooks.start()
                stack.push_async_callback(self.webhooks.stop)
                self.retention.start()
                stack.push_async_callback(self.retention.stop)
                await self.recognizer.start()
                self.readiness.warn_of_languages()
                stack.push_async_callback(self.recognizer.stop)
                await self.jobs.start()
                stack.push_async_callback(self.jobs.stop)
                self.alerts.start()
                stack.push_async_callback(self.alerts.stop)
                self.media.start()
                stack.push_async_callback(self.media.stop)
                if self.sip is not None:
                    await self._start_sip(self.sip)
                    stack.push_async_callback(self.sip.stop)
                await bind("media.port", self.settings.media.port, self.listener)
                stack.push_async_callback(self.listener.stop)
                if self.settings.audiosocket.enabled:
                    await bind("audiosocket.port", self.settings.audiosocket.port, self.audiosocket)
                    stack.push_async_callback(self.audiosocket.stop)
                await bind("http.port", self.settings.http.port, self.http)
                stack.push_async_callback(self.http.stop)
            except StoreError as error:
                raise StartError(f"data_dir: {error}") from None
            # The objects created during start-up live as long as the process; later collections need not walk them.
            gc.collect()
            gc.freeze()
            yield

    @property
    def hosts(self) -> Mapping[str, str]:
        """The addresses that the listeners took at the start."""
        return {"http": self.http.host, "media": self.listener.host}

    def on_started(self) -> None:
        """Log that the worker is ready, and how to open the page."""
        log.info(
            "ready",
            http=self.http.port,
            media=self.listener.port,
            sip=self.sip.port if self.sip is not None else None,
            audiosocket=self.audiosocket.port if self.settings.audiosocket.enabled else None,
            engine=self.recognizer.engine or "unknown until an engine server answers",
        )
        self._show_page_link()

    async def drain(self) -> None:
        """Refuse new calls and files, let open ones run for `shutdown_s`, end the rest; returns after the last final.
        Jobs stop where they are."""
        log.info("draining", calls=len(self.calls), shutdown_s=self.settings.shutdown_s)
        if self.sip is not None:
            self.sip.refuse_new()
        if self.cluster is not None:
            await self.cluster.accounts.release()
        await self.jobs.pause()
        await asyncio.gather(self.calls.drain(self.settings.shutdown_s), self.files.drain(self.settings.shutdown_s))
        await self.hub.flush()

    @property
    def parts(self) -> list[Part]:
        """The parts that a reload changes, in this order."""
        parts = [
            Part(self.use),
            Part(self.twilio.use, ("twilio",)),
            *(Part(each.use, check=each.check) for each in self.certificates.values()),
            Part(self.calls.use, check=Policy),
            *(Part(each.use) for each in (self.api, self.files, self.streams, self.asterisk)),
            Part(self.audiosocket.use, ("audiosocket",)),
            Part(self.jobs.use, ("jobs",), check=notifier.check),
            Part(self.webhooks.use, ("webhooks",), check=event_webhooks.check),
            Part(self.retention.use, ("retention",)),
            Part(self.recognizer.use, check=self._check_engine),
            Part(self.readiness.use),  # after the recognizer, which it asks for the known languages
        ]
        if self.cluster is not None:
            connection = self.cluster.connection
            parts.append(Part(self.cluster.retention.use, ("retention",)))
            parts.append(Part(connection.use, check=connection.check))
        if self.sip is not None:
            parts.append(Part(self.sip.use))
            parts.append(Part(self.sip.set_users, ("sip.users",)))  # Challenges from before would be stale.
        return parts

    def _check_engine(self, settings: Settings) -> None:
        """Check the settings of the engine. Raises ConfigError."""
        if why := self.recognizer.unknown(settings.asr.language):
            raise ConfigError("asr.language", settings.asr.language, why)
        self.recognizer.check(settings)

    def _show_page_link(self) -> None:
        """Log the link that opens the page, unless API keys are configured."""
        if not self.settings.auth.api_keys:
            scheme = "https" if self.http.certificate is not None else "http"
            link = f"{scheme}://{bracketed(self.http.host)}:{self.http.port}/?{page.TOKEN}={self.page_sessions.token}"
            log.info("no API keys are configured: this link opens the page once", page=link)

    def _bound_files(self) -> None:
        """Lower the connection limits, so that a flood of connections leaves enough descriptors for calls."""
        connections.raise_open_files()
        reports = self.settings.sip.max_calls if self.sip is not None and self.settings.rtp.rtcp else 0
        room = connections.affordable(self.settings.max_calls + reports)
        if self.settings.audiosocket.enabled:
            room = room * 3 // 4
            self.audiosocket.lower(room)
        for limit in (self.http.guard.limit, self.listener.limit):
            limit.lower(room)
        if self.sip is not None:
            self.sip.admission.connections.lower(room)

    def _join_cluster(self, settings: Settings) -> ClusterMember | None:
        if not settings.cluster.nats:
            return None
        from mediaworker.cluster.member import ClusterMember

        accounts = self.sip.one_worker if self.sip is not None else ()
        return ClusterMember(settings, self.hub, self.calls, self.traces, accounts)

    def _make_sip(self) -> SipEndpoint | None:
        if not self.settings.sip.enabled:
            return None
        try:
            from sip.pjsip.endpoint import SipEndpoint
        except ImportError as error:
            from sip.protocol.errors import NO_PJSUA2

            how = "set sip.enabled = false (MEDIAWORKER_SIP__ENABLED=false) for a worker without SIP"
            raise StartError(f"{NO_PJSUA2}; or {how} ({error})") from None
        from mediaworker.ingress.sip.calls import SipIngress

        handler = SipIngress(self.calls, lambda: self.settings, lambda: self.readiness.refusal())
        return SipEndpoint(
            self.settings,
            handler,
            self.detector,
            ready=lambda: not self.readiness.unfit() and self.hub.trouble is None,
        )

    async def _start_sip(self, endpoint: SipEndpoint) -> None:
        from sip.protocol.errors import SipError

        try:
            await endpoint.start(self.hub.cursor.store_id)
        except SipError as error:
            raise StartError(f"sip.port = {self.settings.sip.port}: {error}") from None

    def _sweep(self, now: float, shard: Shard) -> Iterator[None]:
        if self.sip is not None:
            yield from self.sip.receiver.sweep(now, shard)
        yield from self.listener.sweep(shard)
        self.audiosocket.sweep()

    def _calls_changed(self, count: int) -> None:
        self._keep_engine()
        self.media.wake()

    def _files_changed(self, count: int) -> None:
        self._keep_engine()

    def _keep_engine(self) -> None:
        self.recognizer.keep_alive(len(self.calls) > 0 or self.files.open_files > 0)

    def _engine_info(self, state: events.EngineStatus) -> events.EngineInfo:
        recognizer = self.recognizer
        return events.EngineInfo(recognizer.engine, state, sorted(recognizer.languages), sorted(recognizer.partials))

    def _engine_state(self, state: EngineStatus, why: str) -> None:
        detail = why if state is EngineStatus.FAILED else ""
        runtime = self.recognizer.runtime if state is EngineStatus.READY else None
        device = runtime.device if runtime is not None else ""
        self.hub.engine = self._engine_info(state.value)
        self.hub.publish(None, 0, events.EngineState(state.value, self.recognizer.engine, detail, device))
