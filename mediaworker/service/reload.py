"""The reload at SIGHUP: the configuration is read again, and every setting that may change during calls is applied.

A reload is all or nothing: every part checks its new settings before the first part applies them.
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
    """The numbers of reloads, for the metrics."""

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
    """A part of a service, as a reload sees it.

    Attributes:
        use: applies settings that `check` has accepted.
        keys: the settings that the part uses, as `section` or `section.key`; `use` is called when one of them has
            changed. Without keys it is called at each reload, for parts that read files or keep all settings.
        check: raises ConfigError if the settings could not be applied, and changes nothing.
    """

    use: Callable[[Settings], object]
    keys: tuple[str, ...] = ()
    check: Callable[[Settings], object] = lambda settings: None

    def uses(self, changed: Collection[str]) -> bool:
        return not self.keys or any(key == own or key.startswith(f"{own}.") for key in changed for own in self.keys)


class Reloader:
    """Reloads the configuration of a running service.

    `settings` are those in force. `read` loads the configuration as at the start, and raises ConfigError. `hosts` are
    the addresses to which the listeners of `http` and `media` were bound at the start.
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
        """Reload, and return whether that succeeded. A refusal is one log line, which names key and value."""
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
            if key not in waiting and self._hosts[section] != host:  # an empty host means another address now
                waiting.append(key)
        if waiting:
            log.warning("these keys need a restart", keys=waiting)
        log.info("configuration reloaded", changed=list(merged.changed))
        logs.configure_worker(settings)


def check(settings: Settings) -> None:
    """Check the settings that only their parts can judge, without building these parts. Raises ConfigError."""
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
