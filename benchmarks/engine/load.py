"""One run of people who speak without a pause, and of files without an end, on a virtual clock: see `engine_run`.

What is asked in the first seconds is not counted: not everybody speaks yet. Then a run goes on until all that was asked
in its time is answered. A search stops it as soon as it is clear that too many have waited too long.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asr import messages
from asr.inference.inference import Inference, Work
from asr.scheduling.request import LIVE, Lane
from asr.utterance import Hypothesis, Utterance
from benchmarks.engine.arrivals import Clock, Tally, lanes, per, percentile
from benchmarks.engine.driven import Driven, Spending
from benchmarks.engine.objective import PERCENT, Objective
from benchmarks.engine.plan import CODES_PER_MS, Arrival, arrivals, steady

SEED = 1
PATIENCE_S = 30.0
"""For answers after the time that counts."""


class Watch(Protocol):
    """Looks at steps of the time that counts. `busy_s`: how long anything has been done until now."""

    def before(self, busy_s: float) -> None: ...

    def after(self, busy_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Asked:
    revision: int
    lane: Lane
    time_s: float
    counts: bool


@dataclass(slots=True)
class _Spent:
    """In the time that counts."""

    steps: int = 0
    step_s: float = 0.0
    longest_s: float = 0.0
    """Of these steps."""
    intake_s: float = 0.0
    """Taking in audio and requests."""
    finals_s: float = 0.0
    """Of live audio whose finals came."""
    words: int = 0
    """In these finals."""
    files_s: float = 0.0


class Load:
    """See the module. The engine is empty before and after."""

    def __init__(
        self, engine: Driven, arrivals: Sequence[Arrival], pieces: Iterator[bytes], *, files: int, warm_s: float,
        seconds: float, objective: Objective, searching: bool = False, watch: Watch | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """`files`: so many are read at once, 0: none."""
        self.clock, self.tally, self.spent = clock or Clock(), Tally(), _Spent()
        self.overloaded = False
        """It was stopped."""
        self._engine, self._inference = engine, Inference(engine)
        self._arrivals, self._at = arrivals, 0
        self._pieces, self._files, self._begun = pieces, files, 0
        self._low_s, self._high_s = warm_s, warm_s + seconds
        self._objective, self._searching, self._watch = objective, searching, watch
        self._pending: dict[str, list[_Asked]] = defaultdict(list)
        self._open: dict[str, int] = {}
        """Utterances, and how much of them has come."""
        self._reading: set[str] = set()
        self._answered: set[str] = set()
        self._waiting = 0
        """Requests that count."""
        self._late = {Lane.FINAL: 0, Lane.PARTIAL: 0}
        self._marks: list[tuple[float, Spending]] = []
        """At the beginning of the time that counts and at its end: when it was, and the engine's own counters."""

    # -- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        # The arrivals of a run are half a million objects, which no server has: no collection shall look at them.
        gc.collect()
        gc.freeze()
        try:
            self._run()
        finally:
            gc.unfreeze()

    def _run(self) -> None:
        may_be_late = self._may_be_late()
        while self.clock.now < self._high_s or self._waiting:
            self._arrive()
            self._mark()
            if not self._step():
                if self._at == len(self._arrivals):
                    break
                self.clock.now = max(self.clock.now, self._arrivals[self._at].time_s)
            late = self._searching and any(self._late[lane] > may_be_late[lane] for lane in self._late)
            if late or self.clock.now > self._high_s + PATIENCE_S:
                self.overloaded = True
                break
        self._mark(over=True)
        for name in list(self._open):
            self._inference.receive(messages.CloseUtterance(name), self.clock.now)

    def _may_be_late(self) -> dict[Lane, int]:
        """As many of the requests to come as leave a chance that each lane holds."""
        asked = [each.message for each in self._arrivals if self._low_s <= each.time_s < self._high_s]
        finals = sum(isinstance(message, messages.FinalRequest) for message in asked)
        partials = sum(isinstance(message, messages.PartialRequest) for message in asked)
        share = 1 - PERCENT / 100
        return {Lane.FINAL: int(share * finals), Lane.PARTIAL: int(share * partials)}

    def _counts(self) -> bool:
        return self._low_s <= self.clock.now < self._high_s

    def _mark(self, *, over: bool = False) -> None:
        passed = 2 if over else (self.clock.now >= self._low_s) + (self.clock.now >= self._high_s)
        while len(self._marks) < passed:
            self._marks.append((self.clock.now, self._engine.spending()))

    def _arrive(self) -> None:
        until_s = self.clock.now  # what comes while this is taken in waits for a step
        while self._at < len(self._arrivals) and self._arrivals[self._at].time_s <= until_s:
            arrival = self._arrivals[self._at]
            self._at += 1
            self._receive(arrival.message, arrival.time_s)
        while len(self._reading) < self._files:
            self._begun += 1
            name, codes, now = f"file-{self._begun}", next(self._pieces), self.clock.now
            self._reading.add(name)
            self._receive(messages.Open(Utterance(name, "PCMU", live=False, stream=name)), now)
            self._receive(messages.Append(name, 0, codes), now)
            self._receive(messages.FinalRequest(name, 1, len(codes), commit=True), now)

    def _receive(self, message: messages.ToEngine, now: float) -> None:
        match message:
            case messages.Open(utterance=utterance):
                self._open[utterance.id] = 0
            case messages.Append(utterance_id=name, audio=audio):
                self._open[name] += len(audio)
            case messages.PartialRequest(utterance_id=name) | messages.FinalRequest(utterance_id=name):
                lane = self._lane(name, final=isinstance(message, messages.FinalRequest))
                counts = self._low_s <= now < self._high_s
                self.tally.asked[lane] += counts
                self._waiting += counts and lane in LIVE
                self._pending[name].append(_Asked(message.revision, lane, now, counts))
        before_s, counted = self.clock.now, self._counts()
        self.clock.timed(lambda: self._inference.receive(message, now))
        if counted:
            self.spent.intake_s += self.clock.now - before_s

    def _lane(self, name: str, *, final: bool) -> Lane:
        if name in self._reading:
            return Lane.BATCH
        if final:
            return Lane.FINAL
        return Lane.PARTIAL if name in self._answered else Lane.FIRST_PARTIAL

    def _step(self) -> bool:
        """False: there was nothing to do."""
        counted, before_s = self._counts(), self.clock.now
        chosen: list[Work] = []
        self.clock.timed(lambda: chosen.extend(filter(None, [self._inference.choose(self.clock.now)])))
        if not chosen:
            return False
        out: list[messages.FromEngine] = []
        if counted and self._watch is not None:
            self._watch.before(self.clock.busy_s)
        self.clock.timed(lambda: out.extend(self._inference.perform(chosen[0], self.clock.now)))
        if counted:
            self.spent.steps += 1
            took_s = self.clock.now - before_s
            self.spent.step_s += took_s
            self.spent.longest_s = max(self.spent.longest_s, took_s)
            if self._watch is not None:
                self._watch.after(self.clock.busy_s)
        for message in out:
            if isinstance(message, messages.Heard):
                self._heard(message.hypothesis)
        return True

    def _heard(self, hypothesis: Hypothesis) -> None:
        if hypothesis.error is not None:
            raise RuntimeError(f"{hypothesis.utterance_id}: {hypothesis.error}")
        name = hypothesis.utterance_id
        left = []
        for asked in self._pending.pop(name, ()):
            if asked.revision > hypothesis.revision:
                left.append(asked)
            elif asked.counts:
                self._count(asked, hypothesis)
        if left:
            self._pending[name] = left
        self._answered.add(name)
        if hypothesis.final:
            length_s = self._open.pop(name) / CODES_PER_MS / 1000
            self._answered.discard(name)
            if self._counts():
                if name in self._reading:
                    self.spent.files_s += length_s
                else:
                    self.spent.finals_s += length_s
                    self.spent.words += len(hypothesis.text.split())
            self._reading.discard(name)

    def _count(self, asked: _Asked, hypothesis: Hypothesis) -> None:
        waited_s = self.clock.now - asked.time_s
        self.tally.waits_s[asked.lane].append(waited_s)
        self.tally.replaced[asked.lane] += asked.revision < hypothesis.revision
        if asked.lane in LIVE:
            self._waiting -= 1
            if waited_s > self._objective.of_s(asked.lane):
                self._late[Lane.FINAL if asked.lane is Lane.FINAL else Lane.PARTIAL] += 1

    # -- what came of it --------------------------------------------------------------------------------------------

    def used(self) -> float:
        """How much of the objective: the worst lane's p99 over what it may be."""
        worst = 0.0
        for lane in LIVE:
            wait_s = percentile(self.tally.waits_s[lane], PERCENT)
            worst = max(worst, (wait_s or 0.0) / self._objective.of_s(lane))
        return max(worst, 1.01) if self.overloaded else worst

    def figures(self) -> dict[str, Any]:
        spent, tally = self.spent, self.tally
        (begun_s, begun), (over_s, over) = self._marks
        time_s, forwards = over_s - begun_s, over.forwards - begun.forwards
        lanes_of = (Lane.FIRST_PARTIAL, Lane.PARTIAL)
        asked = sum(tally.asked[lane] for lane in lanes_of)
        answered = sum(len(tally.waits_s[lane]) - tally.replaced[lane] for lane in lanes_of)
        return {
            "lanes": lanes(tally),
            "used": round(self.used(), 3),
            "overloaded": self.overloaded,
            "partials_answered": per(answered, asked),
            "audio_s": round(spent.finals_s, 2),
            "tokens_per_audio_s": per(spent.words, spent.finals_s),
            "drafts_accepted": per(over.accepted - begun.accepted, over.drafted - begun.drafted),
            "batch_audio_s": round(spent.files_s, 2),
            "rtfx": per(spent.files_s, time_s),
            "steps": spent.steps,
            "forwards": forwards,
            "step_ms": per(1000 * spent.step_s, spent.steps),
            "longest_step_ms": round(1000 * spent.longest_s, 1),
            "waits_per_step": per(over.waits - begun.waits, spent.steps),
            "waited_ms_per_step": per(1000 * (over.waited_s - begun.waited_s), spent.steps),
            "rows_per_forward": per(over.rows - begun.rows, forwards),
            "positions_per_forward": per(over.positions - begun.positions, forwards),
            "step_share": per(spent.step_s, time_s),
            "intake_share": per(spent.intake_s, time_s),
        }


def steady_load(
    engine: Driven, sound: bytes, pieces: Iterator[bytes], *, streams: int, files: int, utterance_s: float,
    seconds: float, partial_ms: int, context: int, objective: Objective, **more: Any,
) -> Load:  # fmt: skip
    """So many people who say `sound` without a pause; what they say first, an utterance of each, does not count.
    `context`: words that each gives the engine beside what is said; `more`: of `Load`."""
    spoken = steady(sound, streams=streams, seconds=utterance_s + seconds, utterance_s=utterance_s, seed=SEED)
    return Load(
        engine, arrivals(spoken, partial_ms=partial_ms, context=context), pieces, files=files, warm_s=utterance_s,
        seconds=seconds, objective=objective, **more,
    )  # fmt: skip
