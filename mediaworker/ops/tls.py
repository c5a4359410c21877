"""Certificates of the listeners: one context each, which a reload gives a new certificate while connections go on.

PJSIP has contexts of its own; of its certificate this only knows whether it would do, and until when.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from config import ConfigError
from config.settings import Http, Media, Sip

Listener = Http | Media | Sip


class Certificate:
    """A listener's certificate, from the files that its section names. Raises ConfigError, naming the key."""

    def __init__(self, section: str, settings: Listener) -> None:
        assert settings.tls_cert
        self._section = section
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.expires_s = 0.0
        """Unix time after which peers refuse it."""
        self.load(settings)

    def check(self, settings: Listener) -> float:
        """Whether these files would do; returns when the certificate expires. Raises ConfigError."""
        # Another context than the live one, which a key that does not fit would leave with half of the pair.
        return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._section, settings)

    def load(self, settings: Listener) -> None:
        """New connections get this certificate; those that are open keep theirs. Raises ConfigError."""
        self.check(settings)
        self.expires_s = _load(self.context, self._section, settings)


def authorities(settings: Sip) -> None:
    """Whether the file of `sip.tls_ca` would do. Raises ConfigError."""
    if settings.tls_ca:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=settings.tls_ca)
        except ssl.SSLError:
            raise ConfigError("sip.tls_ca", settings.tls_ca, "no certificate in PEM form is in it") from None
        except OSError as error:
            raise ConfigError("sip.tls_ca", settings.tls_ca, f"cannot be read: {error.strerror or error}") from None


def certificate(section: str, settings: Listener) -> Certificate | None:
    """None when the listener speaks plain HTTP."""
    return Certificate(section, settings) if settings.tls_cert else None


def sip_certificate(settings: Sip) -> Certificate | None:
    """None when nobody can call over TLS. Raises ConfigError."""
    if not settings.enabled:
        return None
    authorities(settings)
    return Certificate("sip", settings) if settings.tls_cert else None


def _load(context: ssl.SSLContext, section: str, settings: Listener) -> float:
    key, name = f"{section}.tls_cert", settings.tls_cert
    try:
        expires_s = expiry(Path(name).read_text(encoding="ascii", errors="replace"))
        if settings.tls_key:
            key, name = f"{section}.tls_key", settings.tls_key
            Path(name).read_bytes()
        # Without a password of its own OpenSSL would ask for one at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None, password="")
    except ssl.SSLError as error:
        reason = {
            "KEY_VALUES_MISMATCH": "the key is another certificate's",
            "NO_START_LINE": "no private key in PEM form is in it",
            "BAD_DECRYPT": "the key is encrypted",
            "BAD_PASSWORD_READ": "the key is encrypted",
        }.get(error.reason or "", error.reason or "no private key in PEM form is in it")
        raise ConfigError(key, name, reason if " " in reason else reason.lower().replace("_", " ")) from None
    except OSError as error:
        raise ConfigError(key, name, f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(key, name, str(error)) from None
    return expires_s


def expiry(pem: str) -> float:
    """Unix time at which the first certificate of a PEM file expires. Raises ValueError.

    The standard library shows the fields of a peer's certificate only, so this walks to them (RFC 5280 section 4.1):
    Certificate, tbsCertificate, past version, serial number, algorithm and issuer to the end of validity.
    """
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in pem or end not in pem[pem.index(begin) :]:
        raise ValueError("no certificate in PEM form is in it")
    first = pem[pem.index(begin) :]
    der = ssl.PEM_cert_to_DER_cert(first[: first.index(end) + len(end)])
    try:
        at = _enter(der, _enter(der, 0, 0x30), 0x30)
        if der[at] == 0xA0:
            at = _skip(der, at)
        for _ in range(3):
            at = _skip(der, at)
        at = _skip(der, _enter(der, at, 0x30))
        kind = der[at]
        start, length = _header(der, at)
        text = der[start : start + length].decode("ascii")
        # UTCTime has two digits for the year, and 50 is 1950; from 2050 on it is GeneralizedTime.
        year = (("19" if text[:2] >= "50" else "20") + text) if kind == 0x17 else text
        return datetime.strptime(year, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError):
        raise ValueError("it is not an X.509 certificate") from None


def _header(der: bytes, at: int) -> tuple[int, int]:
    """Where the contents of the element at `at` begin, and how long they are."""
    length = der[at + 1]
    if length < 0x80:
        return at + 2, length
    size = length & 0x7F
    return at + 2 + size, int.from_bytes(der[at + 2 : at + 2 + size], "big")


def _enter(der: bytes, at: int, tag: int) -> int:
    if der[at] != tag:
        raise ValueError("another element")
    return _header(der, at)[0]


def _skip(der: bytes, at: int) -> int:
    start, length = _header(der, at)
    return start + length
