"""`mediaworker health`: whether the worker on this machine answers; for container and service health checks."""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request
from typing import Any

from config import ConfigError, load
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import print_error
from mediaworker.cli.worker.address import add_config, of_this_machine

TIMEOUT_S = 5.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "health",
        help="exit 0 when the worker on this machine answers",
        epilog="Exit code: 0 it answers (with --ready: and takes calls), 1 it does not, 2 wrong arguments or "
        "configuration.",
    )
    add_config(parser)
    parser.add_argument("--ready", action="store_true", help="exit 0 only when it takes calls")


def run(args: argparse.Namespace) -> int:
    try:
        settings = load(args.config)
    except ConfigError as error:
        print_error(str(error))
        return 2
    url = f"{of_this_machine(settings)}/{'readyz' if args.ready else 'healthz'}"
    # The certificate is made out to the public name, and the address is this machine's own.
    context = trust.unverified()
    # Not by way of a proxy that the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=TIMEOUT_S):
            return 0
    except urllib.error.HTTPError as error:
        with error:
            said = trust.detail(error.read(100_000))
            print_error(f"{url}: {f'not ready: {said}' if args.ready and said else trust.refusal(error.code, said)}")
    except OSError as error:
        print_error(f"{url}: {trust.reason(error)}")
    return 1
