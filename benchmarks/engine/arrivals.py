"""One run: arrivals on a virtual clock, steps of an engine on the real one.

Nothing sleeps. A step takes as long as it takes, and the virtual clock goes on by that; what has arrived meanwhile is
received after it. When there is nothing to do the clock jumps to the next arrival.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from asr import messages
from asr.inference.inference import Inference
from asr.scheduling.request import Lane
from asr.utterance import Hypothesis, Utterance
from benchmarks.engine.plan import CODES_PER_MS, Arrival
from benchmarks.engine.spent import Metered, Spent

ANSWERED = (Lane.FINAL, Lane.FIRST_PARTIAL, Lane.PARTIAL)
"""What calls wait for. A speculative final is one: it may turn out to be it."""
MEASURED = (*ANSWERED, Lane.BATCH)
KINDS = dict(zip(MEASURED, ("final", "partial", "partial", "batch"), strict=True)) | {Lane.SPECULATIVE: "final"}
PERCENTILES = (50, 95, 99)


class Clock:
    """Virtual seconds, and the processor's."""

    def __init__(self, *, cpu: bool = False) -> None:
        """`cpu`: it goes on by the CPU time of the work, which is what the work would take on a machine of its own."""
        self.now = self.busy_s = 0.0
        self._cpu = cpu

    def timed(self, work: Callable[[], None]) -> float:
        """Do it; time goes on by as long as it takes. CPU seconds."""
        cpu_s, start_s = time.process_time(), time.perf_counter()
        work()
        wall_s, used_s = time.perf_counter() - start_s, time.process_time() - cpu_s
        self.now += used_s if self._cpu else wall_s
        self.busy_s += wall_s
        return used_s


@dataclass(frozen=True, slots=True)
class _Asked:
    revision: int
    lane: Lane
    wanted_s: float
    """From when on somebody waits for it."""
    counts: bool


@dataclass(slots=True)
class Tally:
    """What a run has shown."""

    asked: Counter[Lane] = field(default_factory=Counter)
    replaced: Counter[Lane] = field(default_factory=Counter)
    """Requests that got the answer to a newer one of their utterance."""
    waits_s: dict[Lane, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From each request to the first answer to it or to a newer one: no request is left out for being replaced."""
    answers: Counter[str] = field(default_factory=Counter)
    spent: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By kind, and of taking in the audio of live ones."""
    shown: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The texts of each utterance; the last one is its final."""
    audio: dict[str, bytes] = field(default_factory=dict)
    finals: set[str] = field(default_factory=set)


class Run:
    """See the module."""

    def __init__(
        self, engine: Metered, arrivals: Sequence[Arrival], files: Iterator[bytes], seconds: float, clock: Clock
    ) -> None:
        """`files`: pieces of a file in the batch lane, asked for one after the other during `seconds`; may be empty."""
        self.clock, self.tally = clock, Tally()
        self.engine, self._inference = engine, Inference(engine)
        self._arrivals, self._at = arrivals, 0
        self._files, self._count, self._seconds = files, 0, seconds
        self._pending: dict[str, list[_Asked]] = defaultdict(list)
        self._closing: set[str] = set()
        """Utterances that are over when their last request has been answered."""
        self.live: set[str] = set()

    def run(self) -> None:
        while True:
            self._arrive()
            if self._step():
                continue
            if self._at == len(self._arrivals):
                break
            self.clock.now = max(self.clock.now, self._arrivals[self._at].time_s)
        assert not any(self._pending.values()), "a request without an answer"

    def _arrive(self) -> None:
        while self._at < len(self._arrivals) and self._arrivals[self._at].time_s <= self.clock.now:
            arrival = self._arrivals[self._at]
            self._at += 1
            self._receive(arrival, "audio")
        name = f"file/{self._count}"
        if self.clock.now < self._seconds and not self._pending[name] and (codes := next(self._files, None)):
            self._count += 1
            name, now = f"file/{self._count}", self.clock.now
            self._receive(Arrival(now, messages.Open(Utterance(name, "PCMU", live=False, stream="file"))), "batch")
            self._receive(Arrival(now, messages.Append(name, 0, codes)), "batch")
            self._receive(Arrival(now, messages.FinalRequest(name, 1, len(codes), commit=True)), "batch")

    def _receive(self, arrival: Arrival, payer: str) -> None:
        message, now, tally = arrival.message, arrival.time_s, self.tally
        match message:
            case messages.Open(utterance=utterance) if utterance.live:
                self.live.add(utterance.id)
            case messages.Append(utterance_id=name, audio=audio):
                tally.audio[name] = tally.audio.get(name, b"") + audio
            case messages.PartialRequest(utterance_id=name) | messages.FinalRequest(utterance_id=name):
                lane = self._lane(name, final=isinstance(message, messages.FinalRequest))
                tally.asked[lane] += arrival.counts
                asked = _Asked(message.revision, lane, max(now, arrival.ready_s), arrival.counts)
                self._pending[name].append(asked)
            case messages.CloseUtterance(utterance_id=name) if self._pending[name]:
                self._closing.add(name)
                return
        tally.cpu_s[payer] += self.clock.timed(lambda: self._inference.receive(message, now))

    def _lane(self, name: str, *, final: bool) -> Lane:
        if name not in self.live:
            return Lane.BATCH
        if final:
            return Lane.FINAL
        return Lane.PARTIAL if name in self.tally.shown else Lane.FIRST_PARTIAL

    def _step(self) -> bool:
        """False: there was nothing to do."""
        kinds: dict[str, str] = {}
        out: list[messages.FromEngine] = []

        def step() -> None:
            work = self._inference.choose(self.clock.now)
            if work is not None:
                kinds.update((request.utterance_id, KINDS[request.lane]) for request in work.requests)
                out.extend(self._inference.perform(work, self.clock.now))

        used_s = self.clock.timed(step)
        if kinds:
            self._account(kinds, used_s)
        for message in out:
            if isinstance(message, messages.Heard):
                self._heard(message.hypothesis)
        return bool(kinds)

    def _account(self, kinds: dict[str, str], used_s: float) -> None:
        """The CPU time of a shared step is divided by the positions that each of them had in it."""
        spent = self.engine.meter.spent
        # A step that has not moved anybody on cost all of them the same.
        total = sum(spent[name].positions for name in kinds)
        for name, kind in kinds.items():
            self.tally.spent[kind].add(spent[name])
            share = spent[name].positions / total if total else 1 / len(kinds)
            self.tally.cpu_s[kind] += used_s * share

    def _heard(self, hypothesis: Hypothesis) -> None:
        if hypothesis.error is not None:
            raise RuntimeError(f"{hypothesis.utterance_id}: {hypothesis.error}")
        name, tally = hypothesis.utterance_id, self.tally
        left = []
        for asked in self._pending[name]:
            if asked.revision > hypothesis.revision:
                left.append(asked)
                continue
            if asked.revision == hypothesis.revision:
                tally.answers[KINDS[asked.lane]] += 1
            if asked.counts:
                tally.waits_s[asked.lane].append(max(0.0, self.clock.now - asked.wanted_s))
                tally.replaced[asked.lane] += asked.revision < hypothesis.revision
        self._pending[name] = left
        tally.shown[name].append(hypothesis.text)
        if hypothesis.final:
            tally.finals.add(name)
        if name in self._closing and not left:
            self._closing.remove(name)
            self._receive(Arrival(self.clock.now, messages.CloseUtterance(name)), "audio")


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest rank; None of nothing."""
    if not values:
        return None
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]


def lanes(tally: Tally) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for lane in MEASURED:
        waits = tally.waits_s[lane]
        row: dict[str, Any] = {"asked": tally.asked[lane], "count": len(waits), "replaced": tally.replaced[lane]}
        for percent in PERCENTILES:
            wait = percentile(waits, percent)
            row[f"p{percent}_ms"] = None if wait is None else round(1000 * wait, 1)
        found[lane.name.lower()] = row
    return found


def changed(texts: Sequence[str]) -> int:
    """How many partials of an utterance showed words that a later text does not begin with; `texts` ends with the
    final."""
    words = [text.split() for text in texts]
    return sum(any(later[: len(shown)] != shown for later in words[at + 1 :]) for at, shown in enumerate(words[:-1]))


def figures(run: Run, reference: Callable[[bytes], str]) -> dict[str, Any]:
    """What goes into the JSON. `reference`: the text of a whole utterance."""
    tally, meter = run.tally, run.engine.meter
    row: dict[str, Any] = {"lanes": lanes(tally)}
    for kind in ("partial", "final", "batch"):
        spent, count = tally.spent[kind], tally.answers[kind]
        for what in ("forwards", "tokens", "windows", "chunks"):
            row[f"{what}_per_{kind}"] = per(getattr(spent, what), count)
        row[f"cpu_ms_per_{kind}"] = per(1000 * tally.cpu_s[kind], count)
    live = [name for name in tally.finals if name in run.live]
    files = [name for name in tally.finals if name not in run.live]
    live_s, file_s = (sum(len(tally.audio[name]) for name in names) / CODES_PER_MS / 1000 for names in (live, files))
    # Apart: a file has no partials, from which a recipe may go wrong.
    equal, files_equal = (
        sum(tally.shown[name][-1] == reference(tally.audio[name]) for name in names) for names in (live, files)
    )
    partials = sum(len(tally.shown[name]) - 1 for name in live)
    asked = tally.asked[Lane.FIRST_PARTIAL] + tally.asked[Lane.PARTIAL]
    return row | {
        "rows_per_forward": per(meter.rows, meter.forwards),
        "audio_s": round(live_s, 2),
        "batch_audio_s": round(file_s, 2),
        "cpu_s_per_audio_s": per(tally.cpu_s["partial"] + tally.cpu_s["final"] + tally.cpu_s["audio"], live_s),
        "batch_cpu_s_per_audio_s": per(tally.cpu_s["batch"], file_s),
        "busy_s": round(run.clock.busy_s, 2),
        "virtual_s": round(run.clock.now, 2),
        "cpu_s": round(sum(tally.cpu_s.values()), 2),
        "finals": len(live),
        "finals_equal": per(equal, len(live)),
        "batch_finals_equal": per(files_equal, len(files)),
        "partials": partials,
        "partials_answered": per(partials, asked),
        "partials_changed": per(sum(changed(tally.shown[name]) for name in live), partials),
    }


def per(amount: float, count: float) -> float | None:
    return round(amount / count, 4) if count else None
