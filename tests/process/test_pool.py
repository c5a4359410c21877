"""Two inference processes behind one recogniser: shared calls, deaths, and a change of settings while people talk."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from asr.client.recognizer import EngineStatus
from config import ConfigError
from config.settings import Asr, Settings
from lab.engine.listener import LISTENER, LISTENER_PATH, NO_DEVICE, words
from lab.engine.recognizer import PROMPT, Client, client, codes, install_listener, of_listener
from lab.patience import seconds, until
from lab.worker.engine_server_clients import say
from lab.worker.peers import TINY
from lab.worker.reload import configured

AUDIO = codes(PROMPT)
WORDS = " ".join(words(AUDIO))
HANG_S = 3.0
"""More than what a busy machine takes from a process that goes on."""


PAIR = of_listener(2)


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    install_listener(monkeypatch)


async def ready(c: Client, count: int = 2) -> None:
    c.recognizer.keep_alive(True)
    await c.until(lambda: sum(server.state is EngineStatus.READY for server in c.recognizer.servers) == count)


def home(c: Client, name: str) -> int | None:
    placed = [int(server.name) for server in c.recognizer.servers if name in server.user.utterances]
    return placed[0] if placed else None


async def test_a_leg_keeps_its_process_and_the_death_of_one_is_heard_by_nobody() -> None:
    async with client(PAIR) as c:
        await ready(c)
        names = [say(c, leg, 1) for leg in "abcd"]
        homes = [home(c, name) for name in names]
        assert sorted(homes) == [0, 0, 1, 1]
        await c.until(lambda: all(c.finals(name) for name in names))
        more = [say(c, leg, 2) for leg in "abcd"]
        assert [home(c, name) for name in more] == homes, "each leg where it was"
        victim = c.recognizer.servers[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        await c.until(lambda: c.recognizer.counters.crashes == 1)
        assert all(home(c, name) in (1, None) for name in more), "at the other one, at once"
        await c.until(lambda: all(c.finals(name) for name in more))
        await c.until(lambda: victim.state is EngineStatus.READY)
        for number in range(3, 6):
            last = [say(c, leg, number) for leg in "abcd"]
            await c.until(lambda last=last: all(c.finals(name) for name in last))
        assert [server.user.legs for server in c.recognizer.servers] == [2, 2], "even again within three utterances"
        assert {h.text for h in c.heard if h.final} == {WORDS} and not any(h.error for h in c.heard)
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY], "there was one all the time"
        for leg in "abcd":
            c.recognizer.release(leg)
        assert [server.user.legs for server in c.recognizer.servers] == [0, 0]


async def test_one_that_hangs_is_replaced_while_the_other_serves() -> None:
    async with client(of_listener(2, hang_s=seconds(HANG_S))) as c:
        await ready(c)
        names = [say(c, leg, 1) for leg in "ab"]
        stopped = c.recognizer.servers[1]
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        await c.until(lambda: all(c.finals(name) for name in names))
        assert {c.finals(name)[0].text for name in names} == {WORDS}
        await c.until(lambda: stopped.state is EngineStatus.READY)
        assert c.recognizer.state is EngineStatus.READY


async def test_processes_are_renewed_one_by_one_while_people_talk() -> None:
    async with client(PAIR) as c:
        await ready(c)
        before = c.recognizer.pids
        names: list[str] = []
        c.recognizer.use(PAIR)
        assert not renewal(c), "nothing has changed"
        c.recognizer.use(of_listener(2, threads=2))
        while renewal(c):
            assert c.recognizer.state is EngineStatus.READY
            names += (new := [say(c, leg, len(names)) for leg in "ab"])
            await c.until(lambda new=new: all(c.finals(name) for name in new))
        assert len(c.recognizer.pids) == 2 and not set(before) & set(c.recognizer.pids)
        assert names and {c.finals(name)[0].text for name in names} == {WORDS}
        assert c.recognizer.counters.crashes == c.recognizer.counters.replayed == 0
        assert [server.first.asr.threads for server in c.recognizer.servers] == [2, 2]


def renewal(c: Client) -> bool:
    return any(task.get_name() == "asr-renewal" and not task.done() for task in asyncio.all_tasks())


async def test_a_single_process_goes_on_until_the_one_that_replaces_it_is_ready() -> None:
    async with client(of_listener()) as c:
        await ready(c, 1)
        (before,) = c.recognizer.pids
        names: list[str] = []
        for threads in (2, 1):
            c.recognizer.use(of_listener(threads=threads))
            while renewal(c):
                assert c.recognizer.state is EngineStatus.READY and len(c.recognizer.servers) == 1
                names.append(say(c, "a", len(names)))
                await c.until(lambda name=names[-1]: c.finals(name))
            await c.until(lambda: len(c.recognizer.pids) == 1)
            assert c.recognizer.pids != (before,)
            (before,) = c.recognizer.pids
        assert len(names) > 1 and {c.finals(name)[0].text for name in names} == {WORDS}
        assert c.recognizer.counters.crashes == c.recognizer.counters.replayed == 0
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY]
        c.recognizer.release("a")
        assert all(queue.legs == 0 for queue in c.recognizer.queues)


async def test_a_single_process_outlives_an_engine_that_does_not_start() -> None:
    async with client(of_listener(idle_s=0.2)) as c:
        await ready(c, 1)
        (before,) = c.recognizer.pids
        c.recognizer.use(of_listener(threads=2, devices=(NO_DEVICE,)))
        await c.until(lambda: not renewal(c))
        await c.until(lambda: c.recognizer.pids == (before,))
        assert c.recognizer.state is EngineStatus.READY
        name = say(c, "a", 1)
        await c.until(lambda: c.finals(name))
        c.recognizer.use(of_listener(threads=3, idle_s=0.2))
        await c.until(lambda: not renewal(c))
        await c.until(lambda: len(c.recognizer.pids) == 1)
        assert c.recognizer.pids != (before,) and c.recognizer.state is EngineStatus.READY
        name = say(c, "a", 2)
        await c.until(lambda: c.finals(name))
        assert not any(h.error for h in c.heard)
        c.recognizer.keep_alive(False)
        await c.until(lambda: c.recognizer.state is EngineStatus.IDLE)
        c.recognizer.use(of_listener(threads=4))
        await c.until(lambda: not renewal(c))
        assert c.recognizer.pids == (), "nobody wants one"


async def test_a_device_that_is_not_there_costs_a_warning_and_no_call() -> None:
    async with client(of_listener(0, devices=("cpu", NO_DEVICE))) as c:
        await ready(c, 1)
        await c.until(lambda: c.recognizer.servers[1].state is EngineStatus.FAILED)
        assert c.recognizer.state is EngineStatus.READY and c.recognizer.trouble is None
        assert any("inference process 1 does not start: asr.devices: 'none'" in w for w in c.recognizer.warnings)
        names = [say(c, leg, 1) for leg in "ab"]
        await c.until(lambda: all(c.finals(name) for name in names))
        assert not any(h.error for h in c.heard)


async def test_an_engine_that_does_not_start_stops_the_renewal_at_the_first_process() -> None:
    async with client(PAIR) as c:
        await ready(c)
        kept = c.recognizer.servers[1].pid
        c.recognizer.use(of_listener(2, threads=2, devices=(NO_DEVICE,)))
        await c.until(lambda: c.recognizer.servers[0].state is EngineStatus.FAILED)
        await c.until(lambda: not renewal(c))
        assert c.recognizer.state is EngineStatus.READY and c.recognizer.servers[1].pid == kept
        assert any("inference process 0 does not start" in warning for warning in c.recognizer.warnings)
        name = say(c, "a", 1)
        await c.until(lambda: c.finals(name))
        assert c.finals(name)[0].error is None


async def test_another_key_may_be_changed_though_the_weights_are_gone(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    settings = Settings(asr=Asr(engine="qwen", model=str(model), devices=("cpu",)))
    async with client(settings) as c:
        shutil.rmtree(model)
        c.recognizer.check(settings)
        with pytest.raises(ConfigError, match="is no folder with a model"):
            c.recognizer.check(Settings(asr=Asr(engine="qwen", model=str(tmp_path / "nowhere"))))


def test_sighup_brings_new_settings_to_a_worker_that_stays_ready(tmp_path: Path) -> None:
    environment = LISTENER | {"ASR__PRELOAD": "true", "ASR__PROCESSES": "2", "SIP__ENABLED": "false"}
    text = "[asr]\nthreads = {}\n"
    with configured(tmp_path, text.format(2), process_environ=LISTENER_PATH, **environment) as (running, reload):

        def log() -> str:
            return running.log.read_text()

        def renewed() -> bool:
            shown = running.get("/readyz")
            assert shown["engine"]["state"] == "ready" and len(shown["engine"]["processes"]) == 2
            return "inference processes renewed" in log()

        until(lambda: log().count("engine ready") == 2, 60)
        reload(text.format(2))
        reload(text.format(4))
        until(renewed)
        assert log().count("engine ready") == 4 and log().count("renewing the inference processes") == 1
        metrics = running.get("/metrics")
        for number in range(2):
            assert f'mediaworker_asr_process_state{{process="{number}",state="ready"}} 1.0' in metrics
            assert f'mediaworker_asr_process_legs{{process="{number}"}} 0.0' in metrics


async def test_what_no_engine_is_built_from_renews_nothing() -> None:
    async with client(PAIR) as c:
        await ready(c)
        before = c.recognizer.pids
        log = msgspec.structs.replace(PAIR.log, level="debug")
        asr = msgspec.structs.replace(PAIR.asr, language="en", partial_ms=800)
        c.recognizer.use(msgspec.structs.replace(PAIR, asr=asr, log=log))
        assert not renewal(c) and c.recognizer.pids == before
        assert {server.first.log_level for server in c.recognizer.servers} == {"debug"}, "of the next ones"
