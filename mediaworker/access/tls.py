"""The TLS certificates of the listeners: one context each, which a reload gives a new certificate for new connections.

PJSIP builds its own contexts. For SIP this module only checks the certificate and reads its expiry.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from config.certificates import load, load_authorities
from config.metrics.registry import MetricsRegistry
from config.settings import Cluster, Http, Media, Settings, Sip

Listener = Http | Media | Sip | Cluster


class Certificate:
    """A listener's certificate, from the files that its section names. Raises ConfigError, naming the key."""

    def __init__(self, section: str, settings: Listener, context: ssl.SSLContext | None = None) -> None:
        """`context`: a stricter one than the default, which accepts any client."""
        assert settings.tls_cert
        self._section = section
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context = context
        self.expires_s = 0.0
        """The Unix time at which the certificate expires."""
        self.load(settings)

    def check(self, settings: Settings) -> None:
        """Check that the files named by these settings can be used. Raises ConfigError."""
        self._check(getattr(settings, self._section))

    def use(self, settings: Settings) -> None:
        """Load the files that these settings name, again even if the names have not changed. Raises ConfigError."""
        self.load(getattr(settings, self._section))

    def _check(self, settings: Listener) -> None:
        # Not the live context: a key that does not match would leave it with the new certificate and the old key.
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._section, settings.tls_cert, settings.tls_key)

    def load(self, settings: Listener) -> None:
        """Load a certificate for new connections; open ones keep theirs. Raises ConfigError."""
        self._check(settings)
        self.expires_s = load(self.context, self._section, settings.tls_cert, settings.tls_key)


def certificate(section: str, settings: Listener) -> Certificate | None:
    """The listener's certificate, or None if it uses plain HTTP."""
    return Certificate(section, settings) if settings.tls_cert else None


def add_metrics(metrics: MetricsRegistry, certificates: Mapping[str, Certificate]) -> None:
    """Register the expiry gauge. `certificates` are keyed by their port."""
    metrics.gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "Shows when the certificate of a listener expires.",
        lambda: {port: certificate.expires_s for port, certificate in certificates.items()},
        "port",
    )


def sip_certificate(settings: Sip) -> Certificate | None:
    """The certificate of SIP over TLS, or None if that is off. Raises ConfigError."""
    if not settings.enabled:
        return None
    if settings.tls_ca:
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "sip.tls_ca", settings.tls_ca)
    return Certificate("sip", settings) if settings.tls_cert else None
