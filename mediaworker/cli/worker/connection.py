"""What every command that asks a running worker has in common: where it is, the key, and what a failure is called.

Without a URL it is the worker of this machine, found by its configuration, which also has a key for it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from config import ConfigError, load
from config.sections.section import Scope
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import print_error
from mediaworker.cli.worker.address import add_config, of_this_machine
from mediaworker.client import EVENTS, Client, ClientError

OK, FAILED, USAGE = 0, 1, 2
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker is, and how it is spoken to."""

    url: str
    key: str
    tls: ssl.SSLContext


def add_arguments(parser: argparse.ArgumentParser, url: str = "--url") -> None:
    """`url` is the name of the argument: an option, or positional."""
    where = "the worker's address, http(s)://HOST:PORT (default: the worker of this machine, by its configuration)"
    if url.startswith("-"):
        parser.add_argument(url, metavar="URL", help=where)
    else:
        parser.add_argument(url, nargs="?", metavar="URL", help=where)
    key = "API key (default: $MEDIAWORKER_KEY; for the worker of this machine one of its configuration)"
    parser.add_argument("--key", default=os.environ.get("MEDIAWORKER_KEY", ""), help=key)
    add_config(parser)
    trust.add_arguments(parser)


def address(args: argparse.Namespace, *scopes: Scope) -> WorkerAddress:
    """Where the arguments point, for requests that need these scopes. Raises ConfigError, ValueError."""
    if args.url:
        url = args.url if "://" in args.url else f"http://{args.url}"
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in _SCHEMES:
            raise ValueError(f"{args.url}: expected http://HOST:PORT or https://HOST")
        return WorkerAddress(url, args.key, trust.context(args))
    settings = load(args.config)
    # The certificate is made out to the public name, and the address is this machine's own.
    tls = trust.context(args) if args.ca else trust.unverified()
    fitting = (key.key.reveal() for key in settings.auth.api_keys if {*scopes} <= {*key.scopes})
    return WorkerAddress(of_this_machine(settings), args.key or next(fitting, ""), tls)


def asked(args: argparse.Namespace, ask: Callable[[Client], Awaitable[int]], *scopes: Scope) -> int:
    """Run `ask` with a client of the worker, and return its exit code, or that of what went wrong, which is told."""
    try:
        where = address(args, *scopes)
    except (ConfigError, ValueError) as error:
        print_error(str(error))
        return USAGE

    async def run() -> int:
        # `watch` takes the URL of the events too: what is copied from there is right here.
        scheme, _, rest = where.url.removesuffix(EVENTS).partition("://")
        async with Client(f"{_SCHEMES[scheme]}://{rest}", key=where.key, tls=where.tls) as client:
            return await ask(client)

    try:
        return asyncio.run(run())
    except BrokenPipeError:
        raise
    except ClientError as error:
        print_error(f"{where.url}: {refusal(error, where.key)}")
    except LookupError as error:
        print_error(f"{where.url}: {error}")
    except OSError as error:
        print_error(f"{where.url}: {trust.reason(error)}")
    return FAILED


def refusal(error: ClientError, key: str) -> str:
    """What a worker's refusal means for the person who gave this key, or none."""
    if error.status == 401 and key:
        return f"the key is wrong: {error.detail or 'the worker does not know it'}"
    if error.status == 401 and "auth.api_keys" not in error.detail:
        return "the worker wants an API key: give --key, or set $MEDIAWORKER_KEY"
    if error.status == 403 and error.detail:
        return error.detail
    return trust.refusal(error.status, error.detail)
