"""`mediaworker health`: whether the worker on this machine answers; for container and service health checks."""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request
from typing import Any

from config import ConfigError, load
from config.listen import http_host
from mediaworker.cli import trust
from mediaworker.cli.terminal import print_error

TIMEOUT_S = 5.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("health", help="exit 0 when the worker on this machine answers")
    parser.add_argument("--config", metavar="FILE", help="TOML file (default: ./mediaworker.toml when it is there)")
    parser.add_argument("--ready", action="store_true", help="exit 0 only when it takes calls")


def run(args: argparse.Namespace) -> int:
    try:
        settings = load(args.config)
    except ConfigError as error:
        print_error(str(error))
        return 2
    http, host = settings.http, http_host(settings)
    host = ANYWHERE.get(host, f"[{host}]" if ":" in host else host)
    scheme = "https" if http.tls_cert else "http"
    # The certificate is made out to the public name, and the address is this machine's own.
    context = trust.unverified() if http.tls_cert else None
    url = f"{scheme}://{host}:{http.port}/{'readyz' if args.ready else 'healthz'}"
    # Not by way of a proxy that the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=TIMEOUT_S):
            return 0
    except urllib.error.HTTPError as error:
        with error:
            print_error(f"{url}: {error.code} {error.read(1000).decode(errors='replace')}")
    except OSError as error:
        print_error(f"{url}: {error}")
    return 1
