"""Kills over two inference processes: the words are those without kills, and nobody waits for a new one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections.abc import Callable

import pytest

from asr.client.engine_server import EngineServer
from asr.client.recognizer import EngineStatus, Hypothesis, Recognizer, Utterance
from audio.codecs.g711 import ulaw_encode
from benchmarks.offline import transcribe
from config.settings import Asr, Settings
from lab.media.speech import speech
from lab.patience import eventually, wait_for

SEED = 200
PROMPTS = ("agent-loggedoff", "agent-alreadyon", "vm-goodbye", "conf-getpin", "queue-thankyou", "vm-youhave")


class Leg:
    """Says one prompt after the other in real time, with partials, until it is told to stop."""

    def __init__(self, number: int, recognizer: Recognizer, spoken: dict[str, bytes], expected: dict[str, str]) -> None:
        self.name, self._rng = f"leg-{number}", random.Random(SEED + number)
        self._recognizer, self._spoken, self._expected = recognizer, spoken, expected
        self.stop = False
        self.finals = 0
        self.waits_s: list[float] = []
        """How long each final took."""

    async def talk(self) -> None:
        while not self.stop:
            await self._say(self._rng.choice(PROMPTS))
            await asyncio.sleep(self._rng.uniform(0, 0.3))
        self._recognizer.release(self.name)

    async def _say(self, prompt: str) -> None:
        name, audio = f"{self.name}/{self.finals}", self._spoken[prompt]
        heard: asyncio.Queue[Hypothesis] = asyncio.Queue()
        self._recognizer.open(Utterance(name, "PCMU", stream=self.name), heard.put_nowait)
        revision = 0
        for at in range(0, len(audio), 800):
            self._recognizer.append(name, audio[at : at + 800])
            if at % 4000 == 3200:
                revision += 1
                self._recognizer.partial(name, revision)
            await asyncio.sleep(0.1)
        asked_s = time.monotonic()
        self._recognizer.final(name, revision + 1, commit=True)
        while not (hypothesis := await wait_for(heard.get(), 30)).final:
            assert hypothesis.revision <= revision
        self.waits_s.append(time.monotonic() - asked_s)
        assert (hypothesis.text, hypothesis.error) == (self._expected[prompt], None), prompt
        self.finals += 1
        await asyncio.sleep(0)
        assert heard.empty(), "its final came once, and nothing after it"


def may_die(server: EngineServer) -> bool:
    """Whether it has nothing that another one has died over and nobody has answered since."""
    return not any(utterance.unanswered_crashes for utterance in server.user.utterances.values())


async def until(condition: Callable[[], object]) -> None:
    await eventually(condition, 60)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "kills", "legs_at_once"), [("moonshine", 200, 4), ("mixed", 60, 2)])
async def test_kills_cost_no_word_and_no_start_of_a_process(engine: str, kills: int, legs_at_once: int) -> None:
    settings = Settings(asr=Asr(engine=engine, processes=2, threads=2))
    spoken = {prompt: bytes(ulaw_encode(speech(prompt))) for prompt in PROMPTS}
    expected = {prompt: transcribe(settings, "PCMU", audio) for prompt, audio in spoken.items()}
    states: list[EngineStatus] = []
    recognizer = Recognizer(settings, on_state=lambda state, why: states.append(state))
    rng, starts_s = random.Random(SEED), list[float]()
    await recognizer.start()
    try:
        recognizer.keep_alive(True)
        servers = recognizer.servers
        await until(lambda: all(server.state is EngineStatus.READY for server in servers))
        legs = [Leg(number, recognizer, spoken, expected) for number in range(legs_at_once)]
        async with asyncio.TaskGroup() as talk:
            talking = [talk.create_task(leg.talk()) for leg in legs]
            for kill in range(kills):
                await asyncio.sleep(rng.uniform(0, 0.4))
                # An utterance that two processes die over, without an answer in between, is given up by design.
                await until(lambda: any(map(may_die, servers)))
                mortal = list(filter(may_die, servers))
                # One that works, or any: while it works is when most can be lost.
                victim = rng.choice([server for server in mortal if server.user.working] or mortal)
                assert victim.pid is not None
                killed_s = time.monotonic()
                os.kill(victim.pid, signal.SIGKILL)
                await until(lambda kill=kill: recognizer.counters.crashes == kill + 1)
                await until(lambda: all(server.state is EngineStatus.READY for server in servers))
                starts_s.append(time.monotonic() - killed_s)
            for leg in legs:
                leg.stop = True
            await asyncio.wait(talking)
        waits_s = sorted(wait_s for leg in legs for wait_s in leg.waits_s)
        print(  # noqa: T201 - shown when it fails
            f"{len(waits_s)} finals, {recognizer.counters.replayed} utterances sent again; "
            f"waits: median {1000 * statistics.median(waits_s):.0f} ms, longest {1000 * waits_s[-1]:.0f} ms; "
            f"a process starts in {1000 * statistics.median(starts_s):.0f} ms"
        )
        # All but the few that a machine which stood still kept waiting.
        assert waits_s[int(0.95 * len(waits_s))] < statistics.median(starts_s), "the other process has answered"
        assert recognizer.counters.crashes == kills and recognizer.counters.replayed > kills / 2
        assert recognizer.counters.errors == 0 and recognizer.open_utterances == recognizer.backlog_bytes == 0
        assert states == [EngineStatus.WARMING_UP, EngineStatus.READY], "one process was ready all the time"
        assert [server.user.legs for server in servers] == [0, 0]
    finally:
        await recognizer.stop()
