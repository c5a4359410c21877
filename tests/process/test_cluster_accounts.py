"""Who holds an account, at a real NATS server: of several workers that want it at once, one has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from config.load import parse
from lab.network.nats_servers import NatsServer, nats
from lab.patience import wait_for
from mediaworker.cluster.accounts import ClusterAccounts
from mediaworker.cluster.connection import NatsConnection

ACCOUNTS = 20


@dataclass
class Account:
    """What a registered account is asked for. It takes its registration back at once."""

    address: str
    name: str = ""
    registered: int = 0
    """How often it has been told to register since it stood by."""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def hold(self) -> None:
        self.registered += 1

    def stand_by(self, reason: str) -> bool:
        was, self.registered = self.registered > 0, 0
        self.left.set()
        return was


@dataclass
class Member:
    own: str
    accounts: ClusterAccounts
    gone: list[str] = field(default_factory=list)
    """Who is gone, as this one sees it."""

    async def renew(self) -> None:
        await self.accounts.read()
        await self.accounts.settle(self.own, self.gone)

    @property
    def held(self) -> dict[str, int]:
        accounts = cast(list[Account], self.accounts.accounts)
        return {each.address: each.registered for each in accounts if each.registered}


@asynccontextmanager
async def members(server: NatsServer, *names: str) -> AsyncIterator[list[Member]]:
    settings = parse({"cluster": {"nats": [server.url], "replicas": 1}}).cluster
    connections, found = [], []
    for name in names:
        ready = asyncio.Event()

        async def on_ready(ready: asyncio.Event = ready) -> None:
            ready.set()

        connection = NatsConnection(settings, worker=name, on_ready=on_ready)
        connection.start()
        await wait_for(ready.wait(), 10)
        own = [Account(f"user {number} ü/*@pbx:0") for number in range(ACCOUNTS)]
        accounts = ClusterAccounts(connection, cast(Any, own))
        connections.append(connection)
        found.append(Member(name, accounts))
    try:
        yield found
    finally:
        for connection in connections:
            await connection.stop()


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with nats(tmp_path) as (only,):
        yield only


async def test_of_workers_that_want_an_account_at_once_one_has_it(server: NatsServer) -> None:
    async with members(server, "a", "b", "c") as each:
        for _ in range(3):
            await asyncio.gather(*(member.renew() for member in each))
            held = [address for member in each for address in member.held]
            assert len(held) == len(set(held)) == ACCOUNTS
        a, b, c = each
        await asyncio.gather(a.accounts.release(), b.renew(), c.renew())
        await asyncio.gather(a.renew(), b.renew(), c.renew())
        assert not a.held and sorted([*b.held, *c.held]) == sorted(held)
        c.gone = ["b"]
        await asyncio.gather(a.renew(), c.renew())
        assert len(c.held) == ACCOUNTS and not a.held


async def test_who_has_lost_an_account_makes_its_holder_register_once_more(server: NatsServer) -> None:
    async with members(server, "a", "b") as (a, b):
        await a.renew()
        assert set(a.held.values()) == {1}
        b.gone = ["a"]
        await b.renew()
        assert len(a.held) == len(b.held) == ACCOUNTS, "a cannot know yet"
        await a.renew()
        assert not a.held and set(b.held.values()) == {1}
        await b.renew()
        assert set(b.held.values()) == {2}
        for member in (a, b, a, b):
            await member.renew()
        assert not a.held and set(b.held.values()) == {2}, "once"
