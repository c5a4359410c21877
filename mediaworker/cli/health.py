"""`mediaworker health`: whether the worker on this machine answers; for container and service health checks.

Exit code: 0 it answers (with --ready: and takes calls), 1 it does not, 2 wrong arguments or configuration.
"""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request

from config import load
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import OK, CommandError
from mediaworker.cli.terminal.parser import add_config
from mediaworker.cli.worker.connection import of_this_machine

TIMEOUT_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--ready", action="store_true", help="exit 0 only when it takes calls")


def run(args: argparse.Namespace) -> int:
    url = f"{of_this_machine(load(args.config))}/{'readyz' if args.ready else 'healthz'}"
    # The certificate is for the public name, but the address is this machine's own.
    context = trust.unverified()
    # A proxy from the environment must not be used for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=TIMEOUT_S):
            return OK
    except urllib.error.HTTPError as error:
        with error:
            explanation = trust.detail(error.read(100_000))
        why = f"not ready: {explanation}" if args.ready and explanation else trust.refusal(error.code, explanation)
    except OSError as error:
        why = trust.reason(error)
    raise CommandError(f"{url}: {why}")
