"""The composition root: every part is made here, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import structlog
import uvloop
from msgspec.structs import replace

from asr.client.recognizer import Recognizer
from asr.utterance import EngineStatus
from audio import Detector, Shard
from config import Settings
from config.listen import media_host
from mediaworker.calls.media_loop import MediaLoop
from mediaworker.calls.registry import CallRefused, CallRegistry
from mediaworker.events import schema as events
from mediaworker.events.hub import EventHub
from mediaworker.events.retention import RetentionTask
from mediaworker.events.store import EventStore, StoreError
from mediaworker.files.service import FileService
from mediaworker.http.app import ApiContext, HttpServer, create_app
from mediaworker.http.openai import routes as openai
from mediaworker.http.page_sessions import PageSessions
from mediaworker.http.resources import jobs as jobs_api
from mediaworker.http.resources import page
from mediaworker.ingress.asterisk import routes as asterisk_http
from mediaworker.ingress.audiosocket.listener import AudioSocketListener
from mediaworker.ingress.auth_failures import AuthFailures
from mediaworker.ingress.connections import affordable, raise_open_files
from mediaworker.ingress.interfaces import MediaEndpoint
from mediaworker.ingress.listener import MediaListener
from mediaworker.ingress.runner import Throttle, websocket_routes
from mediaworker.ingress.twilio import routes as twilio_http
from mediaworker.ingress.websocket import routes as ws_http
from mediaworker.jobs.service import JobService
from mediaworker.ops import logs
from mediaworker.ops import metric_definitions as definitions
from mediaworker.ops.latency import LatencyParts
from mediaworker.ops.metrics import MetricsRegistry
from mediaworker.ops.overload import LoadGuard
from mediaworker.ops.reload import ReloadCounters, Reloader
from mediaworker.ops.systemd import ServiceManager
from mediaworker.ops.tls import Certificate, sip_certificate
from mediaworker.policy.alerts.watch import AlertWatch
from mediaworker.webhooks.events import EventWebhooks

if TYPE_CHECKING:
    from sip.pjsip.endpoint import SipEndpoint

log = structlog.get_logger()


class StartError(Exception):
    """The worker cannot start; the message is one line for the person who starts it."""


class Worker:
    """One worker on the running loop: `async with worker.running(): …`, and `drain` before leaving.

    Raises ConfigError for settings that only their part can judge, StartError without pjsua2.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        clock = asyncio.get_running_loop().time
        self.metrics = MetricsRegistry()
        self.latency = LatencyParts()
        self.hub = EventHub(settings, EventStore(settings.data_dir))
        self.webhooks = EventWebhooks(self.hub, settings)
        self.retention = RetentionTask(self.hub, settings.retention)
        self.started_s = time.time()
        self.reloads = ReloadCounters(last_s=self.started_s)
        self.recognizer = Recognizer(settings, on_state=self._engine_state)
        self.hub.engine = events.EngineInfo(self.recognizer.engine, "idle", sorted(self.recognizer.languages))
        self.detector = Detector(jitter_s=settings.rtp.jitter_ms / 1000, stall_s=settings.media.silence_after_s)
        self.guard = LoadGuard()
        self.alerts = AlertWatch(settings.alerts.file, lambda: self.calls)
        self.calls = CallRegistry(
            settings,
            detector=self.detector,
            recognizer=self.recognizer,
            publish=self.hub.publish,
            clock=clock,
            latency=self.latency,
            guard=self.guard,
            aligner=self.recognizer if settings.asr.word_timestamps else None,
            calls_changed=self._calls_changed,
            rules=(lambda: self.alerts.rules) if settings.alerts.file else None,
        )
        self.files = FileService(settings, self.recognizer, in_work=self._files_changed)
        self.jobs = JobService(settings, self.files)
        self._throttle = throttle = Throttle()
        self.page_sessions, self.auth_failures = PageSessions(), AuthFailures()
        self.media = MediaLoop(
            self.detector,
            lambda: self.calls,
            latency=self.latency,
            guard=self.guard,
            sweep=self._sweep,
            stepped=self._stepped,
        )
        self.twilio = twilio_http.TwilioIngress(
            settings, self.calls.open, refusal=self.calls.refusal, failures=self.auth_failures
        )
        self.streams = ws_http.StreamIngress(
            settings,
            self.calls.open,
            engine_ready=lambda: self.recognizer.state is EngineStatus.READY,
            languages=lambda: self.recognizer.languages,
            settled=self.hub.flush,
            refusal=self.calls.refusal,
            sessions=lambda: self.page_sessions.keys,
            failures=self.auth_failures,
        )
        self.asterisk = asterisk_http.AsteriskIngress(
            settings, self.calls.open, refusal=self.calls.refusal, failures=self.auth_failures
        )
        endpoints: dict[str, MediaEndpoint] = {
            twilio_http.STREAM: self.twilio,
            asterisk_http.MEDIA: self.asterisk,
            **ws_http.endpoints(self.streams),
        }
        self.listener = MediaListener(replace(settings.media, host=media_host(settings)), endpoints, throttle)
        self.audiosocket = AudioSocketListener(settings, self.calls.open, refusal=self.calls.refusal)
        self.sip_certificate = sip_certificate(settings.sip)
        self.sip = self._make_sip()
        self.api = ApiContext(
            settings=settings,
            hub=self.hub,
            calls=self.calls,
            metrics=self.metrics,
            ready=self.not_ready,
            warnings=self.warnings,
            engine=self.engine_status,
            unknown_language=self.recognizer.unknown,
            sip_status=self.sip_status,
            sessions=self.page_sessions,
            failures=self.auth_failures,
        )
        extra = websocket_routes(endpoints, throttle, max_bytes=settings.media.max_message_bytes)
        extra += twilio_http.webhook_routes(self.twilio)
        extra += openai.routes(self.api, self.files)
        extra += jobs_api.routes(self.api, self.jobs, self.files)
        self.http = HttpServer(create_app(self.api, extra), settings)
        self._define_metrics(self.metrics)

    def _define_metrics(self, metrics: MetricsRegistry) -> None:
        limits = {"http": self.http.guard.limit, "media": self.listener.limit}
        if self.settings.audiosocket.enabled:
            limits["audiosocket"] = self.audiosocket.limit
        definitions.add_process(metrics, self.started_s, lambda: not self.not_ready() and self.hub.trouble is None)
        definitions.add_configuration(metrics, self.reloads, self._certificates())
        definitions.add_ports(metrics, limits, self.http.guard, self.listener, self.auth_failures.counts)
        definitions.add_calls(metrics, self.calls, self.guard, self.alerts)
        definitions.add_media(metrics, self.media, self.detector)
        definitions.add_latency(metrics, self.latency, self.hub)
        definitions.add_recognizer(metrics, self.recognizer)
        definitions.add_events(metrics, self.hub)
        definitions.add_event_store(metrics, self.hub, self.retention)
        definitions.add_event_webhooks(metrics, self.webhooks.feeds)
        definitions.add_twilio(metrics, self.twilio)
        definitions.add_streams(metrics, self.streams)
        definitions.add_asterisk(metrics, self.asterisk, self.audiosocket)
        if self.sip is not None:
            definitions.add_sip(metrics, self.sip)
        definitions.add_files(metrics, self.files)
        definitions.add_jobs(metrics, self.jobs)

    def _certificates(self) -> dict[str, Certificate]:
        """Of the listeners that speak TLS, by their section of the settings."""
        found = {"http": self.http.certificate, "media": self.listener.certificate, "sip": self.sip_certificate}
        return {section: certificate for section, certificate in found.items() if certificate is not None}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listening on every port; everything is closed at the end. Raises StartError."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                self._bound_files()
                await self.hub.start()
                stack.push_async_callback(self.hub.stop)
                await self.webhooks.start()
                stack.push_async_callback(self.webhooks.stop)
                self.retention.start()
                stack.push_async_callback(self.retention.stop)
                await self.recognizer.start()
                self.warn_of_languages()
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
                await _bind("media", self.settings.media.port, self.listener)
                stack.push_async_callback(self.listener.stop)
                if self.settings.audiosocket.enabled:
                    await _bind("audiosocket", self.settings.audiosocket.port, self.audiosocket)
                    stack.push_async_callback(self.audiosocket.stop)
                await _bind("http", self.settings.http.port, self.http)
                stack.push_async_callback(self.http.stop)
            except StoreError as error:
                raise StartError(f"data_dir: {error}") from None
            # What start-up made stays; later collections need not walk it.
            gc.collect()
            gc.freeze()
            yield

    async def drain(self) -> None:
        """Refuse new calls and files, let open ones run for `shutdown_s`, end the rest; returns after the last final.
        Jobs stop where they are."""
        log.info("draining", calls=len(self.calls), shutdown_s=self.settings.shutdown_s)
        if self.sip is not None:
            self.sip.refuse_new()
        await self.jobs.pause()
        await asyncio.gather(self.calls.drain(self.settings.shutdown_s), self.files.drain(self.settings.shutdown_s))
        await self.hub.flush()

    def show_page_link(self) -> None:
        """Into the log, as long as there are no API keys to open the page with."""
        if self.settings.auth.api_keys:
            return
        scheme = "https" if self.http.certificate is not None else "http"
        host = f"[{self.http.host}]" if ":" in self.http.host else self.http.host
        link = f"{scheme}://{host}:{self.http.port}/?{page.TOKEN}={self.page_sessions.token}"
        log.info("no API keys are configured: this link opens the page once", page=link)

    def refusal(self) -> CallRefused | None:
        """Why an INVITE would be refused now, or None."""
        refusal = self.calls.refusal()
        if refusal is None and self.recognizer.state is EngineStatus.FAILED:
            return CallRefused(503, "the recognition engine does not start")
        return refusal

    def _unfit(self) -> list[str]:
        """Reasons why calls should go to another worker now: OPTIONS is 503 by them, and `readyz` names them."""
        reasons = []
        if (refusal := self.refusal()) is not None:
            reasons.append(refusal.reason)
        if self.sip is not None and self.sip.full:
            reasons.append(f"all {self.settings.sip.max_calls} SIP calls are taken (sip.max_calls)")
        for trouble in (self.calls.trouble, self.recognizer.trouble):
            if trouble is not None and trouble not in reasons:
                reasons.append(trouble)
        if self.recognizer.preloads and self.recognizer.state in (EngineStatus.IDLE, EngineStatus.WARMING_UP):
            reasons.append("the recognition engine is loading its model")
        return reasons

    def not_ready(self) -> list[str]:
        """Reasons why no call can be taken now; `hub.trouble` is one as well."""
        reasons = self._unfit()
        for registration in self.sip.registrations if self.sip is not None else ():
            if registration.state != "registered":
                what = " ".join(part for part in (str(registration.code or ""), registration.reason) if part)
                reasons.append(f"sip account {registration.account}: {registration.state} {what}".rstrip())
        return reasons

    def warnings(self) -> list[str]:
        """What does not keep a call from being taken now, and needs somebody to look at it."""
        lacking = self.recognizer.lacking
        found = [f"the engine is loaded and would not start again: {lacking}"] if lacking is not None else []
        if self.recognizer.runtime is not None:
            found += self.recognizer.runtime.warnings
        return [*found, *self._unknown_languages(), *self.jobs.warnings]

    def engine_status(self) -> Mapping[str, Any]:
        """For `/readyz`: the engine, its state, and where the last one that was ready computes."""
        runtime = self.recognizer.runtime
        return {
            "name": self.recognizer.engine,
            "state": self.recognizer.state.value,
            **(runtime.shown() if runtime is not None else {}),
        }

    def warn_of_languages(self) -> None:
        """Into the log, for each route whose calls will get no text."""
        for sentence in self._unknown_languages():
            log.warning(sentence)

    def _unknown_languages(self) -> list[str]:
        return [
            f"the calls of routes[{number}] will get no text: {why}"
            for number, route in enumerate(self.settings.routes)
            if (why := self.recognizer.unknown(route.language))
        ]

    def sip_status(self) -> list[Mapping[str, Any]]:
        return [asdict(registration) for registration in self.sip.registrations] if self.sip is not None else []

    def _bound_files(self) -> None:
        """Connections that nobody needs must not take the descriptors of calls."""
        raise_open_files()
        reports = self.settings.sip.max_calls if self.sip is not None and self.settings.rtp.rtcp else 0
        room = affordable(self.settings.max_calls + reports)
        if self.settings.audiosocket.enabled:
            room = room * 3 // 4
            self.audiosocket.lower(room)
        for limit in (self.http.guard.limit, self.listener.limit):
            limit.lower(room)
        if self.sip is not None:
            self.sip.admission.limit_connections(room)

    def _make_sip(self) -> SipEndpoint | None:
        if not self.settings.sip.enabled:
            return None
        try:
            from sip.pjsip.endpoint import SipEndpoint
        except ImportError as error:
            from sip.errors import NO_PJSUA2

            how = "set sip.enabled = false (MEDIAWORKER_SIP__ENABLED=false) for a worker without SIP"
            raise StartError(f"{NO_PJSUA2}; or {how} ({error})") from None
        from mediaworker.ingress.sip.calls import SipIngress

        handler = SipIngress(self.calls, lambda: self.settings, self.refusal)
        return SipEndpoint(
            self.settings,
            handler,
            self.detector,
            ready=lambda: not self._unfit() and self.hub.trouble is None,
        )

    async def _start_sip(self, endpoint: SipEndpoint) -> None:
        from sip.errors import SipError

        try:
            await endpoint.start()
        except SipError as error:
            raise StartError(f"sip.port = {self.settings.sip.port}: {error}") from None

    def _stepped(self) -> None:
        self._throttle.release()
        self.audiosocket.release()

    def _sweep(self, now: float, turn: Shard) -> Iterator[None]:
        if self.sip is not None:
            yield from self.sip.receiver.sweep(now, turn)
        yield from self.listener.sweep(turn)
        self.audiosocket.sweep()

    def _calls_changed(self, count: int) -> None:
        self._keep_engine()
        self.media.wake()

    def _files_changed(self, count: int) -> None:
        self._keep_engine()

    def _keep_engine(self) -> None:
        self.recognizer.keep_alive(len(self.calls) > 0 or self.files.open_files > 0)

    def _engine_state(self, state: EngineStatus, why: str) -> None:
        detail = why if state is EngineStatus.FAILED else ""
        runtime = self.recognizer.runtime if state is EngineStatus.READY else None
        device = runtime.device if runtime is not None else ""
        self.hub.publish(None, 0, events.EngineState(state.value, self.recognizer.engine, detail, device))


async def _bind(section: str, port: int, server: MediaListener | HttpServer | AudioSocketListener) -> None:
    try:
        await server.start()
    except OSError as error:
        raise StartError(f"{section}.port = {port}: {error.strerror or error}") from None


def serve(settings: Settings, read: Callable[[], Settings]) -> int:
    """Run a worker until SIGTERM or SIGINT; a second signal cuts the drain short. Returns the exit code.

    SIGHUP takes over what `read` finds in the configuration by then, after the start if it came during it; when it
    means that the terminal has been closed, it ends the worker. Raises ConfigError, StartError.
    """
    logs.configure_worker(settings)
    at_terminal = sys.stdin is not None and sys.stdin.isatty()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        asked, hurried = asyncio.Event(), asyncio.Event()
        reloader: Reloader | None = None
        early = False

        def stop() -> None:
            (hurried if asked.is_set() else asked).set()

        def reload() -> None:
            nonlocal early
            if at_terminal and not _terminal():
                stop()
            elif reloader is not None:
                reloader.reload()
            else:
                early = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, reload)
        manager = ServiceManager()
        worker = Worker(settings)
        async with worker.running():
            reloader = Reloader(worker, read)
            manager.ready()
            log.info(
                "ready",
                http=worker.http.port,
                media=worker.listener.port,
                sip=worker.sip.port if worker.sip is not None else None,
                audiosocket=worker.audiosocket.port if settings.audiosocket.enabled else None,
                engine=worker.recognizer.engine,
            )
            worker.page_sessions.on_used = worker.show_page_link
            worker.show_page_link()
            if early:
                reloader.reload()
            await asked.wait()
            manager.stopping()
            drain, hurry = loop.create_task(worker.drain()), loop.create_task(hurried.wait())
            await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
            for task in (drain, hurry):
                task.cancel()
            for result in await asyncio.gather(drain, hurry, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("draining failed", exc_info=result)
        manager.close()

    uvloop.run(run())
    return 0


def _terminal() -> bool:
    """Whether the terminal that the process was started at is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
