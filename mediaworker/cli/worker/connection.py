"""The connection of commands to a running worker: its address, the key, and the words for a failure.

Without a URL that is the worker of this machine. Its configuration provides the address and a key.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from websockets.exceptions import InvalidHandshake

from config import Settings, load
from config.listen import http_host
from config.sections.section import Scope
from mediaworker.cli.terminal import trust
from mediaworker.cli.terminal.output import OK, CommandError, UsageError
from mediaworker.cli.terminal.parser import add_config
from mediaworker.client import EVENTS, Client, ClientError

SEEN_FROM_HERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """The address of a worker, with the key and the TLS context for it."""

    url: str
    key: str
    tls: ssl.SSLContext


def add_arguments(parser: argparse.ArgumentParser, url: str = "--url") -> None:
    """Add the arguments for the connection. `url` names the argument of the address: an option, or positional."""
    where = "the worker's address, http(s)://HOST:PORT (default: the worker of this machine, by its configuration)"
    parser.add_argument(url, nargs=None if url.startswith("-") else "?", metavar="URL", help=where)
    key = "API key (default: $MEDIAWORKER_KEY; for the worker of this machine one of its configuration)"
    parser.add_argument("--key", default=os.environ.get("MEDIAWORKER_KEY", ""), help=key)
    add_config(parser)
    trust.add_arguments(parser)


def address(args: argparse.Namespace, *scopes: Scope) -> WorkerAddress:
    """The worker that the arguments name, for requests that need these scopes. Raises ConfigError, UsageError."""
    if args.url:
        url = args.url if "://" in args.url else f"http://{args.url}"
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in _SCHEMES:
            raise UsageError(f"{args.url}: expected http://HOST:PORT or https://HOST")
        return WorkerAddress(url, args.key, trust.context(args))
    settings = load(args.config)
    # The certificate is for the public name, but the address is this machine's own.
    tls = trust.context(args) if args.ca else trust.unverified()
    fitting = (key.key.reveal() for key in settings.auth.api_keys if {*scopes} <= {*key.scopes})
    return WorkerAddress(of_this_machine(settings), args.key or next(fitting, ""), tls)


def of_this_machine(settings: Settings) -> str:
    """The HTTP port of the worker that has these settings, as a URL without a path."""
    host = http_host(settings)
    host = SEEN_FROM_HERE.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if settings.http.tls_cert else 'http'}://{host}:{settings.http.port}"


def ask(args: argparse.Namespace, question: Callable[[Client], Awaitable[None]], *scopes: Scope) -> int:
    """Run `question` with a client of the worker. Raises ConfigError, CommandError."""
    where = address(args, *scopes)

    async def run() -> None:
        # `watch` also accepts the URL of the events, so a URL copied from there must work here.
        scheme, _, rest = where.url.removesuffix(EVENTS).partition("://")
        async with Client(f"{_SCHEMES[scheme]}://{rest}", key=where.key, tls=where.tls) as client:
            await question(client)

    with failures(where):
        asyncio.run(run())
    return OK


@contextlib.contextmanager
def failures(where: WorkerAddress) -> Iterator[None]:
    """Turn failures of the worker, or of the connection to it, into CommandError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except ClientError as error:
        raise CommandError(f"{where.url}: {refusal(error, where.key)}") from None
    except OSError as error:  # before ValueError: the error of a certificate is both
        raise CommandError(f"{where.url}: {trust.reason(error)}") from None
    except (InvalidHandshake, ValueError) as error:
        raise CommandError(f"{where.url}: {error}") from None


def refusal(error: ClientError, key: str) -> str:
    """A worker's refusal in words for the user, who gave this key or none."""
    if error.status == 401 and key:
        return f"the key is wrong: {error.detail or 'the worker does not know it'}"
    if error.status == 401 and "auth.api_keys" not in error.detail:
        return "the worker wants an API key: give --key, or set $MEDIAWORKER_KEY"
    if error.status == 403 and error.detail:
        return error.detail
    return trust.refusal(error.status, error.detail)
