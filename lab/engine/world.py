"""An account of what calls and files have asked of the engine, which holds its rules against it at each step.

`World` sends operations to the real engine on a very small model, and keeps a plain account of what was asked:

- A step takes the most urgent live requests, as many as it holds, and does work on every one of them. So a live request
  waits for the step in progress, and then only for steps that are full of requests before it. Once it is in, each step
  gives at least one token of its answer.
- Batch rides along, or has the step to itself, unless a call has the only slot: no more than `batch_tokens` positions
  and one encoder window. Streams take turns, those with a client waiting first.
- What comes out is for the newest revision asked of an open utterance, once.
- Slots belong to open utterances, and nothing is left when all are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

from asr import messages, text
from asr.engines.qwen.device.memory import Shape
from asr.engines.qwen.encoder import Encoder, Encoding
from asr.engines.qwen.engine import QwenEngine
from asr.engines.qwen.model.prompt import Prompt
from asr.engines.qwen.packed import Packed, PackedRow
from asr.inference.inference import HEADROOM_S, PARTIAL_ALLOWANCE_S, Inference, Work
from asr.scheduling.request import Lane, Request
from asr.utterance import Utterance
from lab.engine.qwen_models import check_said, loaded, noise, random_model

NAMES = 14
POSITIONS = 96
MISFIT = "far too many words " * 12
"""A context that leaves no room on the pages of an utterance."""
WANTED_IN_MS = (0, 160, 340, 840)
"""From a speculative final to its endpoint."""
STREAMS = (("", False), ("job", False), ("film", False), ("web", True), ("web 2", True))


def longest(seconds: float) -> int:
    """Tokens of an answer here: a random model babbles to the end."""
    return 2 + round(3 * seconds)


@cache
def model(of: str) -> Any:
    """One layer of each, and windows of a second. `of`: an engine takes a model over, the reference needs its own."""
    made = random_model(window=100)
    for stack in (made.model.audio_tower, made.model.language_model):
        stack.layers = stack.layers[:1]
    made.config.get_text_config().num_hidden_layers = 1
    return made


@cache
def speech(number: int) -> bytes:
    return noise(3.6, seed=number)


class WatchedPacked(Packed):
    """Notes whose positions went through."""

    def launch(self, rows: Sequence[PackedRow]) -> Callable[[], list[Any]]:
        owners = {pages[0]: owner for owner, pages in self.cache._owners.items()}
        self.worked = {owners[row.pages[0]]: len(row) for row in rows}
        return super().launch(rows)


class WatchedEncoder(Encoder):
    """Notes whose windows went through."""

    def run(self, work: Sequence[tuple[Encoding, int]], pages: Tensor) -> None:
        self.worked = [(encoding.audio, min(limit, self.missing(encoding))) for encoding, limit in work]
        super().run(work, pages)


class WatchedEngine(QwenEngine):
    _encoder_class, _packed_class = WatchedEncoder, WatchedPacked
    encoder: WatchedEncoder
    packed: WatchedPacked


@dataclass(slots=True)
class Asked:
    """The newest request of an utterance, not answered yet."""

    revision: int
    lane: Lane
    final: bool
    commit: bool
    end: int
    deadline_s: float
    steps: int = 0
    """Worked on, since it has its slot."""
    idle: int = 0
    """In a row, in the step with a slot of its own and not worked on."""

    def urgency(self, now: float) -> tuple[Lane, bool, float]:
        """A speculative final that is due comes right after the finals."""
        due = self.lane is Lane.SPECULATIVE and self.deadline_s <= now
        return Lane.FINAL if due else self.lane, due, self.deadline_s

    @property
    def longest(self) -> int:
        return longest(self.end / 8000)


@dataclass(slots=True)
class Known:
    """An open utterance."""

    utterance: Utterance
    codes: bytes
    received: int = 0
    newest: int = -1
    told: int = -1
    answered: bool = False
    committed: bool = False
    evicted: bool = False
    """Has lost its slot to another."""
    asked: Asked | None = None

    @property
    def stream(self) -> str:
        return self.utterance.stream or self.utterance.id


@dataclass
class World:
    """The engine, and the account of it."""

    shape: Shape
    max_partials: int = 256
    texts: int = 0
    """Finals whose words are still to be compared with the library's."""
    known: dict[str, Known] = field(default_factory=dict)
    passed: dict[tuple[bool, str], set[str]] = field(default_factory=dict)
    """Of each stream that waits for its turn: who had one since."""
    log: list[tuple[Any, ...]] = field(default_factory=list)
    now: float = 0.0
    revision: int = 0
    opened: int = 0
    shed: int = 0
    dropped: int = 0
    finals: int = 0
    failures: int = 0
    compared: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """Of every text that has been said."""

    def __post_init__(self) -> None:
        self.engine = WatchedEngine(loaded(model("engine")), self.shape)
        self.packed, self.encoder = self.engine.packed, self.engine.encoder
        self.read = self.engine.prompts.read
        self.engine.prompts.read = self._noted  # type: ignore[method-assign]
        self.inference = Inference(self.engine, max_partials=self.max_partials)
        self.scheduler = self.inference.scheduler
        self.limit = self.engine.capabilities.batch

    # -- operations -------------------------------------------------------------------------------------------------

    def apply(self, *operation: Any) -> None:
        """One operation by its name, then what must hold after each."""
        self.log.append(operation)
        self.now += 0.01
        name, *arguments = operation
        getattr(self, name)(*arguments)
        self.check()

    def open(self, number: int, live: bool, stream: int = 0, misfit: bool = False) -> None:
        name = f"u{number}"
        if name in self.known:
            return
        self.opened += 1
        of, synchronous = ("", False) if live else STREAMS[stream]
        utterance = Utterance(
            name, "PCMU", live=live, stream=of, synchronous=synchronous, context=MISFIT if misfit else "",
            language="en" if number % 3 == 0 else "",
        )  # fmt: skip
        self.known[name] = Known(utterance, speech(self.opened % 40))
        self.inference.receive(messages.Open(utterance), self.now)

    def append(self, number: int, size: int) -> None:
        name = f"u{number}"
        known = self.known.get(name)
        start = known.received if known else 0
        data = known.codes[start : start + size] if known else b"\xff" * size
        if data:
            self.inference.receive(messages.Append(name, start, data), self.now)
        if known:
            known.received += len(data)

    def partial(self, number: int, back: int = 0) -> None:
        self._ask(number, False, False, back)

    def final(self, number: int, commit: bool, back: int = 0) -> None:
        self._ask(number, True, commit, back)

    def withdraw(self, number: int) -> None:
        """The speaker has gone on, or it crosses with the end."""
        name = f"u{number}"
        known = self.known.get(name)
        if known is not None and (known.committed or not known.utterance.live):
            return
        self.inference.receive(messages.Withdraw(name), self.now)
        if known is not None:
            known.asked = None

    def late(self, number: int) -> None:
        """A request that has been overtaken by a newer one."""
        known = self.known.get(f"u{number}")
        if known is not None and known.newest > 0 and known.received:
            self.inference.receive(messages.PartialRequest(f"u{number}", known.newest - 1, 1), self.now)
            self.inference.receive(messages.PartialRequest(f"u{number}", known.newest, 1), self.now)

    def _ask(self, number: int, final: bool, commit: bool, back: int) -> None:
        name = f"u{number}"
        known = self.known.get(name)
        self.revision += 1
        end = max(known.received - back, 1) if known else 100
        if known is not None and (known.committed or not known.received):
            return
        wanted_in_ms = 0 if commit else WANTED_IN_MS[self.revision % len(WANTED_IN_MS)]
        message = (
            messages.FinalRequest(name, self.revision, end, commit, wanted_in_ms)
            if final
            else messages.PartialRequest(name, self.revision, end)
        )
        self.inference.receive(message, self.now)
        if known is None:
            return
        lane = Lane.BATCH
        if known.utterance.live:
            lane = Lane.PARTIAL if known.answered else Lane.FIRST_PARTIAL
            if final:
                lane = Lane.FINAL if commit else Lane.SPECULATIVE
        allowance_s = max(0.0, wanted_in_ms / 1000 - HEADROOM_S) if final else PARTIAL_ALLOWANCE_S
        asked = Asked(self.revision, lane, final, commit, end, self.now + allowance_s)
        if known.asked is not None and known.asked.lane is lane:
            asked.deadline_s = min(asked.deadline_s, known.asked.deadline_s)
        known.newest, known.committed, known.asked = self.revision, commit, asked
        self._note_shed()

    def _note_shed(self) -> None:
        partials = [known for known in self.known.values() if known.asked and known.asked.lane in (1, 2)]
        gone = [known for known in partials if not self.scheduler.pending(known.utterance.id)]
        assert len(gone) == max(0, len(partials) - self.max_partials)
        for known in gone:
            assert known.asked is not None
            left = [each.asked for each in partials if each not in gone]
            if known.asked.lane is Lane.FIRST_PARTIAL:
                assert all(each and each.lane is Lane.FIRST_PARTIAL for each in left), "refreshes go first"
        for known in gone:
            known.asked = None
        self.shed += len(gone)

    def close(self, number: int) -> None:
        self.known.pop(f"u{number}", None)
        self.inference.receive(messages.CloseUtterance(f"u{number}"), self.now)

    def lull(self, calls: bool) -> None:
        """Nothing more is asked for until all is answered; `calls`: those that have been answered are over."""
        if calls:
            for name, known in list(self.known.items()):
                if known.utterance.live and known.asked is None:
                    self.close(int(name[1:]))
        bound = sum(self._steps(known) for known in self.known.values())
        steps = 0
        while self.step():
            steps += 1
            assert steps <= bound, f"still at work after {bound} steps"
        waiting = [name for name, known in self.known.items() if known.asked]
        if waiting:
            owners = [self.known[name] for name in self.engine.kv_cache._owners]
            only = self.shape.slots == 1 and all(owner.utterance.live for owner in owners)
            assert not self.engine.kv_cache.free and only, f"{waiting} starve"

    def _steps(self, known: Known) -> int:
        """What its answer takes when it is alone: windows, pieces of the prefill, tokens; failing."""
        asked = known.asked
        if asked is None:
            return 0
        if known.utterance.live:
            return asked.longest + 1
        return asked.end // 8000 + 2 + POSITIONS // self.shape.batch_tokens + 1 + 2 * asked.longest

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, times: int = 1) -> bool:
        return any([self._step() for _ in range(times)])

    def _step(self) -> bool:
        asked = {name: known.asked for name, known in self.known.items() if known.asked is not None}
        live = sorted(each.urgency(self.now) for each in asked.values() if each.lane is not Lane.BATCH)
        can = {name for name, each in asked.items() if self.engine.runnable(self._request(name, each))}
        work = self.inference.choose(self.now)
        self._check_choice(work, live)
        if work is None:
            return False
        had = set(self.engine.kv_cache._owners)
        positions, windows = self.packed.positions, self.encoder.attended_windows
        self.packed.worked, self.encoder.worked = {}, []
        tower = {id(each.audio): name for name, each in self.engine._sessions.items()}
        out = self.inference.perform(work, self.now)
        failed = [each for each in out if isinstance(each, messages.Heard) and each.hypothesis.error]
        assert len(failed) <= 1
        encoded = {tower[id(audio)]: count for audio, count in self.encoder.worked if count}
        assert sum(self.packed.worked.values()) == self.packed.positions - positions
        assert sum(encoded.values()) == self.encoder.attended_windows - windows
        if not failed:  # a step in which an utterance is given up does nothing else
            self._check_work(work, {**encoded, **self.packed.worked})
        self._check_budget(work, encoded)
        self._check_turns(work, asked, can)
        for name in had - set(self.engine.kv_cache._owners):
            known = self.known[name]
            known.evicted = True
            if known.asked:
                known.asked.steps = 0
        for message in out:
            self._heard(message)
        return True

    def _request(self, name: str, asked: Asked) -> Request:
        return Request(name, asked.revision, asked.lane, asked.final, asked.end, asked.deadline_s)

    def _check_choice(self, work: Work | None, live: list[tuple[Lane, bool, float]]) -> None:
        """The newest revisions, the most urgent first, as many as go in; batch whenever it has a slot."""
        requests = work.requests if work is not None else ()
        first = []
        for request in requests:
            asked = self.known[request.utterance_id].asked
            assert asked is not None and asked.revision == request.revision, "work on what nobody waits for"
            assert (asked.lane, asked.deadline_s) == (request.lane, request.deadline_s)
            if request.lane is not Lane.BATCH:
                first.append(asked.urgency(self.now))
        assert first == live[: self.limit], "not the most urgent"
        owners = [self.known[name] for name in self.engine.kv_cache._owners]
        a_slot = self.engine.kv_cache.free or self.shape.slots > 1 or not all(owner.utterance.live for owner in owners)
        batch = any(known.asked and not known.utterance.live for known in self.known.values())
        assert requests or not (batch and a_slot), "batch does not go on"

    def _check_work(self, work: Work, worked: dict[str, int]) -> None:
        batch = []
        for request in work.requests:
            name = request.utterance_id
            asked = self.known[name].asked
            assert asked is not None
            if request.lane is not Lane.BATCH:
                assert name in self.packed.worked, f"{name} is in the step and has no part in it"
                asked.steps += 1
                assert asked.steps <= asked.longest, "more steps than tokens"
                continue
            batch.append(name)
            idle = name not in worked and bool(self.engine.kv_cache.of(name))
            asked.idle = asked.idle + 1 if idle else 0
            assert asked.idle < self.shape.slots, f"{name} has had a slot and no work for {asked.idle} steps"
        if len(batch) == len(work.requests):
            assert any(name in worked for name in batch), "a step for nothing"

    def _check_budget(self, work: Work, encoded: dict[str, int]) -> None:
        batch = {request.utterance_id for request in work.requests if request.lane is Lane.BATCH}
        tokens = sum(count for name, count in self.packed.worked.items() if name in batch)
        assert tokens <= self.shape.batch_tokens, f"{tokens} positions of batch"
        live = {request.utterance_id for request in work.requests} - batch
        windows = sum(count for name, count in encoded.items() if name not in live)
        assert windows <= 1 or not batch, f"{windows} windows of batch"

    def _check_turns(self, work: Work, asked: dict[str, Asked], can: set[str]) -> None:
        """`can`: who could have run before the step."""
        room = self.limit - sum(request.lane is not Lane.BATCH for request in work.requests)
        chosen = [self.known[each.utterance_id] for each in work.requests if each.lane is Lane.BATCH]
        had = {(not known.utterance.synchronous, known.stream) for known in chosen}
        batch = [self.known[name] for name in can if asked[name].lane is Lane.BATCH]
        waiting = {(not known.utterance.synchronous, known.stream) for known in batch} - had
        assert not waiting or len(chosen) == room, "room is left in the step"
        if any(not other for other, _ in waiting):
            assert all(not other for other, _ in had), "a client waits, and a file has its turn"
        self.passed = {key: self.passed.get(key, set()) for key in waiting}
        for (other, _), passed in self.passed.items():
            turns = {stream for kind, stream in had if kind == other}
            assert not turns & passed, f"{turns & passed} had two turns while another waited"
            passed |= turns

    # -- answers ----------------------------------------------------------------------------------------------------

    def _heard(self, message: Any) -> None:
        if isinstance(message, messages.Dropped):
            self.dropped += message.partials
            return
        assert isinstance(message, messages.Heard)
        heard = message.hypothesis
        assert heard.utterance_id in self.known, "of an utterance that is over"
        known = self.known[heard.utterance_id]
        asked, known.asked = known.asked, None
        assert asked is not None, "nobody has asked"
        assert heard.revision == asked.revision == known.newest, "not what was asked for last"
        assert heard.revision > known.told and heard.final == asked.final
        known.told = heard.revision
        known.answered |= heard.error is None
        if heard.error is not None:
            assert known.utterance.context
            self.failures += 1
        elif heard.final and self.texts > 0 and (known.evicted or self.finals % 4 == 0):
            self._compare(known, asked, heard.text)
        if asked.commit:
            del self.known[heard.utterance_id]
            self.finals += 1

    def _noted(self, tokens: list[int], prompt: Prompt) -> tuple[str, str]:
        language, said = self.read(tokens, prompt)
        self.tokens[text.clean(said, evidence=text.Evidence(0.0, 0.0))] = list(tokens)
        return language, said

    def _compare(self, known: Known, asked: Asked, shown: str) -> None:
        prompt = self.engine.prompts.build(language=known.utterance.language)
        check_said(self.tokens[shown], model("reference"), known.codes[: asked.end], prompt, asked.longest)
        self.texts, self.compared = self.texts - 1, self.compared + 1

    # -- always -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        cache, scheduler, names = self.engine.kv_cache, self.scheduler, set(self.known)
        assert set(cache._owners) <= names == set(self.engine._sessions) == set(self.inference._open)
        taken = [page for pages in cache._owners.values() for page in pages]
        assert sorted([*taken, *cache._free]) == list(range(cache.pages))
        assert set(self.engine.allocator.owners) == set(cache._owners)
        asked = {name: known.asked for name, known in self.known.items() if known.asked is not None}
        assert len(scheduler) == len(asked) and all(scheduler.pending(name) for name in asked)
        assert set(scheduler._newest) <= names and not scheduler._taken
        for lane, queues in scheduler._queues.items():
            entries = sum(len(queue.heap) for queue in queues.values())
            assert entries <= 2 * sum(each.lane is lane for each in asked.values()), "dead entries"
        batch = {name for name, each in asked.items() if each.lane is Lane.BATCH}
        assert {name for turns in scheduler._turns for queue in turns.values() for name in queue} == batch
        assert self.shed >= self.dropped

    def end(self) -> None:
        """Load lets up, everything is answered, and nothing is left."""
        self.log.append(("end",))
        self.lull(calls=False)
        self.lull(calls=True)
        self.lull(calls=True)
        assert not any(known.asked for known in self.known.values())
        for name in list(self.known):
            self.close(int(name[1:]))
        self.check()
        assert self.inference.choose() is None and self.engine.kv_cache.free == self.engine.kv_cache.pages
        assert len(self.scheduler) == 0 and not self.scheduler._newest and not self.scheduler._waiting
        assert not any(self.scheduler._queues.values()) and not any(self.scheduler._turns)
