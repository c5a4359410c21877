"""SIGHUP: the configuration is read again, and what may change while calls run is changed.

All of it or nothing: every part has checked its new settings before the first one takes them over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from asr.engines import selection as engines
from config import ConfigError, Settings
from config.listen import http_host, media_host, needs_credentials
from config.metrics.registry import MetricsRegistry
from config.reload import Reload, merge
from mediaworker.access.tls import Certificate, sip_certificate
from mediaworker.jobs import notifier
from mediaworker.ops import logs
from mediaworker.policy.alerts.watch import AlertWatch
from mediaworker.policy.redaction.call import Policy
from mediaworker.webhooks import events as event_webhooks

log = structlog.get_logger()


@dataclass(slots=True)
class ReloadCounters:
    """Plain totals for the metrics."""

    done: int = 0
    refused: int = 0
    last_ok: bool = True
    last_s: float = 0.0
    """Unix time at which the configuration in force was read."""

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counter(
            "config_reloads",
            "Counts reloads of the configuration by result.",
            lambda: {"done": self.done, "refused": self.refused},
            "result",
        )
        metrics.gauge(
            "config_last_reload_successful",
            "Is 0 after a reload of the configuration was refused.",
            lambda: self.last_ok,
        )
        metrics.gauge(
            "config_loaded_timestamp_seconds", "Shows when the configuration in force was read.", lambda: self.last_s
        )


@dataclass(frozen=True, slots=True)
class Part:
    """What a reload does to a part of a service.

    Attributes:
        use: takes over settings that `check` has passed.
        keys: the settings that it uses, as `section` or `section.key`: it takes them over when one of these has
            changed. Without any it does so at each reload, as a part must that reads files or keeps all settings.
        check: raises ConfigError where it could not take them over, and changes nothing.
    """

    use: Callable[[Settings], object]
    keys: tuple[str, ...] = ()
    check: Callable[[Settings], object] = lambda settings: None

    def uses(self, changed: Collection[str]) -> bool:
        return not self.keys or any(key == own or key.startswith(f"{own}.") for key in changed for own in self.keys)


class Reloader:
    """`settings` are in force, and `read` loads the configuration as the start did; it raises ConfigError.

    `hosts` are the addresses that the listeners of `http` and `media` took at the start.
    """

    def __init__(
        self,
        settings: Settings,
        parts: Sequence[Part],
        counters: ReloadCounters,
        hosts: Mapping[str, str],
        read: Callable[[], Settings],
    ) -> None:
        self.settings = settings
        self._parts, self._counters, self._hosts, self._read = parts, counters, hosts, read

    def reload(self) -> bool:
        """Whether it was done. A refusal is one line in the log, which names key and value."""
        try:
            self._apply(merge(self.settings, self._read()))
        except ConfigError as error:
            self._counters.refused += 1
            self._counters.last_ok = False
            log.error("configuration not reloaded: nothing has changed", problem=str(error))
            return False
        self._counters.done += 1
        self._counters.last_ok, self._counters.last_s = True, time.time()
        return True

    def _apply(self, merged: Reload) -> None:
        settings = merged.settings
        if missing := needs_credentials(self._hosts["http"], self._hosts["media"], settings):
            reason = f"needed until the next start, because {missing[0]} is not loopback"
            raise ConfigError("auth.api_keys", None, reason)
        for part in self._parts:
            part.check(settings)
        self.settings = settings
        for part in self._parts:
            if part.uses(merged.changed):
                part.use(settings)
        waiting = list(merged.waiting)
        for section, host in (("http", http_host(settings)), ("media", media_host(settings))):
            key = f"{section}.host"
            if key not in waiting and self._hosts[section] != host:  # An empty one stands for another address now.
                waiting.append(key)
        if waiting:
            log.warning("these keys need a restart", keys=waiting)
        log.info("configuration reloaded", changed=list(merged.changed))
        logs.configure_worker(settings)


def check(settings: Settings) -> None:
    """What only its part can judge, without making that part. Raises ConfigError."""
    if not settings.asr.servers:
        engines.check(settings.asr)
    notifier.check(settings)
    event_webhooks.check(settings)
    Policy(settings)
    AlertWatch(settings.alerts.file, tuple)
    for section, files in (("http", settings.http), ("media", settings.media)):
        if files.tls_cert:
            Certificate(section, files)
    sip_certificate(settings.sip)
