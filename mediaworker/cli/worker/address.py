"""Where the worker of this machine is, by its configuration."""

from __future__ import annotations

import argparse

from config import Settings
from config.listen import http_host

SEEN_FROM_HERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")


def of_this_machine(settings: Settings) -> str:
    """The HTTP port of the worker that has these settings, as a URL without a path."""
    host = http_host(settings)
    host = SEEN_FROM_HERE.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if settings.http.tls_cert else 'http'}://{host}:{settings.http.port}"
