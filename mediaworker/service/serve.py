"""The life of a serving process, worker or engine server: start, signals, reload, drain, systemd and traces."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import structlog
import uvloop

from asr import metrics as recognition
from asr.client.recognizer import Recognizer
from config import ConfigError, Settings
from config.metrics.registry import MetricsRegistry
from mediaworker.access import tls
from mediaworker.access.tls import Certificate
from mediaworker.errors import MediaworkerError
from mediaworker.ops import logs, process
from mediaworker.service.reload import Part, ReloadCounters, Reloader
from mediaworker.service.systemd import ServiceManager
from mediaworker.tracing.traces import Traces

if TYPE_CHECKING:
    from asr.network.relay import ServedEngines

LATE_S = 30.0
"""After this time the log names the parts that have not ended. After a drain all should end within a few seconds."""
log = structlog.get_logger()


class StartError(MediaworkerError):
    """The process cannot start; the message is one line for the person who starts it."""


class Service(ABC):
    """A service, created on the running loop. Use `async with service.running(): …`, and `drain` before leaving."""

    def __init__(self, settings: Settings, name: str) -> None:
        """Its traces have `name`. Raises ConfigError."""
        self.settings, self.metrics, self.traces = settings, MetricsRegistry(), open_traces(settings, name)
        self.started_s = time.time()
        self.reloads = ReloadCounters(last_s=self.started_s)

    def add_process_metrics(self, engines: Recognizer | ServedEngines, ready: Callable[[], bool]) -> None:
        """Add the metrics that both services have."""
        process.add_metrics(self.metrics, started_s=self.started_s, ready=ready, engine=lambda: engines.engine)
        tls.add_metrics(self.metrics, self.certificates)
        recognition.add_metrics(self.metrics, engines)
        self.reloads.add_metrics(self.metrics)
        if self.traces is not None:
            self.traces.add_metrics(self.metrics)

    def use(self, settings: Settings) -> None:
        """Keep the settings in force."""
        self.settings = settings

    @property
    @abstractmethod
    def certificates(self) -> Mapping[str, Certificate]:
        """The certificates of the listeners that speak TLS, by their section of the settings."""

    @property
    @abstractmethod
    def hosts(self) -> Mapping[str, str]:
        """The addresses to which the listeners of `http` and `media` were bound at the start."""

    @abstractmethod
    def running(self) -> AbstractAsyncContextManager[None]:
        """Listening on every port; everything is closed at the end. Raises StartError."""

    @abstractmethod
    def on_started(self) -> None:
        """Log that the service is running."""

    @abstractmethod
    async def drain(self) -> None:
        """Accept no new work, and end the work in progress within `shutdown_s`."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The parts that a reload changes, in this order."""


class Listening(Protocol):
    """A listening port of a service."""

    async def start(self) -> None:
        """Raises OSError."""


async def bind(key: str, value: object, port: Listening) -> None:
    """Start a port, which the settings name by this key and value. Raises StartError."""
    try:
        await port.start()
    except OSError as error:
        raise StartError(f"{key} = {value}: {error.strerror or error}") from None


def open_traces(settings: Settings, service: str) -> Traces | None:
    """The traces, or None unless `traces.url` is set. Raises ConfigError if the packages for tracing are missing."""
    if not settings.traces.url:
        return None
    try:
        from mediaworker.tracing.otlp import OtlpSender
    except ImportError as error:
        how = f"needs packages that are not installed: pip install 'mediaworker[tracing]' ({error})"
        raise ConfigError("traces.url", settings.traces.url, how) from None
    return Traces(OtlpSender(settings.traces.url, service, settings.http.port), settings.traces.share)


def serve(settings: Settings, read: Callable[[], Settings], make: Callable[[Settings], Service]) -> int:
    """Run a service until SIGTERM or SIGINT; a second signal cuts the drain short. Returns the exit code.

    SIGHUP reloads the configuration through `read`; one that arrives during the start is handled after it. If SIGHUP
    means that the terminal has been closed, it ends the service. Raises ConfigError, StartError.
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
        service = make(settings)
        async with service.running():
            reloader = Reloader(service.settings, service.parts, service.reloads, service.hosts, read)
            manager.ready()
            service.on_started()
            if early:
                reloader.reload()
            await asked.wait()
            manager.stopping()
            await _drain(service, hurried)
            late = loop.call_later(LATE_S, _log_what_runs)
        late.cancel()
        manager.close()

    uvloop.run(run())
    return 0


async def _drain(service: Service, hurried: asyncio.Event) -> None:
    """Drain the service until it has finished, or until a second signal sets `hurried`."""
    tasks = {asyncio.ensure_future(service.drain()), asyncio.ensure_future(hurried.wait())}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.error("draining failed", exc_info=result)


def _log_what_runs() -> None:
    """Log the tasks that still run and keep the process from ending."""
    running = {}
    for task in asyncio.all_tasks():
        if frames := task.get_stack(limit=1):
            running[task.get_name()] = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}"
    log.error("some parts do not end: kill the process, nothing is lost by that", running=running)


def _terminal() -> bool:
    """Whether the terminal from which the process was started still exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
