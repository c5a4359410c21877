"""The inference processes of an engine server: several, their renewal, one that hangs, and a connection that is cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from asr.client.recognizer import EngineStatus
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, Limit, words
from lab.engine.recognizer import PROMPT, Client, client, codes
from lab.patience import seconds, until
from lab.worker.engine_server_clients import finals, ready, say
from lab.worker.engine_servers import Server, engine_server, shared

__all__ = ["limit", "limited"]

BEFORE, AFTER = "[asr]\nurl_timeout_s = 20\n", "[asr]\nurl_timeout_s = 21\n"
WORDS = " ".join(words(codes(PROMPT)))


@contextlib.contextmanager
def configured(folder: Path, limited: Limit, **environ: str) -> Iterator[tuple[Server, Path]]:
    """A server with a configuration file, a change of which renews its processes."""
    file = folder / "engine.toml"
    file.write_text(BEFORE)
    more = {**LISTENER, "CONFIG": str(file), **environ}
    with engine_server(folder, limited.environ, **more) as server:
        yield server, file


@contextlib.asynccontextmanager
async def connected(server: Server | str, connections: int = 1) -> AsyncIterator[Client]:
    async with client(shared(server)) as c:
        c.recognizer.keep_alive(True)
        await c.until(lambda: ready(c) == connections)
        yield c


def renewed(server: Server) -> bool:
    return "inference processes renewed" in server.log.read_text()


@pytest.mark.parametrize("processes", [1, 2])
async def test_processes_are_renewed_while_people_talk_and_no_word_is_lost(
    processes: int, tmp_path: Path, limited: Limit
) -> None:
    with configured(tmp_path, limited, ASR__PROCESSES=str(processes)) as (server, file):
        async with connected(server, processes) as c:
            before, names = set(server.children()), list[str]()
            file.write_text(AFTER)
            server.signal(signal.SIGHUP)
            while not renewed(server):
                names += (new := [say(c, leg, len(names)) for leg in "abcd"])
                await finals(c, new)
                assert c.recognizer.state is EngineStatus.READY or processes == 1
            await c.until(lambda: ready(c) == processes)
            names += [say(c, leg, len(names)) for leg in "abcd"]
            assert await finals(c, names) == [WORDS] * len(names)
            await c.until(lambda: len(server.children()) == processes)
            assert not before & set(server.children())
            counters = c.recognizer.counters
            assert (counters.crashes, counters.errors) == (0, 0)


async def test_what_is_under_way_when_the_only_process_is_replaced_is_sent_to_its_successor(
    tmp_path: Path, limited: Limit, limit: Limit
) -> None:
    with configured(tmp_path, limited) as (server, file):
        async with connected(server) as c:
            limit.set(0)
            names = [say(c, leg, 1) for leg in "abc"]
            await c.until(lambda: server.children() == [limit.holder()])
            file.write_text(AFTER)
            server.signal(signal.SIGHUP)
            await c.until(lambda: renewed(server))
            limit.lift()
            assert await finals(c, names) == [WORDS] * 3
            assert c.recognizer.counters.crashes == 0


async def test_a_worker_has_a_connection_to_each_process_of_a_server(tmp_path: Path, limited: Limit) -> None:
    with configured(tmp_path, limited, ASR__PROCESSES="2") as (server, _):
        async with connected(server, 2) as c:
            first, second = c.recognizer.servers
            assert (first.name, second.name) == (f"127.0.0.1:{server.port}", f"127.0.0.1:{server.port}/1")
            names = [say(c, leg, 1) for leg in "abcd"]
            assert [each.user.legs for each in c.recognizer.servers] == [2, 2]
            assert await finals(c, names) == [WORDS] * 4
            until(lambda: server.metric("mediaworker_engine_server_legs") == 4)
            assert server.metric("mediaworker_engine_server_workers") == 1
            victim = server.children()[0]
            names = [say(c, leg, 2) for leg in "abcd"]
            os.kill(victim, signal.SIGKILL)
            assert await finals(c, names) == [WORDS] * 4
            await c.until(lambda: ready(c) == 2 and c.recognizer.counters.crashes == 1)
            assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY], "there was one all the time"


async def test_an_engine_that_hangs_is_killed_while_its_worker_stays_connected(tmp_path: Path, limited: Limit) -> None:
    """The parent goes on answering pings, and says what the engine was working on."""
    with configured(tmp_path, limited, ASR__HANG_S=f"{seconds(8)}") as (server, _):
        async with client(shared(server, timeout_s=seconds(3.0))) as c:
            c.recognizer.keep_alive(True)
            await c.until(lambda: ready(c) == 1)
            (child,) = server.children()
            os.kill(child, signal.SIGSTOP)
            name = say(c, "a", 1)
            await c.until(lambda: c.recognizer.counters.crashes == 1)
            assert "the inference process did not answer" in c.recognizer.servers[0].last_end
            assert c.recognizer.counters.hangs == 0, "the server itself did"
            assert await finals(c, [name]) == [WORDS]
            assert server.metric("mediaworker_asr_hangs_total") == 1


async def test_a_connection_that_is_cut_blames_nobody(
    tmp_path: Path, limited: Limit, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: what the engine was working on is not what has cut it."""
    made, connect = list[asyncio.StreamWriter](), asyncio.open_connection

    async def noted(*arguments: Any, **named: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect(*arguments, **named)
        made.append(writer)
        return reader, writer

    with configured(tmp_path, limited) as (server, _):
        monkeypatch.setattr(asyncio, "open_connection", noted)
        async with connected(server) as c:
            limit.set(0)
            name = say(c, "a", 1)
            for cut in range(1, 6):
                await c.until(lambda: server.metric("mediaworker_asr_open_utterances") == 1)
                made[-1].transport.abort()
                await c.until(lambda cut=cut: c.recognizer.counters.crashes == cut)
                await c.until(lambda: ready(c) == 1)
            limit.lift()
            assert await finals(c, [name]) == [WORDS]
            assert c.recognizer.counters.errors == 0
