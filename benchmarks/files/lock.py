"""The design that this one replaces, simulated: one `asyncio.Semaphore(1)` around the model.

Whoever has the lock has the engine alone: a file from its first stretch to its last, one after the other, and a request
of a call from its question to its answer. Waiters get it in the order in which they came. The process of the engine,
its model and its scheduler are ours, so only the order of work differs.

Where it could be better or worse than the original it is better: audio of calls goes to the engine beside the lock;
a request of a call that still waits is replaced by a newer one of its utterance; a file is decoded and cut beside the
lock, one ahead; and only one file waits for the lock at a time, so nobody waits for two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count, cycle
from pathlib import Path

from asr.client.recognizer import Recognizer
from asr.utterance import Hypothesis, Utterance
from benchmarks.engine.run import BenchError
from benchmarks.files.world import World
from mediaworker.files.decoder_process import DecoderProcess, ReadingPlan
from mediaworker.files.messages import Chunk

AHEAD = 1 << 20
"""Stretches granted to a reader: all of them."""


class Locked:
    """A recognizer for calls, as `asr.client.recognizer.Recognizer`, each of whose requests waits for the lock."""

    def __init__(self, recognizer: Recognizer) -> None:
        self.lock = asyncio.Semaphore(1)
        self._recognizer = recognizer
        self._newest: dict[str, tuple[int, bool | None]] = {}
        """Requests that wait for the lock: revision, and `commit` of a final."""
        self._answers: dict[str, asyncio.Event] = {}
        """To what has the lock."""
        self._turns: set[asyncio.Task[None]] = set()

    def open(self, utterance: Utterance, on_hypothesis: Callable[[Hypothesis], None]) -> None:
        def heard(hypothesis: Hypothesis) -> None:
            on_hypothesis(hypothesis)
            self._answers[hypothesis.utterance_id].set()

        self._recognizer.open(utterance, heard)

    def append(self, utterance_id: str, audio: bytes) -> None:
        self._recognizer.append(utterance_id, audio)

    def partial(self, utterance_id: str, revision: int) -> None:
        self._ask(utterance_id, revision, None)

    def final(self, utterance_id: str, revision: int, *, commit: bool, wanted_in_ms: int = 0) -> None:
        self._ask(utterance_id, revision, commit)

    def withdraw(self, utterance_id: str) -> None:
        """Its turn has come or will come, as with a lock that anybody writes."""

    def commit(self, utterance_id: str) -> None:
        self._recognizer.commit(utterance_id)

    def cancel(self, utterance_id: str) -> None:
        self._recognizer.cancel(utterance_id)

    def release(self, stream: str) -> None:
        self._recognizer.release(stream)

    def _ask(self, name: str, revision: int, commit: bool | None) -> None:
        waits = name in self._newest
        self._newest[name] = (revision, commit)
        if not waits:
            turn = asyncio.create_task(self._turn(name), name=f"lock {name}")
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def _turn(self, name: str) -> None:
        async with self.lock:
            revision, commit = self._newest.pop(name)
            answer = self._answers[name] = asyncio.Event()
            if commit is None:
                self._recognizer.partial(name, revision)
            else:
                self._recognizer.final(name, revision, commit=commit)
            await answer.wait()


class LockedFiles:
    """Files without an end, each of which has the lock for all of its stretches."""

    def __init__(self, world: World, lock: asyncio.Semaphore, paths: Sequence[Path]) -> None:
        self._world, self._lock, self._paths = world, lock, paths
        self.audio_s = 0.0
        """Done so far."""
        self.busy = asyncio.Event()
        """The first has the lock."""
        self.holds_s: list[float] = []
        """How long each had it."""

    async def run(self) -> None:
        """Until it is cancelled. Raises BenchError."""
        read: asyncio.Queue[tuple[list[Chunk], float]] = asyncio.Queue(maxsize=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(read))
            group.create_task(self._hold(read))

    async def _read(self, read: asyncio.Queue[tuple[list[Chunk], float]]) -> None:
        settings = self._world.settings
        for path in cycle(self._paths):
            chunks = []
            with path.open("rb") as file:
                plan = ReadingPlan("mix", settings.endpointing.files)
                async with DecoderProcess(file.fileno(), path.name, plan, settings.files) as reading:
                    reading.grant(AHEAD)
                    async for message in reading.messages():
                        if isinstance(message, Chunk):
                            chunks.append(message)
            assert reading.facts.ended is not None
            await read.put((chunks, reading.facts.ended.duration_s))

    async def _hold(self, read: asyncio.Queue[tuple[list[Chunk], float]]) -> None:
        loop = asyncio.get_running_loop()
        for number in count():
            chunks, duration_s = await read.get()
            async with self._lock:
                self.busy.set()
                begun_s, before_s = loop.time(), self.audio_s
                for chunk in chunks:
                    await self._recognise(f"locked/{number}.{chunk.index}", chunk.audio)
                    self.audio_s = before_s + chunk.end / 8000
                self.audio_s = before_s + duration_s
                self.holds_s.append(loop.time() - begun_s)

    async def _recognise(self, name: str, audio: bytes) -> None:
        recognizer = self._world.recognizer
        answer: asyncio.Future[Hypothesis] = asyncio.get_running_loop().create_future()
        recognizer.open(Utterance(name, "L16", live=False, stream="locked"), answer.set_result)
        recognizer.append(name, audio)
        recognizer.final(name, 1, commit=True)
        try:
            if (error := (await answer).error) is not None:
                raise BenchError(f"a stretch of a file failed: {error}")
        finally:
            recognizer.cancel(name)
