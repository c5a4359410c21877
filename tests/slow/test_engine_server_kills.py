"""Kills over two engine servers under calls: the words are those without kills."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from asr.client.recognizer import EngineStatus, Hypothesis, Recognizer, Utterance
from audio.codecs.g711 import ulaw_encode
from benchmarks.offline import transcribe
from config.settings import Asr, Settings
from lab.media.speech import speech
from lab.patience import timeout, wait_for
from lab.worker.engine_servers import engine_server, shared

SEED = 21
PROMPTS = ("agent-loggedoff", "agent-alreadyon", "vm-goodbye", "conf-getpin", "queue-thankyou", "vm-youhave")
PAUSE_S = 3.0
"""At most between two utterances: as in a call, about one speaker in two says something."""


class Leg:
    """Says one prompt after the other in real time, with partials, until it is told to stop."""

    def __init__(self, number: int, recognizer: Recognizer, spoken: dict[str, bytes], expected: dict[str, str]) -> None:
        self.name, self._rng = f"leg-{number}", random.Random(SEED + number)
        self._recognizer, self._spoken, self._expected = recognizer, spoken, expected
        self.stop = False
        self.waits_s: list[float] = []

    async def talk(self) -> None:
        while not self.stop:
            await self._say(self._rng.choice(PROMPTS))
            await asyncio.sleep(self._rng.uniform(0, PAUSE_S))
        self._recognizer.release(self.name)

    async def _say(self, prompt: str) -> None:
        name, audio = f"{self.name}/{len(self.waits_s)}", self._spoken[prompt]
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
        while not (hypothesis := await wait_for(heard.get(), 60)).final:
            assert hypothesis.revision <= revision
        self.waits_s.append(time.monotonic() - asked_s)
        assert (hypothesis.text, hypothesis.error) == (self._expected[prompt], None), prompt
        await asyncio.sleep(0)
        assert heard.empty(), "its final came once, and nothing after it"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("engine", "kills", "legs_at_once"), [("moonshine", 200, 20), ("mixed", 30, 2)])
async def test_kills_of_engine_servers_under_calls_cost_no_word(
    tmp_path: Path, engine: str, kills: int, legs_at_once: int
) -> None:
    local = Settings(asr=Asr(engine=engine, threads=1))
    spoken = {prompt: bytes(ulaw_encode(speech(prompt))) for prompt in PROMPTS}
    expected = {prompt: transcribe(local, "PCMU", audio) for prompt, audio in spoken.items()}
    states: list[EngineStatus] = []
    rng = random.Random(SEED)
    with (
        engine_server(tmp_path / "one", ASR__ENGINE=engine) as one,
        engine_server(tmp_path / "two", ASR__ENGINE=engine) as two,
    ):
        recognizer = Recognizer(shared(one, two, engine=engine), on_state=lambda state, why: states.append(state))
        await recognizer.start()
        try:
            recognizer.keep_alive(True)
            await _ready(recognizer)
            legs = [Leg(number, recognizer, spoken, expected) for number in range(legs_at_once)]
            async with asyncio.TaskGroup() as talk:
                talking = [talk.create_task(leg.talk()) for leg in legs]
                for kill in range(kills):
                    await asyncio.sleep(rng.uniform(0, 0.3))
                    victim = rng.choice((one, two))
                    victim.kill()
                    victim.start_again()
                    async with timeout(60):
                        while recognizer.counters.crashes <= kill:  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                    await _ready(recognizer)
                for leg in legs:
                    leg.stop = True
                await asyncio.wait(talking)
            waits = sorted(wait_s for leg in legs for wait_s in leg.waits_s)
            counters = recognizer.counters
            print(  # noqa: T201 - shown when it fails
                f"{len(waits)} finals, {counters.replayed} utterances sent again; waits: "
                f"median {1000 * waits[len(waits) // 2]:.0f} ms, p99 {1000 * waits[len(waits) * 99 // 100]:.0f} ms, "
                f"longest {1000 * waits[-1]:.0f} ms; states {Counter(states)}"
            )
            assert counters.crashes == kills and counters.replayed > kills / 2
            assert counters.errors == 0 and recognizer.open_utterances == recognizer.backlog_bytes == 0
            assert states == [EngineStatus.WARMING_UP, EngineStatus.READY], "one server was ready all the time"
            assert [server.user.legs for server in recognizer.servers] == [0, 0]
        finally:
            await recognizer.stop()


async def _ready(recognizer: Recognizer) -> None:
    async with timeout(60):
        while sum(server.state is EngineStatus.READY for server in recognizer.servers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
