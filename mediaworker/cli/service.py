"""The process that `mediaworker serve` is: a worker, the signals that end or reload it, and systemd."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import structlog
import uvloop

from config import Settings
from mediaworker.http.resources import page
from mediaworker.ops import logs
from mediaworker.ops.reload import Reloader
from mediaworker.ops.systemd import ServiceManager
from mediaworker.worker import Worker

log = structlog.get_logger()


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
            hosts = {"http": worker.http.host, "media": worker.listener.host}
            reloader = Reloader(worker, worker.reloads, hosts, read)
            manager.ready()
            log.info(
                "ready",
                http=worker.http.port,
                media=worker.listener.port,
                sip=worker.sip.port if worker.sip is not None else None,
                audiosocket=worker.audiosocket.port if settings.audiosocket.enabled else None,
                engine=worker.recognizer.engine,
            )
            worker.page_sessions.on_used = lambda: _show_page_link(worker)
            _show_page_link(worker)
            if early:
                reloader.reload()
            await asked.wait()
            manager.stopping()
            await _drain(worker, hurried)
        manager.close()

    uvloop.run(run())
    return 0


async def _drain(worker: Worker, hurried: asyncio.Event) -> None:
    """Until the worker has ended its calls, or somebody is in a hurry."""
    tasks = {asyncio.ensure_future(worker.drain()), asyncio.ensure_future(hurried.wait())}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.error("draining failed", exc_info=result)


def _show_page_link(worker: Worker) -> None:
    """Into the log, as long as there are no API keys to open the page with."""
    if worker.settings.auth.api_keys:
        return
    scheme = "https" if worker.http.certificate is not None else "http"
    host = f"[{worker.http.host}]" if ":" in worker.http.host else worker.http.host
    link = f"{scheme}://{host}:{worker.http.port}/?{page.TOKEN}={worker.page_sessions.token}"
    log.info("no API keys are configured: this link opens the page once", page=link)


def _terminal() -> bool:
    """Whether the terminal that the process was started at is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
