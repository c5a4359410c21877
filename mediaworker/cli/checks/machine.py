"""The checks of this machine: folders, ports, certificates, keys, packages and weights."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from config import ConfigError, Settings
from config.certificates import client_context
from config.listen import http_host, media_host
from config.network.addresses import bound_tcp, bound_udp, family_of
from mediaworker.access.tls import Certificate
from mediaworker.cli.checks.finding import Finding, failed, good, warning

GB = 1e9
LITTLE_GB = 1.0
"""The free space, in GB, below which a warning is given: events and uploads would soon fill the disk."""
SHORT_KEY = 16
"""The least number of characters of an API key. A shorter one can be guessed by a patient attacker."""
SOON_DAYS = 14


def data_dir(settings: Settings) -> Finding:
    """Check that the folder can be written to, has room, and is used by no other worker."""
    folder = Path(settings.data_dir).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        return failed("data_dir", f"{there} is a file, and the folder {folder} cannot be made")
    if not os.access(there, os.W_OK | os.X_OK):
        return failed("data_dir", f"this user may not write to {there}")
    if is_running(settings):
        return good("data_dir", f"a running worker uses {folder}")
    free_gb = shutil.disk_usage(there).free / GB
    if free_gb < LITTLE_GB:
        return warning("data_dir", f"{folder} has {free_gb:.1f} GB left on its disk")
    return good("data_dir", f"{folder}, {free_gb:.0f} GB free{'' if there == folder else ', will be made'}")


def is_running(settings: Settings) -> bool:
    """Whether a worker is using the folder now."""
    try:
        with (Path(settings.data_dir) / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def keys(settings: Settings) -> Iterator[Finding]:
    """Check whether there are API keys, and whether they are long enough."""
    known = settings.auth.api_keys
    if not known:
        yield good("auth.api_keys", "none: only programs of this machine and of the worker's user may connect")
        return
    if short := [key.name for key in known if len(key.key) < SHORT_KEY]:
        yield warning("auth.api_keys", f"shorter than {SHORT_KEY} characters: {', '.join(short)}")
    else:
        yield good("auth.api_keys", f"{len(known)}: {', '.join(key.name for key in known)}")


def ports(settings: Settings) -> Iterator[Finding]:
    """Check that each port is free, and that no two settings name the same one."""
    running, taken = is_running(settings), dict[tuple[str, int], str]()
    for key, kind, host, port in _ports(settings):
        other = taken.setdefault((kind, port), key) if port else key
        if other != key:
            yield failed(key, f"{port} is {other} too: give one of them another number")
            continue
        try:
            (bound_tcp(host, port) if kind == "tcp" else bound_udp(host, port, family_of(host))).close()
        except OSError as error:
            why = f"{kind.upper()} {host}:{port}: {(error.strerror or str(error)).lower()}"
            yield good(key, f"{kind.upper()} {host}:{port} is the running worker's") if running else failed(key, why)
        else:
            yield good(key, f"{kind.upper()} {host}:{port} is free")


def _ports(settings: Settings) -> Iterator[tuple[str, str, str, int]]:
    yield "http.port", "tcp", http_host(settings), settings.http.port
    yield "media.port", "tcp", media_host(settings), settings.media.port
    if settings.audiosocket.enabled:
        yield "audiosocket.port", "tcp", settings.audiosocket.host, settings.audiosocket.port
    if settings.sip.enabled:
        for transport in settings.sip.transports:
            yield "sip.port", transport, settings.sip.host, settings.sip.port
        if settings.sip.tls_cert:
            yield "sip.tls_port", "tcp", settings.sip.host, settings.sip.tls_port


def certificates(settings: Settings) -> Iterator[Finding]:
    """Check that each certificate can be used with its key, and for how long."""
    for section in ("http", "media", "sip", "cluster"):
        files = getattr(settings, section)
        if not files.tls_cert or section == "sip" and not settings.sip.enabled:
            continue
        key = f"{section}.tls_cert"
        try:
            expires_s = Certificate(section, files).expires_s
            if section == "cluster":
                client_context(settings.cluster)
        except ConfigError as error:
            yield failed(key, str(error))
            continue
        days = int((expires_s - time.time()) / 86400)
        if expires_s < time.time():
            yield failed(key, f"{files.tls_cert} has expired")
        elif days < SOON_DAYS:
            yield warning(key, f"{files.tls_cert} expires in {days} days")
        else:
            yield good(key, f"{files.tls_cert} is valid for {days} days")


def sip(settings: Settings) -> Iterator[Finding]:
    """Check that pjsua2 is installed, and that some peer may call."""
    if not settings.sip.enabled:
        return
    from sip.protocol.errors import NO_PJSUA2

    try:
        import pjsua2  # noqa: F401
    except ImportError as error:
        yield failed("sip", f"{NO_PJSUA2} ({error})")
        return
    if settings.sip.accounts or settings.sip.allow or settings.sip.users:
        yield good("sip", "pjsua2 is installed")
    else:
        yield warning("sip", "nobody but this machine may call: set sip.accounts, sip.allow or sip.users")


def engine(settings: Settings) -> Iterator[Finding]:
    """Check which engine will be used, and that its packages and weights are installed."""
    if settings.asr.servers:
        return
    from asr.engines import selection

    try:
        chosen = selection.select(settings.asr)
    except ConfigError as error:
        yield failed("asr.engine", str(error))
        return
    yield good("asr.engine", chosen.reason)
    if settings.asr.word_timestamps:
        timing = selection.select_words(settings.asr, chosen.engine)
        make = good if timing.languages else warning
        yield make("asr.aligner", timing.reason)
