"""`WS /asterisk/media`: it admits WebSocket channels of Asterisk and creates their sessions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from functools import partial

from config import Settings
from config.metrics.registry import MetricsRegistry
from mediaworker.access.auth_failures import AuthFailures
from mediaworker.calls.registry import CallRegistry
from mediaworker.ingress.asterisk.calls import AsteriskCalls
from mediaworker.ingress.asterisk.session import AsteriskCounters, AsteriskSession
from mediaworker.ingress.interfaces import SessionFactory, Upgrade
from mediaworker.ingress.upgrade_admission import MediaIngress

MEDIA = "/asterisk/media"


class AsteriskIngress(MediaIngress[AsteriskCounters]):
    """The ingress for Asterisk's WebSocket channels; implements `interfaces.MediaEndpoint`."""

    subprotocols: tuple[str, ...] = ("media",)
    new_counters = AsteriskCounters
    refused_event = "channel of Asterisk's refused"
    channels = MediaIngress.sessions

    def __init__(self, settings: Settings, registry: CallRegistry, failures: AuthFailures | None = None) -> None:
        super().__init__(settings, registry, failures)
        self.calls = AsteriskCalls(registry)

    def add_metrics(self, metrics: MetricsRegistry) -> None:
        metrics.counters("asterisk", self.counters)
        metrics.gauge(
            "asterisk_channels", "Shows how many connections to /asterisk/media are open.", lambda: self.channels
        )

    def admit(self, upgrade: Upgrade) -> SessionFactory:
        """Check an upgrade, and return what opens its session. Raises CallRefused with 401, 403 or 503."""
        headers, challenge = bearing(upgrade.headers), 'Basic realm="mediaworker"'
        access = self.check_key(upgrade, headers=headers, challenge=challenge)
        self.check_room(upgrade)
        return self.opening(upgrade, partial(AsteriskSession, self._settings, access.name, self.calls))


def bearing(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers with basic authentication replaced by a bearer key: the password is the key.

    Asterisk's websocket_client.conf only supports user name and password; the user name may be anything.
    """
    return [
        (name, f"Bearer {_password(value)}" if name.lower() == "authorization" and _is_basic(value) else value)
        for name, value in headers
    ]


def _is_basic(value: str) -> bool:
    return value.strip().partition(" ")[0].lower() == "basic"


def _password(value: str) -> str:
    """The password of basic authentication (RFC 7617); empty, which is no valid key, if it is malformed."""
    try:
        text = base64.b64decode(value.strip().partition(" ")[2].strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text.partition(":")[2]
