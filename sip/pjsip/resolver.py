"""Names of hosts that PJSIP sends to, looked up beside the event loop: a Contact may be one, and PJSIP would wait.

PJSIP asks here for names only; requests to addresses do not come this way.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from config.addresses import Family, family_of
from config.log_rate_limit import LogRateLimit
from sip.pjsip.callbacks import report
from sip.pjsip.native import found, on_names

log = structlog.get_logger("sip")

getaddrinfo = socket.getaddrinfo
THREADS = 4
WAITING = 64
"""Names that are looked up at one time. While there are so many, no address is found for another one."""
ADDRESSES = 8
"""Addresses of one name that PJSIP gets, and tries in turn."""


class Resolver:
    """PJSIP's resolver, from now until `close`, which comes before PJSIP's end."""

    def __init__(self, families: Sequence[Family] = ("IP4", "IP6")) -> None:
        """`families`: addresses of others are not found; the first comes first."""
        self._families = tuple(families)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._once = LogRateLimit()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sip-names")
        self._callback = on_names(self._on_name)

    def close(self) -> None:
        """Stop every look-up, and find nothing from now on: PJSIP still asks for names while it ends."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_name(self, query: int, name: str, ipv6_only: bool) -> bool:
        """In PJSIP's frames. False: no address is found, so that what is to be sent there does not wait for ever."""
        if self._closed or len(self._tasks) >= WAITING:
            return False
        try:
            task = self._loop.create_task(self._answer(query, name, ipv6_only))
        except Exception:
            report("resolve")
            return False
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _answer(self, query: int, name: str, ipv6_only: bool) -> None:
        addresses: list[str] = []
        try:
            addresses = await self._look_up(name, ("IP6",) if ipv6_only else self._families)
            if not addresses and (held_back := self._once.due(name, self._loop.time())) is not None:
                log.info("the name of a SIP peer has no address", name=name, held_back=held_back)
        except Exception:
            report("resolve")
        found(query, addresses)

    async def _look_up(self, name: str, families: Sequence[Family]) -> list[str]:
        try:
            entries = await self._loop.run_in_executor(self._threads, getaddrinfo, name, None)
        except (OSError, UnicodeError):
            return []
        addresses = [each for each in dict.fromkeys(str(entry[4][0]) for entry in entries) if "%" not in each]
        return [each for family in families for each in addresses if family_of(each) == family][:ADDRESSES]
