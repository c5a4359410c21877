"""Certificates of the listeners: one context each, which a reload gives a new certificate while connections go on.

PJSIP has contexts of its own; of its certificate this only knows whether it would do, and until when.
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
        """`context`: one that demands more than that of a port which anybody may call."""
        assert settings.tls_cert
        self._section = section
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context = context
        self.expires_s = 0.0
        """Unix time after which peers refuse it."""
        self.load(settings)

    def check(self, settings: Settings) -> None:
        """Whether the files that these settings name would do. Raises ConfigError."""
        self._check(getattr(settings, self._section))

    def use(self, settings: Settings) -> None:
        """As `load`, from the section that names its files. They are read again though their names are the same."""
        self.load(getattr(settings, self._section))

    def _check(self, settings: Listener) -> None:
        # Another context than the live one, which a key that does not fit would leave with half of the pair.
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._section, settings.tls_cert, settings.tls_key)

    def load(self, settings: Listener) -> None:
        """New connections get this certificate; those that are open keep theirs. Raises ConfigError."""
        self._check(settings)
        self.expires_s = load(self.context, self._section, settings.tls_cert, settings.tls_key)


def certificate(section: str, settings: Listener) -> Certificate | None:
    """None when the listener speaks plain HTTP."""
    return Certificate(section, settings) if settings.tls_cert else None


def add_metrics(metrics: MetricsRegistry, certificates: Mapping[str, Certificate]) -> None:
    """`certificates`: by the port that they belong to."""
    metrics.gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "Shows when the certificate of a listener expires.",
        lambda: {port: certificate.expires_s for port, certificate in certificates.items()},
        "port",
    )


def sip_certificate(settings: Sip) -> Certificate | None:
    """None when nobody can call over TLS. Raises ConfigError."""
    if not settings.enabled:
        return None
    if settings.tls_ca:
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "sip.tls_ca", settings.tls_ca)
    return Certificate("sip", settings) if settings.tls_cert else None
