"""`mediaworker check`: find what would keep a worker with this configuration from working here, before it starts.

Looks at the configuration, data_dir, ports, certificates, keys, the engine and its weights, and asks registrars, engine
servers and NATS whether they are there. Nothing is changed.

Exit code: 0 nothing stands in the way (warnings may), 1 something does, 2 wrong arguments or configuration.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from config import ConfigError, Settings, load
from config.log.text import printable
from mediaworker.cli.checks.finding import Finding, Level, failed, good
from mediaworker.cli.terminal.output import FAILED, OK
from mediaworker.cli.terminal.parser import add_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--offline", action="store_true", help="ask no other machine")


def run(args: argparse.Namespace) -> int:
    worst = Level.GOOD
    for finding in findings(load(args.config), offline=args.offline):
        worst = max(worst, finding.level)
        print(printable(f"{finding.level.name.lower():7}  {finding.subject:15}  {finding.text}"), flush=True)
    return FAILED if worst is Level.FAILED else OK


def findings(settings: Settings, *, offline: bool = False) -> Iterator[Finding]:
    """The findings about these settings on this machine, in the order of a start."""
    from mediaworker.cli.checks import machine, network
    from mediaworker.service.reload import check

    try:
        check(settings)
        yield good("configuration", "it is complete")
    except ConfigError as error:
        yield failed("configuration", str(error))
    yield machine.data_dir(settings)
    yield from machine.keys(settings)
    yield from machine.ports(settings)
    yield from machine.certificates(settings)
    yield from machine.sip(settings)
    yield from machine.engine(settings)
    if not offline:
        yield from network.registrars(settings)
        yield from network.engine_servers(settings)
        yield from network.nats(settings)
