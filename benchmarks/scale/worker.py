"""A worker: the real outstanding work with its placement, and what is said in its calls."""

from __future__ import annotations

import random
import tempfile
from typing import TYPE_CHECKING

from asr import messages
from asr.client.outstanding import EngineQueue, OutstandingWork
from asr.client.spill import Spill
from asr.utterance import Hypothesis, Utterance
from benchmarks.engine.talk import ENDS_MS
from benchmarks.scale.clock import Clock
from benchmarks.scale.engine_server import EngineServer
from benchmarks.scale.talk import GOES_ON, SOUND, Kind, Pattern
from benchmarks.scale.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 256 << 20


class Link:
    """A worker's connection to an engine server."""

    def __init__(self, worker: Worker, server: EngineServer, queue: EngineQueue) -> None:
        self.alive = True
        self.worker, self.server, self.queue = worker, server, queue
        self.name = worker.name
        self.legs: set[str] = set()
        """That have their place there, as the server knows it."""
        self.told = messages.ServerLoad()


class Worker:
    def __init__(
        self, name: str, clock: Clock, tally: Tally, patterns: Sequence[Pattern], *, max_calls: int,
        pause_s: tuple[float, float],
    ) -> None:  # fmt: skip
        self.pause_s = pause_s
        self.name, self.clock, self.tally, self.patterns = name, clock, tally, patterns
        self.alive = True
        self.calls: set[Call] = set()
        self.max_calls = max_calls
        self.links: list[Link] = []
        self.work = OutstandingWork(max_bytes=MAX_BYTES, spill=Spill(tempfile.gettempdir(), max_bytes=MAX_BYTES))
        self._due: dict[Link, None] = {}
        """Where there is something to send."""

    @property
    def full(self) -> bool:
        return len(self.calls) >= self.max_calls

    # -- engine servers ---------------------------------------------------------------------------------------------

    def connect(self, server: EngineServer) -> None:
        if not (self.alive and server.alive):
            return
        link = Link(self, server, self.work.add_queue(shared=True))
        link.queue.wake = lambda: self._due.setdefault(link)
        self.links.append(link)
        server.links.append(link)
        self.work.on_queue_ready(link.queue)
        self.flush()

    def disconnect(self, server: EngineServer) -> None:
        """It has been found out that the server is gone, for good: one that comes again is another one."""
        link = next((each for each in self.links if each.server is server), None)
        if link is None or not self.alive:
            return
        link.alive = False
        self.links.remove(link)
        before = self.work.counters.replayed
        self.work.on_queue_death(link.queue, "the server is gone")
        self.work.remove_queue(link.queue)
        self.tally.sent_again += self.work.counters.replayed - before
        self._due.pop(link, None)
        self.flush()

    def receive(self, link: Link, heard: list[Hypothesis], load: messages.ServerLoad | None) -> None:
        if load is not None:
            link.queue.load = load
        for hypothesis in heard:
            self.work.on_hypothesis(link.queue, hypothesis)
        self.flush()

    def flush(self, *, over: bool = False) -> None:
        """Send what is to be sent, and deliver what has come, until nothing is left of either. `over`: legs that leave
        a server now do so because their call is over."""
        work, due = self.work, self._due
        while (deliveries := work.take_deliveries()) or due:
            for callback, answer in deliveries:
                callback(answer)
            while due:
                link, _ = due.popitem()
                while (message := link.queue.next_message()) is not None:
                    if isinstance(message, messages.Release) and not over:
                        self.tally.moves.add(self.clock.now)
                    link.server.send(link, message)

    def end(self) -> None:
        """It is gone, and its calls with it."""
        self.alive = False
        for link in self.links:
            link.alive = False
            if link.server.alive:
                link.server.leave(link)
        for call in list(self.calls):
            call.lose()
        self.calls.clear()


class Call:
    """Two people, of whom one speaks, then the other. It ends between two utterances."""

    __slots__ = ("_leg", "_number", "_open", "_rng", "ends_s", "name", "worker")

    def __init__(self, name: str, worker: Worker, rng: random.Random, *, ends_s: float, first_s: float) -> None:
        """`first_s`: after so long the first one speaks."""
        self.name, self.worker, self.ends_s = name, worker, ends_s
        self._rng, self._leg, self._number = rng, 0, 0
        self._open: set[Speech] = set()
        worker.calls.add(self)
        worker.clock.after(first_s, self._speak)

    def _speak(self) -> None:
        worker = self.worker
        if not worker.alive:
            return
        if worker.clock.now >= self.ends_s:
            if self._open:  # what was said is waited for
                worker.clock.after(0.5, self._speak)
                return
            worker.calls.discard(self)
            for number in (0, 1):
                worker.work.release(f"{self.name}/{number}")
            worker.flush(over=True)
            return
        self._leg ^= self._rng.random() >= GOES_ON
        self._number += 1
        leg = f"{self.name}/{self._leg}"
        self._open.add(Speech(self, leg, f"{leg}/{self._number}", self._rng.choice(worker.patterns)))

    def on_endpoint(self) -> None:
        self.worker.clock.after(self._rng.uniform(*self.worker.pause_s), self._speak)

    def on_final(self, speech: Speech) -> None:
        self._open.discard(speech)

    def lose(self) -> None:
        tally = self.worker.tally
        for speech in self._open:
            speech.lost = True
            tally.lost_ended += speech.ended
        tally.lost_utterances += len(self._open)


class Speech:
    """An utterance, as `mediaworker.calls.transcriber` deals with it."""

    __slots__ = ("_asked_s", "_at", "_begun_s", "_call", "_ended_s", "_guessed", "_name", "_pattern", "_revision",
                 "_sent", "lost")  # fmt: skip

    def __init__(self, call: Call, leg: str, name: str, pattern: Pattern) -> None:
        self._call, self._name, self._pattern, self._at = call, name, pattern, 0
        self._revision, self._sent = 0, 0
        self._asked_s = 0.0
        self._ended_s: float | None = None
        self._guessed = self.lost = False
        worker = call.worker
        self._begun_s = worker.clock.now
        worker.work.open(Utterance(name, "PCMU", stream=leg), self._on_hypothesis)
        worker.flush()
        worker.clock.at(self._begun_s + pattern[0].at_s, self._next)

    @property
    def ended(self) -> bool:
        return self._ended_s is not None

    def _next(self) -> None:
        worker = self._call.worker
        if self.lost:
            return
        mark, work = self._pattern[self._at], worker.work
        match mark.kind:
            case Kind.PARTIAL:
                self._append(mark.heard)
                worker.tally.partials_asked.add(worker.clock.now)
                work.partial(self._name, self._revision)
            case Kind.SUSPECTED:
                self._append(mark.heard)
                self._guessed = False
                work.final(self._name, self._revision, commit=False, wanted_in_ms=ENDS_MS)
            case Kind.WITHDRAWN:
                if not self._guessed:
                    work.withdraw(self._name)
                self._guessed = False
                self._revision += 1
            case Kind.ENDPOINT:
                self._ended_s = worker.clock.now
                worker.tally.finals_asked += 1
                self._call.on_endpoint()
                if self._guessed:
                    self._finish()
        worker.flush()
        self._at += 1
        if self._at < len(self._pattern):
            worker.clock.at(self._begun_s + self._pattern[self._at].at_s, self._next)

    def _append(self, heard: int) -> None:
        worker = self._call.worker
        worker.work.append(self._name, SOUND[self._sent : heard])
        self._sent, self._asked_s = heard, worker.clock.now
        self._revision += 1

    def _on_hypothesis(self, hypothesis: Hypothesis) -> None:
        tally, now = self._call.worker.tally, self._call.worker.clock.now
        if not hypothesis.final:
            tally.partials_answered.add(now)
            if hypothesis.revision == self._revision:
                tally.partial_waits_s.add(now, now - self._asked_s)
        elif hypothesis.revision == self._revision:
            self._guessed = True
            if self._ended_s is not None:
                self._finish()

    def _finish(self) -> None:
        assert self._ended_s is not None
        call = self._call
        call.worker.tally.final_waits_s.add(self._ended_s, call.worker.clock.now - self._ended_s)
        call.worker.work.close(self._name)
        call.on_final(self)
