"""The media process's recogniser with the real inference process: started, killed, starved and outlived."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from asr import messages
from asr.client.link import CHECKS
from asr.client.recognizer import EngineStatus, Hypothesis, Utterance
from asr.client.spill import BLOCK_BYTES
from benchmarks.offline import transcribe
from config.process import child_process, framing
from config.settings import Asr, Settings
from lab.engine.listener import LIMIT, NO_DEVICE, Limit, words
from lab.engine.recognizer import PROMPT, SETTINGS, client, codes, install_listener, of_listener
from lab.patience import seconds
from lab.worker.peers import ROOT, TINY

LISTENER = of_listener()
WORDS = " ".join(words(codes(PROMPT)))
HANG_S = 3.0
"""More than what a busy machine takes from a process that goes on."""
NOTHING_S = 0.3
"""How long is waited for what must not happen: three times the settings' time."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asr.client.engine_health.BACKOFF_S", 0.05)
    install_listener(monkeypatch)


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Holds up the inference processes in the midst of a final."""
    made = Limit(tmp_path / "limit")
    monkeypatch.setenv(LIMIT, str(tmp_path / "limit"))
    return made


async def test_a_call_is_heard() -> None:
    """Partials, a speculative final, speech that goes on, a committed final; then a second utterance."""
    audio = codes(PROMPT)
    expected = transcribe(SETTINGS, "PCMU", audio)
    async with client() as c:
        assert c.recognizer.state is EngineStatus.IDLE and c.pid is None
        c.recognizer.keep_alive(True)
        c.say("a", audio[: len(audio) // 2])
        c.recognizer.partial("a", 1)
        await c.until(lambda: c.heard)
        c.recognizer.final("a", 2, commit=False)
        await c.until(lambda: c.finals("a"))
        assert c.finals("a")[0].text == transcribe(SETTINGS, "PCMU", audio[: len(audio) // 2])
        c.recognizer.append("a", audio[len(audio) // 2 :])
        c.recognizer.final("a", 3, commit=False)
        await c.until(lambda: len(c.finals("a")) == 2)
        assert c.finals("a")[1].text == expected and c.finals("a")[1].language == "en"
        c.recognizer.commit("a")
        c.recognizer.commit("a")
        assert c.recognizer.backlog_bytes == 0 and c.recognizer.open_utterances == 0
        # A SIGTERM to the whole group must not take the last finals away.
        c.kill(signal.SIGTERM)
        c.kill(signal.SIGINT)
        c.say("b", audio)
        c.recognizer.final("b", 1, commit=True)
        await c.until(lambda: c.finals("b"))
        assert c.finals("b")[0].text == expected
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY]
        assert "Moonshine" in c.reasons[-1]
        assert c.recognizer.counters.crashes == 0 and c.recognizer.languages == ("en",)


@pytest.mark.parametrize("when", ["idle", "starting", "in mid-utterance"])
async def test_a_kill_loses_nothing(limit: Limit, when: str) -> None:
    audio = codes(PROMPT)
    async with client(LISTENER) as c:
        c.recognizer.keep_alive(True)
        if when == "starting":
            await c.until(lambda: c.pid)
            c.kill()
            c.say("a", audio)
            c.recognizer.final("a", 1, commit=True)
        elif when == "idle":
            await c.ready()
            c.kill()
            c.say("a", audio)
            c.recognizer.final("a", 1, commit=True)
        else:
            limit.set(0)
            c.say("a", audio[:8000])
            c.recognizer.final("a", 1, commit=False)
            await c.until(lambda: "a" in c.working)
            c.kill()
            limit.lift()
            c.recognizer.append("a", audio[8000:])
            c.recognizer.final("a", 2, commit=True)
        await c.until(lambda: c.finals("a"))
        await c.until(lambda: c.recognizer.counters.crashes == 1)
        assert [(h.text, h.error) for h in c.finals("a")] == [(WORDS, None)]
        assert c.recognizer.state is EngineStatus.READY


async def test_the_second_death_over_an_utterance_ends_it(limit: Limit) -> None:
    async with client(LISTENER) as c:
        c.recognizer.keep_alive(True)
        limit.set(0)
        c.say("poison", codes(PROMPT))
        c.recognizer.final("poison", 1, commit=True)
        for deaths in (1, 2):
            await c.until(lambda: "poison" in c.working)
            c.kill()
            await c.until(lambda deaths=deaths: c.recognizer.counters.crashes == deaths)
        await c.until(lambda: c.finals("poison"))
        (final,) = c.finals("poison")
        assert final.text == "" and final.error is not None and "signal 9" in final.error
        limit.lift()
        c.say("good", codes(PROMPT))
        c.recognizer.final("good", 1, commit=True)
        await c.until(lambda: c.finals("good"))
        assert c.finals("good")[0].text == WORDS
        assert len(c.finals("poison")) == 1


@pytest.mark.parametrize("when", ["idle", "in mid-utterance"])
async def test_a_hang_is_noticed_and_loses_nothing(limit: Limit, when: str) -> None:
    async with client(of_listener(hang_s=seconds(HANG_S))) as c:
        c.recognizer.keep_alive(True)
        await c.ready()
        if when == "idle":
            c.kill(signal.SIGSTOP)
            c.say("a", codes(PROMPT))
        else:
            limit.set(0)
            c.say("a", codes(PROMPT))
            c.recognizer.final("a", 1, commit=False)
            await c.until(lambda: "a" in c.working)
            c.kill(signal.SIGSTOP)
            limit.lift()
        c.recognizer.final("a", 2, commit=True)
        await c.until(lambda: c.finals("a"))
        assert [(h.text, h.error) for h in c.finals("a")] == [(WORDS, None)]
        assert (c.recognizer.counters.hangs, c.recognizer.counters.crashes) == (1, 1)
        assert c.recognizer.state is EngineStatus.READY


async def test_long_work_is_no_hang(limit: Limit) -> None:
    """A final that takes many steps: no answer for longer than `hang_s`, but signs of life."""
    async with client(of_listener(hang_s=seconds(HANG_S))) as c:
        limit.set(0)
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: "a" in c.working)
        link = c.recognizer.servers[0].link
        before = link._signs
        await c.until(lambda: link._signs >= before + CHECKS + 2)
        assert not c.heard
        limit.lift()
        await c.until(lambda: c.finals("a"))
        assert c.finals("a")[0].text == WORDS and c.recognizer.counters.hangs == 0


async def test_a_start_that_hangs_fails_the_finals_and_is_tried_again() -> None:
    start_s = seconds(HANG_S)
    async with client(of_listener(start_timeout_s=start_s)) as c:
        c.recognizer.keep_alive(True)
        await c.until(lambda: c.pid)
        c.kill(signal.SIGSTOP)
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert c.finals("a")[0].error == f"the inference process was not ready within {start_s:g} s"
        assert c.states[:2] == [EngineStatus.WARMING_UP, EngineStatus.FAILED]
        await c.ready()
        c.say("b", codes(PROMPT))
        c.recognizer.final("b", 1, commit=True)
        await c.until(lambda: c.finals("b"))
        assert c.finals("b")[0].text == WORDS and c.recognizer.counters.hangs == 1


async def test_a_backlog_on_disk_is_heard_in_the_end(tmp_path: Path) -> None:
    """More audio than `asr.max_backlog_mb` while the engine is still loading."""
    audio = codes(PROMPT) * 3
    async with client(msgspec.structs.replace(of_listener(max_backlog_mb=1), data_dir=str(tmp_path))) as c:
        for number in range(32):
            c.say(f"other {number}", audio)
        c.say("deep", audio)
        c.recognizer.partial("deep", 1)
        c.recognizer.final("deep", 2, commit=True)
        assert c.recognizer.spilled_bytes >= BLOCK_BYTES and c.recognizer.counters.refused_partials == 1
        assert os.listdir(tmp_path) == []
        for number in range(32):
            c.recognizer.cancel(f"other {number}")
        assert c.recognizer.spilled_bytes == BLOCK_BYTES, "the one that is still wanted"
        await c.until(lambda: c.finals("deep"))
        assert c.finals("deep")[0].text == " ".join(words(audio))
        assert c.recognizer.backlog_bytes == c.recognizer.spilled_bytes == 0


async def test_it_ends_when_nobody_needs_it_and_comes_back() -> None:
    async with client(of_listener(idle_s=0.1)) as c:
        c.recognizer.keep_alive(True)
        await c.ready()
        pid = c.pid
        await asyncio.sleep(NOTHING_S)
        assert c.pid == pid, "a call is open"
        c.recognizer.keep_alive(False)
        await c.until(lambda: c.recognizer.state is EngineStatus.IDLE)
        assert c.pid is None and c.recognizer.counters.crashes == 0
        c.say("a", b"\xff" * 1600)
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        await c.until(lambda: c.recognizer.state is EngineStatus.IDLE)
        ready = [EngineStatus.WARMING_UP, EngineStatus.READY, EngineStatus.IDLE]
        assert c.states == ready * 2


async def test_a_preloaded_engine_waits_for_calls_and_stays() -> None:
    async with client(of_listener(idle_s=0.1, preload=True)) as c:
        await c.until(lambda: c.recognizer.state is EngineStatus.READY)
        pid = c.pid
        c.recognizer.keep_alive(True)
        c.recognizer.keep_alive(False)
        c.say("a", b"\xff" * 1600)
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        await asyncio.sleep(NOTHING_S)
        assert c.pid == pid
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.READY]


async def test_an_engine_that_does_not_exist_fails_the_finals_and_says_so() -> None:
    async with client(LISTENER) as c:
        (server,) = c.recognizer.servers
        server.configure(msgspec.structs.replace(server.first, engine="no such engine"))
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert "no engine of this name; there are moonshine, whisper, mixed, qwen" in str(c.finals("a")[0].error)
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.FAILED]


async def test_a_process_that_dies_at_its_start_fails_the_finals_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import os, sys\nif 'asr.inference.process' in sys.orig_argv:\n    os.write(2, b'broken'), os._exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    async with client(LISTENER) as c:
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.recognizer.state is EngineStatus.FAILED)
        assert [h.error for h in c.finals("a")] == ["the inference process died (exit status 1)"]
        c.say("b", codes(PROMPT))
        c.recognizer.final("b", 1, commit=True)
        await c.until(lambda: c.finals("b"))
        assert c.finals("b")[0].error
        broken.unlink()
        c.recognizer.keep_alive(True)
        await c.ready()
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.FAILED, EngineStatus.READY]
    assert "broken" in capfd.readouterr().err


async def test_weights_that_disappear_are_noticed_before_they_are_needed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    async with client(Settings(asr=Asr(engine="qwen", model=str(model)))) as c:
        assert c.recognizer.trouble is None
        model.rename(tmp_path / "elsewhere")
        assert "asr.model" in str(c.recognizer.trouble) and str(model) in str(c.recognizer.trouble)


async def test_an_engine_that_cannot_be_built_fails_the_finals_at_once() -> None:
    async with client(of_listener(devices=(NO_DEVICE,))) as c:
        c.say("a", codes(PROMPT))
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert c.finals("a")[0].error == "asr.devices: 'none' is no device"
        assert c.states == [EngineStatus.WARMING_UP, EngineStatus.FAILED]
        assert c.recognizer.counters.crashes == 1


async def test_readiness_follows_the_last_answers() -> None:
    """Streams that all fail for want of memory: nothing of the audio beyond the limit is kept, nor put on disk."""
    async with client(of_listener(max_backlog_mb=1, max_spill_mb=0)) as c:
        c.recognizer.keep_alive(True)
        await c.ready()
        c.kill(signal.SIGSTOP)  # so that nobody takes the audio
        for name in "abc":
            assert c.recognizer.trouble is None
            c.say(name, bytes(3 << 20))
            c.recognizer.final(name, 1, commit=True)
            await c.until(lambda name=name: c.finals(name))
            assert c.finals(name)[0].error
        assert str(c.finals("c")[0].error) in str(c.recognizer.trouble)
        c.kill(signal.SIGCONT)
        c.say("d", codes(PROMPT))
        c.recognizer.final("d", 1, commit=True)
        await c.until(lambda: c.finals("d"))
        assert c.finals("d")[0].error is None and c.recognizer.trouble is None


async def test_a_machine_without_room_for_a_process_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn, refusals = child_process.spawn, iter([OSError(errno.EMFILE, "Too many open files")] * 2)

    async def unlucky(module: str, descriptors: Sequence[int], env: Mapping[str, str] | None) -> Process:
        for error in refusals:
            raise error
        return await spawn(module, descriptors, env=env)

    monkeypatch.setattr(child_process, "spawn", unlucky)
    async with client(LISTENER) as c:
        c.say("a", b"\xff" * 800)
        c.recognizer.final("a", 1, commit=True)
        await c.until(lambda: c.finals("a"))
        assert c.finals("a")[0].error is None
        assert c.recognizer.counters.crashes == 2


async def test_words_that_cannot_be_told_are_replaced() -> None:
    """A peer's bytes that were no UTF-8 must not take the engine away from everybody."""
    async with client(LISTENER) as c:
        c.recognizer.open(Utterance("strange", "PCMU", context="caf\udce9", previous="\ud800"), c.heard.append)
        c.recognizer.append("strange", codes(PROMPT))
        c.recognizer.final("strange", 1, commit=True)
        await c.until(lambda: c.finals("strange"))
        assert c.finals("strange")[0].text == WORDS and c.recognizer.counters.crashes == 0


async def test_an_error_of_ours_in_telling_is_noticed_and_not_waited_on(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = framing.encode

    def broken(message: messages.ToEngine) -> bytes:
        assert not isinstance(message, messages.Open), "a bug"
        return encode(message)

    monkeypatch.setattr(framing, "encode", broken)
    async with client(LISTENER) as c:
        c.say("untold", codes(PROMPT))
        c.recognizer.final("untold", 1, commit=True)
        await c.until(lambda: c.finals("untold"))
        assert c.finals("untold")[0].error
        monkeypatch.setattr(framing, "encode", encode)
        c.recognizer.keep_alive(True)
        await c.ready()


async def test_one_callers_mistake_stays_its_own() -> None:
    def broken(hypothesis: Hypothesis) -> None:
        raise ValueError("a bug in the caller")

    async with client(LISTENER) as c:
        c.recognizer.open(Utterance("broken", "PCMU"), broken)
        c.recognizer.final("broken", 1, commit=True)
        c.say("fine", b"\xff" * 800)
        c.recognizer.final("fine", 1, commit=True)
        await c.until(lambda: c.finals("fine"))
        assert c.recognizer.open_utterances == 0


@pytest.mark.parametrize("hangs", [False, True])
def test_the_inference_process_does_not_outlive_its_parent(hangs: bool) -> None:
    code = """
import asyncio
from asr.client.recognizer import Recognizer
from lab.engine.recognizer import of_listener
async def main():
    recognizer = Recognizer(of_listener(), on_state=lambda state, reason: print(state, *recognizer.pids, flush=True))
    await recognizer.start()
    recognizer.keep_alive(True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        lines = iter(parent.stdout.readline, "")
        pid = next(int(line.split()[1]) for line in lines if line.startswith("ready"))
        descriptor = os.pidfd_open(pid)
        if hangs:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
    ended = select.poll()
    ended.register(descriptor)
    try:
        assert ended.poll(1000 * seconds(10)), "it lives on"
    finally:
        os.close(descriptor)


def test_the_client_loads_no_engine() -> None:
    code = "import asr.client.recognizer, sys; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split())
    assert "asr" in loaded
    assert not loaded & {"moonshine_voice", "torch", "transformers", "onnxruntime", "numpy"}
