"""PJSIP's resolver of host names, in threads: a Contact may contain a name, and PJSIP itself would block the loop.

PJSIP uses it for names only, not for addresses. Names are resolved by RFC 3263 (`sip.pjsip.server_location`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog

from config.log.rate_limit import LogRateLimit
from config.network.addresses import Family, family_of
from sip.pjsip.callbacks import report
from sip.pjsip.native import NameQuery, found, on_names
from sip.pjsip.server_location import SipServer, locate

log = structlog.get_logger("sip")

getaddrinfo = socket.getaddrinfo
THREADS = 4
WAITING = 64
"""The most names that are resolved at a time. Further ones fail."""
ADDRESSES = 8
"""The most servers of one name that PJSIP gets, and tries in turn."""


class Resolver:
    """PJSIP's resolver, from its creation until `close`, which must precede PJSIP's end."""

    def __init__(
        self, families: Sequence[Family] = ("IP4", "IP6"), transports: Collection[str] = ("udp", "tcp")
    ) -> None:
        """`families`: the address families to resolve, the preferred one first. `transports`: the usable transports,
        which are read at each look-up."""
        self._families, self._transports = tuple(families), transports
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._once = LogRateLimit()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sip-names")
        self._callback = on_names(self._on_name)

    def close(self) -> None:
        """Cancel all look-ups, and fail further ones: PJSIP still resolves names while it ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_name(self, query: int, what: NameQuery) -> bool:
        """Start a look-up; called in PJSIP's frames. False makes it fail at once, so that no request waits for ever."""
        if self._closed or len(self._tasks) >= WAITING:
            return False
        try:
            task = self._loop.create_task(self._answer(query, what))
        except Exception:
            report("resolve")
            return False
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _answer(self, query: int, what: NameQuery) -> None:
        servers: tuple[SipServer, ...] = ()
        try:
            look_up = partial(self._look_up, ("IP6",) if what.ipv6_only else self._families)
            located = await locate(
                what.host,
                what.port,
                what.transport,
                transports=self._transports,
                look_up=look_up,
                executor=self._threads,
            )
            servers = located.servers[:ADDRESSES]
            if not servers and (held_back := self._once.due(what.host, self._loop.time())) is not None:
                log.info("the name of a SIP peer has no address", name=what.host, held_back=held_back)
        except Exception:
            report("resolve")
        found(query, servers)

    async def _look_up(self, families: Sequence[Family], name: str) -> list[str]:
        try:
            entries = await self._loop.run_in_executor(self._threads, getaddrinfo, name, None)
        except (OSError, UnicodeError):
            return []
        addresses = [each for each in dict.fromkeys(str(entry[4][0]) for entry in entries) if "%" not in each]
        return [each for family in families for each in addresses if family_of(each) == family][:ADDRESSES]
