"""Certificates in PEM files (loading, expiry, roles), and the TLS contexts between workers and engine servers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from config.errors import ConfigError
from config.sections.cluster import Cluster

EXTENDED_KEY_USAGE = bytes.fromhex("0603551d25")
"""The object identifier 2.5.29.37 in DER."""
NO_ROLE = (
    "cluster.tls_cert has no extended key usage, so that whoever has it can be a worker and an engine server; "
    "the next release refuses it: docs/how-to/engine-servers.md says how to make one"
)


def load(context: ssl.SSLContext, section: str, cert: str, private_key: str) -> float:
    """Load the certificate of these files into the context, and return the Unix time at which it expires.

    Without `private_key`, the key is expected in the certificate's file. Raises ConfigError, naming the section's key.
    """
    key, name = f"{section}.tls_cert", cert
    try:
        expires_s = expiry(Path(name).read_text(encoding="ascii", errors="replace"))
        if private_key:
            key, name = f"{section}.tls_key", private_key
            Path(name).read_bytes()
        # Without a password argument OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert, private_key or None, password="")
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


def system_authorities() -> ssl.SSLContext | None:
    """A client's context with the authorities of this machine, or of SSL_CERT_FILE and SSL_CERT_DIR; None if none."""
    paths = ssl.get_default_verify_paths()
    asked = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if not asked and not paths.cafile and not (paths.capath and any(Path(paths.capath).iterdir())):
        return None
    return ssl.create_default_context()


def load_authorities(context: ssl.SSLContext, key: str, name: str) -> None:
    """Trust the certificates of this file. Raises ConfigError, naming the key."""
    try:
        context.load_verify_locations(cafile=name)
    except ssl.SSLError:
        raise ConfigError(key, name, "no certificate in PEM form is in it") from None
    except OSError as error:
        raise ConfigError(key, name, f"cannot be read: {error.strerror or error}") from None


def expiry(pem: str) -> float:
    """Unix time at which the first certificate of a PEM file expires. Raises ValueError.

    The standard library shows the fields of a peer's certificate only, so this walks to them (RFC 5280 section 4.1):
    Certificate, tbsCertificate, past version, serial number, algorithm and issuer to the end of validity.
    """
    der = _first(pem)
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


def has_role(name: str) -> bool:
    """Whether the first certificate of a PEM file is limited to clients (workers) or servers (engine servers).

    OpenSSL refuses such a certificate in the other role (RFC 5280 section 4.2.1.12). Raises OSError, ValueError.
    """
    return EXTENDED_KEY_USAGE in _first(Path(name).read_text(encoding="ascii", errors="replace"))


def _first(pem: str) -> bytes:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in pem or end not in pem[pem.index(begin) :]:
        raise ValueError("no certificate in PEM form is in it")
    first = pem[pem.index(begin) :]
    return ssl.PEM_cert_to_DER_cert(first[: first.index(end) + len(end)])


def _header(der: bytes, at: int) -> tuple[int, int]:
    """The start and the length of the contents of the element at `at`."""
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


def server_context(settings: Cluster) -> ssl.SSLContext:
    """The listener's context: the handshake fails for clients without a certificate of `cluster.tls_ca`.

    Raises ConfigError.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(settings: Cluster) -> ssl.SSLContext:
    """The caller's context, which also checks the certificate against the host name. Raises ConfigError."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, settings)


def renew(context: ssl.SSLContext, settings: Cluster) -> None:
    """Load the present content of the files into a caller's context that is in use.

    Raises ConfigError, and then leaves the context unchanged.
    """
    client_context(settings)
    load(context, "cluster", settings.tls_cert, settings.tls_key)
    load_authorities(context, "cluster.tls_ca", settings.tls_ca)


def on_handshake(context: ssl.SSLContext, done: Callable[[], None]) -> None:
    """Call `done` whenever a handshake with this context has succeeded."""

    class Noting(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            done()

    context.sslobject_class = Noting


def _context(protocol: int, settings: Cluster) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load(context, "cluster", settings.tls_cert, settings.tls_key)
    load_authorities(context, "cluster.tls_ca", settings.tls_ca)
    return context
