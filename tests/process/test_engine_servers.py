"""Engine servers that workers share, as real processes: killed, stopped, drained, and what workers hear of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from asr.client.engine_server import EngineServer
from asr.client.recognizer import EngineStatus, Utterance
from lab.deploy.metrics import families
from lab.engine.limits import limit, limited
from lab.engine.listener import LISTENER, LISTENER_PATH, Limit, words
from lab.engine.recognizer import PROMPT, Client, client, codes
from lab.patience import seconds, until
from lab.worker.engine_server_clients import finals, ready, say
from lab.worker.engine_servers import Server, engine_server, shared
from lab.worker.peers import TINY

__all__ = ["limit", "limited"]

AUDIO = codes(PROMPT)
WORDS = " ".join(words(AUDIO))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, limited: Limit) -> Iterator[tuple[Server, Server]]:
    folder, environ = tmp_path_factory.mktemp("servers"), limited.environ
    with engine_server(folder / "one", environ, **LISTENER) as one:
        with engine_server(folder / "two", environ, **LISTENER) as two:
            yield one, two


@pytest.fixture
def two(pair: tuple[Server, Server]) -> tuple[Server, Server]:
    """Both running, whatever the test before has done to them."""
    for server in pair:
        if server.process.poll() is not None:
            server.start_again()
        server.signal(signal.SIGCONT)
        server.wait_until_up()
    return pair


@asynccontextmanager
async def connected(*servers: Server, clients: int = 1, timeout_s: float = 10.0) -> AsyncIterator[list[Client]]:
    """Workers that are connected to all of the servers."""
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(client(shared(*servers, timeout_s=seconds(timeout_s))))
            for _ in range(clients)
        ]
        for c in made:
            c.recognizer.keep_alive(True)
            await c.until(lambda c=c: ready(c) == len(servers))
        yield made


def home(c: Client, name: str) -> EngineServer | None:
    return next((server for server in c.recognizer.servers if name in server.user.utterances), None)


def of(c: Client, server: Server) -> EngineServer:
    return next(each for each in c.recognizer.servers if each.name.endswith(f":{server.port}"))


async def test_words_through_servers_are_those_of_a_local_engine(two: tuple[Server, Server]) -> None:
    async with connected(*two, clients=2) as (a, b):
        assert a.recognizer.engine == "listener" and a.recognizer.languages == ("en", "de")
        names = [say(a, leg, 1) for leg in "wxyz"]
        assert [sum(home(a, name) is server for name in names) for server in a.recognizer.servers] == [2, 2]
        assert await finals(a, names) == [WORDS] * 4
        # The other worker knows none of these legs, but how many there are.
        await b.until(lambda: [server.user.all_legs for server in b.recognizer.servers] == [2, 2])
        others = [say(b, leg, 1) for leg in "wx"]
        assert await finals(b, others) == [WORDS] * 2
        until(lambda: [server.metric("mediaworker_engine_server_legs") for server in two] == [3, 3])
        for leg in "wxyz":
            a.recognizer.release(leg)
        await b.until(lambda: [server.user.all_legs for server in b.recognizer.servers] == [1, 1])
        assert [server.metric("mediaworker_engine_server_workers") for server in two] == [2, 2]
    until(lambda: [server.metric("mediaworker_engine_server_workers") for server in two] == [0, 0])


def test_metrics_are_those_of_the_documentation(two: tuple[Server, Server]) -> None:
    shown = two[0].get("/metrics")
    names = [name for name in families() if name.startswith("mediaworker_engine_server_")]
    assert len(names) > 5 and all(f"\n{name} " in shown for name in names)


def test_a_server_is_ready_when_its_engine_is_before_anybody_has_asked(tmp_path: Path) -> None:
    """Otherwise the last of several that are restarted one by one would leave nobody with a loaded engine."""
    with engine_server(tmp_path, LISTENER_PATH, **LISTENER) as server:
        shown = until(lambda: (shown := server.get("/readyz")).get("status") == "ready" and shown)
        assert shown["workers"] == 0 and shown["engine"]["state"] == "ready"
        assert server.children()


async def test_partials_speculative_finals_and_speech_that_goes_on(two: tuple[Server, Server]) -> None:
    async with connected(two[0]) as (c,):
        name, half = "leg/1", len(AUDIO) // 2
        say(c, "leg", 1, AUDIO[:half], final=False)
        c.recognizer.partial(name, 1)
        await c.until(lambda: c.heard)
        c.recognizer.final(name, 2, commit=False)
        await c.until(lambda: c.finals(name))
        assert c.finals(name)[0].text == " ".join(words(AUDIO[:half]))
        c.recognizer.append(name, AUDIO[half:])
        c.recognizer.final(name, 3, commit=False)
        await c.until(lambda: len(c.finals(name)) == 2)
        c.recognizer.commit(name)
        assert c.finals(name)[1].text == WORDS and c.recognizer.open_utterances == 0
        await c.until(lambda: two[0].metric("mediaworker_asr_open_utterances") == 0)


async def test_a_killed_server_costs_a_resend_and_its_legs_come_back(two: tuple[Server, Server]) -> None:
    one, other = two
    async with connected(*two) as (c,):
        names = [say(c, leg, 1) for leg in "abcd"]
        victim, lost = of(c, one), [name for name in names if home(c, name) is of(c, one)]
        one.kill()
        await c.until(lambda: victim.state is not EngineStatus.READY)
        assert len(lost) == 2 and c.recognizer.state is EngineStatus.READY
        names += [say(c, leg, 2) for leg in "abcd"]
        assert await finals(c, names) == [WORDS] * 8
        assert c.recognizer.counters.crashes == 1 and c.recognizer.counters.replayed >= 1
        one.start_again()
        await c.until(lambda: victim.state is EngineStatus.READY)
        for number in range(3, 6):
            assert await finals(c, [say(c, leg, number) for leg in "abcd"]) == [WORDS] * 4
        assert [server.user.legs for server in c.recognizer.servers] == [2, 2], "even again within three utterances"
        assert other.metric("mediaworker_engine_server_legs") == 2
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY], "there was one all the time"


async def test_finals_wait_for_the_only_server_to_come_back(two: tuple[Server, Server]) -> None:
    async with connected(two[0]) as (c,):
        two[0].kill()
        await c.until(lambda: ready(c) == 0)
        names = [say(c, "leg", number) for number in range(3)]
        assert c.recognizer.state is EngineStatus.WARMING_UP
        two[0].start_again()
        assert await finals(c, names) == [WORDS] * 3


async def test_a_stall_of_a_second_is_no_death(two: tuple[Server, Server]) -> None:
    async with connected(two[0]) as (c,):
        names = [say(c, "leg", 1)]
        two[0].signal(signal.SIGSTOP)
        names.append(say(c, "leg", 2))
        await asyncio.sleep(1)  # a tenth of what the server has
        two[0].signal(signal.SIGCONT)
        assert await finals(c, names) == [WORDS] * 2
        assert c.recognizer.counters.crashes == c.recognizer.counters.replayed == c.recognizer.counters.hangs == 0


async def test_a_server_that_hangs_costs_a_resend(two: tuple[Server, Server]) -> None:
    one, _ = two
    async with connected(*two, timeout_s=3.0) as (c,):
        legs = "abcd"
        assert await finals(c, [say(c, leg, 1) for leg in legs]) == [WORDS] * 4
        one.signal(signal.SIGSTOP)
        assert await finals(c, [say(c, leg, 2) for leg in legs]) == [WORDS] * 4
        assert c.recognizer.counters.hangs == 1 and c.recognizer.counters.replayed == 2
        assert of(c, one).last_end == f"the engine server did not answer for {seconds(3):g} s"
        one.signal(signal.SIGCONT)
        await c.until(lambda: ready(c) == 2)
        assert await finals(c, [say(c, leg, 3) for leg in legs]) == [WORDS] * 4


async def test_servers_are_restarted_one_by_one_and_no_crash_is_counted(two: tuple[Server, Server]) -> None:
    async with connected(*two) as (c,):
        names: list[str] = []
        for server in two:
            names += [say(c, leg, len(names)) for leg in "abcd"]
            before = server.process.pid
            server.signal(signal.SIGTERM)
            while server.process.poll() is None:
                names += [say(c, leg, len(names)) for leg in "ab"]
                await finals(c, names[-2:])
            assert server.process.returncode == 0
            server.start_again()
            await c.until(lambda: ready(c) == 2)
            assert server.process.pid != before
        assert await finals(c, names) == [WORDS] * len(names)
        counters = c.recognizer.counters
        assert (counters.crashes, counters.replayed, counters.errors) == (0, 0, 0)
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY]


async def test_an_inference_process_that_dies_at_a_server_hands_its_work_to_another(two: tuple[Server, Server]) -> None:
    one, other = two
    async with connected(*two) as (c,):
        names = [say(c, leg, 1) for leg in "abcd"]
        (child,) = one.children()
        os.kill(child, signal.SIGKILL)
        assert await finals(c, names) == [WORDS] * 4
        await c.until(lambda: ready(c) == 2)
        assert one.children() != [child] and one.process.poll() is None and len(other.children()) == 1
        assert await finals(c, [say(c, leg, 2) for leg in "abcd"]) == [WORDS] * 4


async def test_an_utterance_that_kills_engines_is_given_up_and_the_others_are_not(
    two: tuple[Server, Server], limit: Limit
) -> None:
    async with connected(two[0]) as (c,):
        limit.set(0)
        poison = say(c, "p", 1)
        for deaths in (1, 2):
            await c.until(lambda: two[0].children() == [limit.holder()])
            (child,) = two[0].children()
            os.kill(child, signal.SIGKILL)
            await c.until(lambda deaths=deaths: c.recognizer.counters.crashes == deaths)
        await c.until(lambda: c.finals(poison))
        (given_up,) = c.finals(poison)
        assert given_up.error and "signal 9" in given_up.error and given_up.died
        limit.lift()
        assert await finals(c, [say(c, "good", 1)]) == [WORDS]


async def test_a_name_that_gets_other_addresses(
    two: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Servers of one name and port on several addresses of this machine."""
    found = ["127.0.0.2"]
    asked = _resolve(monkeypatch, found)
    monkeypatch.setattr("asr.client.server_pool.RESOLVE_S", 0.1)
    port = two[0].port
    with (
        engine_server(tmp_path / "second", LISTENER_PATH, **LISTENER, ASR__LISTEN=f"tcp://127.0.0.2:{port}"),
        engine_server(tmp_path / "third", LISTENER_PATH, **LISTENER, ASR__LISTEN=f"tcp://127.0.0.3:{port}") as third,
    ):
        async with client(shared(f"tcp://engines.test:{port}")) as c:
            c.recognizer.keep_alive(True)
            await c.until(lambda: ready(c) == 1)
            assert await finals(c, [say(c, leg, 1) for leg in "ab"]) == [WORDS] * 2
            found.append("127.0.0.3")
            await c.until(lambda: ready(c) == 2)
            assert await finals(c, [say(c, leg, 2) for leg in "ab"]) == [WORDS] * 2
            assert [server.name for server in c.recognizer.servers] == [f"127.0.0.2:{port}", f"127.0.0.3:{port}"]
            found.remove("127.0.0.3")
            before = len(asked)
            await c.until(lambda: len(asked) >= before + 3)
            assert ready(c) == 2, "it answers, though its address is not told any more"
            third.kill()
            await c.until(lambda: len(c.recognizer.servers) == 1)
            assert await finals(c, [say(c, leg, 3) for leg in "ab"]) == [WORDS] * 2


async def test_a_name_that_cannot_be_resolved_is_a_sentence_and_is_tried_again(
    two: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    _resolve(monkeypatch, found)
    for name in ("RETRY_S", "RESOLVE_S", "AWAY_S"):
        monkeypatch.setattr(f"asr.client.server_pool.{name}", 0.1)
    async with client(shared(f"tcp://engines.test:{two[0].port}")) as c:
        c.recognizer.keep_alive(True)
        name = say(c, "a", 1)
        why = "engines.test cannot be resolved (Name or service not known)"
        await c.until(lambda: c.recognizer.trouble == f"asr.servers: {why}")
        await c.until(lambda: c.finals(name))
        assert c.finals(name)[0].error == why
        found.append("127.0.0.1")
        await c.until(lambda: ready(c) == 1)
        assert c.recognizer.trouble is None and await finals(c, [say(c, "a", 2)]) == [WORDS]


def _resolve(monkeypatch: pytest.MonkeyPatch, found: list[str]) -> list[str]:
    """-> what has been asked for, one entry for each time."""
    resolve, asked = socket.getaddrinfo, list[str]()

    def of_the_test(host: str, port: int, *arguments: object, **named: object) -> object:
        if host != "engines.test":
            return resolve(host, port, *arguments, **named)  # type: ignore[arg-type]
        asked.append(host)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", of_the_test)
    return asked


async def test_the_language_chooses_the_server(two: tuple[Server, Server], tmp_path: Path) -> None:
    with engine_server(tmp_path / "english", ASR__ENGINE="moonshine") as english:
        async with connected(english, two[0]) as (c,):
            assert {"en", "de"} <= set(c.recognizer.languages)
            for number in range(4):
                name = f"leg-{number}/1"
                c.recognizer.open(Utterance(name, "PCMU", stream=f"leg-{number}", language="de"), c.heard.append)
                assert home(c, name) is of(c, two[0])
                c.recognizer.append(name, AUDIO)
                c.recognizer.final(name, 1, commit=True)
            names = [say(c, leg, 1) for leg in "ab"]
            assert {home(c, name) for name in names} == {of(c, english)}, "it has fewer"
            assert all(await finals(c, names))
            assert await finals(c, [f"leg-{number}/1" for number in range(4)]) == [WORDS] * 4


async def test_a_server_with_another_engine_is_of_no_use_and_says_so(two: tuple[Server, Server]) -> None:
    async with client(shared(two[0], engine="qwen", model=str(TINY))) as c:
        c.recognizer.keep_alive(True)
        name = say(c, "a", 1)
        await c.until(lambda: c.finals(name))
        assert c.finals(name)[0].error == "its engine is listener, and asr.engine asks for qwen"
        assert c.recognizer.state is EngineStatus.FAILED
        assert two[0].metric("mediaworker_asr_open_utterances") == 0


async def test_files_of_one_worker_wait_for_calls_of_another(two: tuple[Server, Server], limit: Limit) -> None:
    async with connected(two[0], clients=2) as (files, calls):
        limit.set(1)
        names = [f"file/{number}" for number in range(4)]
        for name in names:
            files.recognizer.open(Utterance(name, "PCMU", live=False, stream="file"), files.heard.append)
            files.recognizer.append(name, AUDIO)
            files.recognizer.final(name, 1, commit=True)
        await files.until(lambda: any(files.finals(name) for name in names))
        live = [say(calls, leg, 1) for leg in "abc"]
        queue = calls.recognizer.servers[0].user
        await calls.until(lambda: all(queue.utterances[name].asked for name in live))
        # The engine has been told of this one, so it has been asked for the others: they came before it.
        say(calls, "d", 1, final=False)
        await files.until(lambda: two[0].metric("mediaworker_asr_open_utterances") == len(names) - 1 + len(live) + 1)
        limit.set(len(live))
        assert await finals(calls, live) == [WORDS] * 3
        assert sum(bool(files.finals(name)) for name in names) == 1, "the rest come after the calls"
        limit.lift()
        assert await finals(files, names) == [WORDS] * 4
