"""SIGHUP: the configuration is read again, and what may change while calls run is changed.

All of it or nothing: every part has looked at its new settings before the first one takes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from asr.engines import selection as engines
from config import ConfigError, Settings
from config.access_list import AccessList
from config.listen import http_host, media_host, needs_credentials
from config.reload import merge
from mediaworker.ingress.twilio import webhook
from mediaworker.jobs import notifier
from mediaworker.ops import logs
from mediaworker.ops.tls import Certificate, Listener, sip_certificate
from mediaworker.policy.alerts.watch import AlertWatch
from mediaworker.policy.redaction.call import Policy
from mediaworker.webhooks import events as event_webhooks

if TYPE_CHECKING:
    from mediaworker.worker import Worker

log = structlog.get_logger()


@dataclass(slots=True)
class ReloadCounters:
    """Plain totals for the metrics."""

    done: int = 0
    refused: int = 0
    last_ok: bool = True
    last_s: float = 0.0
    """Unix time at which the configuration in force was read."""


class Reloader:
    """`read` loads the configuration as the start did; it raises ConfigError."""

    def __init__(self, worker: Worker, read: Callable[[], Settings]) -> None:
        self._worker, self._read = worker, read

    def reload(self) -> bool:
        """Whether it was done. What is wrong is one line in the log, naming key and value."""
        counters = self._worker.reloads
        try:
            self._apply(self._read())
        except ConfigError as error:
            counters.refused += 1
            counters.last_ok = False
            log.error("configuration not reloaded: nothing has changed", problem=str(error))
            return False
        counters.done += 1
        counters.last_ok, counters.last_s = True, time.time()
        return True

    def _apply(self, wanted: Settings) -> None:
        worker = self._worker
        merged = merge(worker.settings, wanted)
        settings = merged.settings
        if missing := needs_credentials(worker.http.host, worker.listener.host, settings):
            reason = f"needed until the next start, because {missing[0]} is not loopback"
            raise ConfigError("auth.api_keys", None, reason)
        pairs = self._certificates(settings)
        for certificate, files in pairs:
            certificate.check(files)
        Policy(settings)
        AccessList(settings.audiosocket.allow, key="audiosocket.allow")
        if why := worker.recognizer.unknown(settings.asr.language):
            raise ConfigError("asr.language", settings.asr.language, why)
        # Last of the checks, because it is the first change.
        worker.twilio.use(settings)
        for certificate, files in pairs:
            certificate.load(files)
        if worker.sip is not None:
            worker.sip.renew_certificate()
            if "sip.users" in merged.changed:
                worker.sip.set_users(settings.sip)
        worker.calls.use(settings)
        worker.streams.use(settings)
        worker.asterisk.use(settings)
        worker.audiosocket.use(settings)
        worker.api.settings = worker.files.settings = worker.jobs.settings = settings
        worker.retention.settings = settings.retention
        if worker.sip is not None:
            worker.sip.allow(settings.sip.allow)
            worker.sip.control.max_streams = settings.siprec.max_streams
            worker.sip.control.ignore_mixed = settings.siprec.ignore_mixed
            worker.sip.trace(settings.log.sip_trace)
        worker.settings = settings
        worker.warn_of_languages()
        waiting = list(merged.waiting)
        for key, host, wanted_host in (
            ("http.host", worker.http.host, http_host(settings)),
            ("media.host", worker.listener.host, media_host(settings)),
        ):
            if key not in waiting and host != wanted_host:  # an empty one stands for another address now
                waiting.append(key)
        if waiting:
            log.warning("these keys need a restart", keys=waiting)
        log.info("configuration reloaded", changed=list(merged.changed))
        logs.configure_worker(settings)

    def _certificates(self, settings: Settings) -> list[tuple[Certificate, Listener]]:
        """The listeners that speak TLS, with their files: a file is read again though its name has not changed."""
        worker = self._worker
        all_: list[tuple[Certificate | None, Listener]] = [
            (worker.http.certificate, settings.http),
            (worker.listener.certificate, settings.media),
            (worker.sip_certificate, settings.sip),
        ]
        return [(certificate, files) for certificate, files in all_ if certificate is not None]


def check(settings: Settings) -> None:
    """What only its part can judge, without making that part. Raises ConfigError."""
    engines.check(settings.asr)
    webhook.parse_then(settings.twilio.then)
    notifier.check(settings)
    event_webhooks.check(settings)
    Policy(settings)
    AccessList(settings.audiosocket.allow, key="audiosocket.allow")
    AlertWatch(settings.alerts.file, tuple)
    for section, files in (("http", settings.http), ("media", settings.media)):
        if files.tls_cert:
            Certificate(section, files)
    sip_certificate(settings.sip)
