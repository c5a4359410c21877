"""The checks of the network: whether the machines named in the configuration can be reached."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

from config import ConfigError, Settings
from config.certificates import client_context
from config.network.addresses import bracketed, parse_registrar, parse_tcp
from mediaworker.cli.checks.finding import Finding, failed, good, warning
from mediaworker.cli.terminal import trust

TIMEOUT_S = 3.0
NATS_PORT = 4222
MOST_BYTES = 65536
"""The most bytes that are read of a NATS server's first line."""


def registrars(settings: Settings) -> Iterator[Finding]:
    """Whether the host of each has an address. None is asked: a registrar may count strangers."""
    if not settings.sip.enabled:
        return
    for index, account in enumerate(settings.sip.accounts):
        for text in (account.registrar, *account.backups):
            key = f"sip.accounts[{index}]"
            try:
                socket.getaddrinfo(parse_registrar(text)[0], None, type=socket.SOCK_DGRAM)
            except (OSError, UnicodeError) as error:
                yield warning(key, f"{text}: {trust.reason(error)}")
            else:
                scheme = "" if text.lower().startswith(("sip:", "sips:")) else f", which means sip:{text}"
                yield good(key, f"{account.user} registers at {text}{scheme}")


def engine_servers(settings: Settings) -> Iterator[Finding]:
    """Check that each engine server listens."""
    for index, text in enumerate(settings.asr.servers):
        host, port = parse_tcp(text)
        try:
            socket.create_connection((host, port), TIMEOUT_S).close()
        except OSError as error:
            yield warning(f"asr.servers[{index}]", f"{text}: {trust.reason(error)}; calls wait for it")
        else:
            yield good(f"asr.servers[{index}]", f"{text} listens")


def nats(settings: Settings) -> Iterator[Finding]:
    """Check that each NATS server answers, has JetStream, and encrypts if the URL demands it."""
    for index, url in enumerate(settings.cluster.nats):
        key = f"cluster.nats[{index}]"
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or NATS_PORT
        place = f"{parts.scheme}://{bracketed(host)}:{port}"
        try:
            yield _nats(key, place, host, port, settings)
        except (OSError, ValueError, ConfigError) as error:
            why = str(error) if isinstance(error, ConfigError) else trust.reason(error)
            yield warning(key, f"{place}: {why}; the worker starts, and joins the cluster when it can")


def _nats(key: str, place: str, host: str, port: int, settings: Settings) -> Finding:
    """Check one NATS server. Raises OSError, ValueError, ConfigError."""
    cluster, secure = settings.cluster, place.startswith("tls:")
    with socket.create_connection((host, port), TIMEOUT_S) as plain:
        if secure and cluster.nats_tls_first:
            with client_context(cluster).wrap_socket(plain, server_hostname=host) as encrypted:
                info = _info(encrypted)
        else:
            info = _info(plain)
    if not info.get("jetstream"):
        return failed(key, f"{place} has no JetStream: start it with -js, or with jetstream in its configuration")
    if secure and not info.get("tls_required"):
        return failed(key, f"{place} does not encrypt, and the worker refuses it: give it a certificate")
    return good(key, f"{place} has JetStream, version {info.get('version', 'unknown')}")


def _info(connection: socket.socket | ssl.SSLSocket) -> dict[str, object]:
    """The INFO line that a NATS server sends first. Raises OSError, ValueError."""
    with connection.makefile("rb") as file:
        line = file.readline(MOST_BYTES)
    kind, _, body = line.partition(b" ")
    found = json.loads(body) if kind.upper() == b"INFO" else None
    if not isinstance(found, dict):
        raise ValueError("what answers is no NATS server")
    return found
