"""An engine server: the real scheduler, and around it what `asr.inference.inference` and `asr.inference.links` do."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from asr import messages
from asr.inference.inference import HEADROOM_S, PARTIAL_ALLOWANCE_S
from asr.inference.links import REPORT_S
from asr.inference.utterances import Delay
from asr.scheduling.request import LIVE, Lane, Request
from asr.scheduling.scheduler import Scheduler
from asr.utterance import Hypothesis
from benchmarks.scale.clock import Clock
from benchmarks.scale.costs import Costs

if TYPE_CHECKING:
    from benchmarks.scale.worker import Link


class _Open:
    __slots__ = ("answered", "asked_s", "link")

    def __init__(self, link: Link) -> None:
        self.link, self.answered, self.asked_s = link, False, 0.0


class EngineServer:
    """`network_s`: one way between it and its workers."""

    def __init__(self, clock: Clock, costs: Costs, *, network_s: float, tell_s: float) -> None:
        """`tell_s`: when it first tells its load by itself."""
        self.alive = True
        self.legs = 0
        """Of all workers."""
        self.busy_s = 0.0
        self.scheduler = Scheduler(max_partials=max(256, 8 * costs.batch))
        self.links: list[Link] = []
        self._clock, self._costs, self._network_s = clock, costs, network_s
        self._delay = Delay()
        self._inbox: deque[tuple[float, Link, messages.ToEngine]] = deque()
        self._open: dict[str, _Open] = {}
        self._awake = False
        """A step runs, or is about to."""
        clock.every(REPORT_S, self._tell, first_s=tell_s)

    def send(self, link: Link, message: messages.ToEngine) -> None:
        """From a worker. What is sent to a server that is gone is lost."""
        if not self.alive:
            return
        arrives_s = self._clock.now + self._network_s
        self._inbox.append((arrives_s, link, message))
        if not self._awake:
            self._awake = True
            self._clock.at(arrives_s, self._turn)

    def _turn(self) -> None:
        """Take what has come, and begin a step."""
        if not self.alive:
            return
        now, inbox = self._clock.now, self._inbox
        while inbox and inbox[0][0] <= now:
            arrived_s, link, message = inbox.popleft()
            if link.alive:
                self._receive(link, message, arrived_s)
        taken = self.scheduler.take(self._costs.batch, now_s=now, lanes=LIVE)
        if taken:
            waited_s = {request.utterance_id: now - self._open[request.utterance_id].asked_s for request in taken}
            step_s, answered = self._costs.step(taken)
            self.busy_s += step_s
            self._clock.after(step_s, self._end, taken, answered, waited_s)
        elif inbox:
            self._clock.at(inbox[0][0], self._turn)
        else:
            self._awake = False

    def _end(self, taken: list[Request], answered: list[Request], waited_s: dict[str, float]) -> None:
        if not self.alive:
            return
        now = self._clock.now
        answers: dict[Link, list[Hypothesis]] = {}
        for request in answered:
            name = request.utterance_id
            if self.scheduler.finish(request):
                known = self._open[name]
                known.answered = True
                self._delay.record(waited_s[name], now)
                hypothesis = Hypothesis(name, request.revision, "words", "en", 0, request.final)
                answers.setdefault(known.link, []).append(hypothesis)
                if request.commit:
                    self._close(name)
        for request in taken:
            self.scheduler.put_back(request)
        self._answer(answers)
        self._turn()

    def _receive(self, link: Link, message: messages.ToEngine, now: float) -> None:
        match message:
            case messages.Open(utterance=utterance):
                assert utterance.id not in self._open, f"{utterance.id} is open"
                self._open[utterance.id] = _Open(link)
                if utterance.stream not in link.legs:
                    link.legs.add(utterance.stream)
                    self.legs += 1
            case messages.Release(stream=stream):
                if stream in link.legs:
                    link.legs.discard(stream)
                    self.legs -= 1
            case messages.PartialRequest(utterance_id=name):
                lane = Lane.PARTIAL if self._open[name].answered else Lane.FIRST_PARTIAL
                self._submit(link, message, lane, now + PARTIAL_ALLOWANCE_S, now)
            case messages.FinalRequest(commit=commit, wanted_in_ms=wanted_in_ms):
                lane = Lane.FINAL if commit else Lane.SPECULATIVE
                self._submit(link, message, lane, now + max(0.0, wanted_in_ms / 1000 - HEADROOM_S), now)
            case messages.Withdraw(utterance_id=name):
                self.scheduler.withdraw(name)
            case messages.CloseUtterance(utterance_id=name):
                self._close(name)

    def _submit(
        self, link: Link, message: messages.PartialRequest | messages.FinalRequest, lane: Lane, by_s: float, now: float
    ) -> None:
        name = message.utterance_id
        if not (isinstance(message, messages.PartialRequest) and self.scheduler.pending(name)):
            self._open[name].asked_s = now
        commit = isinstance(message, messages.FinalRequest) and message.commit
        final = isinstance(message, messages.FinalRequest)
        self.scheduler.submit(
            Request(name, message.revision, lane, final, message.end, by_s, commit=commit, source=link.name)
        )

    def _close(self, name: str) -> None:
        if self._open.pop(name, None) is not None:
            self.scheduler.forget(name)
            self._costs.forget(name)

    def leave(self, link: Link) -> None:
        """The worker is gone: nothing of it goes on."""
        self.links.remove(link)
        self.legs -= len(link.legs)
        for name in [name for name, known in self._open.items() if known.link is link]:
            self._close(name)

    # -- to the workers ---------------------------------------------------------------------------------------------

    def _load(self, link: Link) -> messages.ServerLoad | None:
        """If it is another one than the worker knows."""
        load = messages.ServerLoad(self.legs - len(link.legs), 0, self._delay.ms(self._clock.now))
        if load == link.told:
            return None
        link.told = load
        return load

    def _answer(self, answers: dict[Link, list[Hypothesis]]) -> None:
        out = [(link, heard, self._load(link)) for link, heard in answers.items()]
        if out:
            self._clock.after(self._network_s, self._deliver, out)

    def _tell(self) -> None:
        if self.alive:
            nothing: list[Hypothesis] = []
            out = [(link, nothing, load) for link in self.links if (load := self._load(link)) is not None]
            if out:
                self._clock.after(self._network_s, self._deliver, out)

    def _deliver(self, out: list[tuple[Link, list[Hypothesis], messages.ServerLoad | None]]) -> None:
        """Also what a server had sent before it died."""
        for link, heard, load in out:
            if link.alive:
                link.worker.receive(link, heard, load)
